// A little Markdown as elements: headings, lists, quotes, code, bold, italics, links. Everything else stays text, HTML
// above all. Only http and https links become links.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^(#{1,6}) +(.+?) *#*$/;
const BULLET = /^( *)(?:[-*+]|\d{1,9}[.)]) +(.*)$/;
const ORDERED = /^ *(\d{1,9})[.)] /;
// Lengths are bounded: a mark without its end costs a look at so many characters, however long the text is.
const INLINE = /(`{1,8})(?!`)(.{1,2000}?)(?<!`)\1(?!`)|\*\*(?=\S)(.{1,1000}?)(?<=\S)\*\*|\*(?=[^\s*])([^*]{1,1000}?)(?<=\S)\*|\[([^\]\n]{1,500})\]\(([^\s()]{1,2000})\)|(https?:\/\/[^\s<>"'`)\]]{1,2000})/;
const DEPTH = 6; // of lists in lists

/** Shows `text` in `place`. Blocks that are as they were keep their elements: a growing answer changes its last one. */
export function render(place, text) {
  const blocks = split(text);
  blocks.forEach((block, index) => {
    const old = place.children[index];
    if (old && old.source === block.source && old.kind === block.kind) return;
    const element = KINDS[block.kind](block);
    element.source = block.source;
    element.kind = block.kind;
    if (old) old.replaceWith(element);
    else place.append(element);
  });
  while (place.children.length > blocks.length) place.lastElementChild.remove();
}

const KINDS = {
  code: ({ source, language }) => h("pre", { tabindex: "0", "aria-label": `code ${language}`.trim() }, h("code", null, source)),
  heading: ({ level, content }) => h(`h${Math.min(level + 2, 6)}`, null, inline(content)),
  list: ({ lines }) => list(lines),
  quote: ({ lines }) => h("blockquote", null, lines.map((line) => h("p", null, inline(line)))),
  text: ({ lines }) => h("p", null, lines.flatMap((line, at) => (at ? [h("br"), ...inline(line)] : inline(line)))),
};

function split(text) {
  const blocks = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const [block, next] = lines[at].trim() === "" ? [null, at + 1] : taken(lines, at);
    if (block) blocks.push(block);
    at = next;
  }
  return blocks;
}

/** The block that begins at a line, and where the next one does. */
function taken(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(lines[at]);
  if (heading) return [{ kind: "heading", source: lines[at], level: heading[1].length, content: heading[2] }, at + 1];
  const kind = kindOf(lines[at]);
  let end = at + 1;
  while (end < lines.length && goesOn(kind, lines[end])) end += 1;
  const own = lines.slice(at, end);
  return [{ kind, source: own.join("\n"), lines: kind === "quote" ? own.map((line) => line.replace(/^ *> ?/, "")) : own }, end];
}

function fenced(lines, at, [, mark, language]) {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], mark)) end += 1;
  const source = lines.slice(at + 1, end).join("\n");
  return [{ kind: "code", source, language: language.trim() }, end + 1];
}

function closes(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function kindOf(line) {
  if (BULLET.test(line)) return "list";
  return /^ *>/.test(line) ? "quote" : "text";
}

function goesOn(kind, line) {
  if (line.trim() === "" || FENCE.test(line) || HEADING.test(line)) return false;
  if (kind === "list") return BULLET.test(line) || line.startsWith("  ");
  return kindOf(line) === kind;
}

/** Items by their indent; a deeper one is a list inside the one before, or, beyond DEPTH, one beside it. */
function list(lines, depth = 0) {
  const first = ORDERED.exec(lines[0]);
  const top = first ? h("ol", { start: first[1] }) : h("ul");
  const base = depth < DEPTH ? BULLET.exec(lines[0])[1].length : Infinity;
  for (let at = 0; at < lines.length; ) {
    const item = BULLET.exec(lines[at]);
    let end = at + 1;
    while (end < lines.length && !(BULLET.exec(lines[end])?.[1].length <= base)) end += 1;
    const inner = lines.slice(at + 1, end);
    const nested = inner.findIndex((line) => BULLET.test(line));
    const prose = nested < 0 ? inner : inner.slice(0, nested);
    top.append(h("li", null, inline([item[2], ...prose.map((line) => line.trim())].join(" ")),
      nested < 0 ? null : list(inner.slice(nested), depth + 1)));
    at = end;
  }
  return top;
}

/** Texts and elements of a line. */
function inline(text) {
  const parts = [];
  for (let found = INLINE.exec(text); found; found = INLINE.exec(text)) {
    if (found.index) parts.push(text.slice(0, found.index));
    parts.push(marked(found));
    text = text.slice(found.index + found[0].length);
  }
  if (text) parts.push(text);
  return parts;
}

function marked([whole, , code, bold, italic, label, target, bare]) {
  if (code !== undefined) return h("code", null, code);
  if (bold !== undefined) return h("strong", null, inline(bold));
  if (italic !== undefined) return h("em", null, inline(italic));
  return link(bare ?? target, bare ?? label) ?? whole;
}

/** Null for what is no address of the web. */
function link(target, label) {
  if (!/^https?:\/\//i.test(target) || !URL.canParse(target)) return null;
  return h("a", { href: new URL(target).href, rel: "noopener noreferrer nofollow", target: "_blank" }, label);
}
