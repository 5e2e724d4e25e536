// One answer looked at closely: its time, its prompt as the model saw it, and the request that asked for it.

import { address, post } from "../client.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { empty, failure } from "../notice.js";
import { phaseBar, phaseTable, partsOfTimings } from "../phases.js";

const SHOWN = 4000; // tokens

export function inspector() {
  const content = h("div", { class: "stack" });
  const element = h("section", { class: "panel inspector", "aria-label": "Inspector" }, content);
  clear();

  function clear() {
    content.replaceChildren(h("h2", null, "Inspector"), empty("The figures, the prompt and the request of an answer."));
  }

  function show(got) {
    const prompt = h("div", { class: "stack" });
    const opened = h("details", { open: true, ontoggle: (event) => event.target.open && fill(prompt, got.body) },
      h("summary", null, "Prompt as the model saw it"), prompt);
    content.replaceChildren(h("h2", null, "Inspector"), ...times(got),
      opened,
      h("details", null, h("summary", null, "Request"), h("pre", { class: "wrap", tabindex: "0", "aria-label": "request body" }, JSON.stringify(got.body, null, 2)),
        h("h3", null, "As a command"), h("pre", { class: "wrap", tabindex: "0", "aria-label": "curl command" }, curl(got.body))));
  }

  return { element, show, clear };
}

function times({ timings, requestId }) {
  const link = requestId && h("a", { href: `#/requests/${encodeURIComponent(requestId)}`, class: "mono" }, requestId);
  const record = h("p", { class: "quiet" }, "Record ", link || "none");
  if (!timings) return [record];
  const parts = partsOfTimings(timings);
  return [record, phaseBar(parts), phaseTable(parts)];
}

async function fill(place, { model, messages }) {
  if (place.hasChildNodes()) return;
  place.append(empty("reading"));
  try {
    const [rendered, tokens] = await Promise.all([
      post("apply-template", { model, messages }),
      post("tokenize", { model, messages, return_token_strs: true }),
    ]);
    place.replaceChildren(...promptViews(rendered.prompt, tokens));
  } catch (error) {
    place.replaceChildren(failure(error));
  }
}

function promptViews(text, { tokens, token_strs: strings, max_model_len: context }) {
  const views = { Text: h("pre", { class: "wrap prompt", tabindex: "0", "aria-label": "rendered prompt" }, text), Tokens: tokenView(tokens, strings) };
  const buttons = Object.keys(views).map((name) => h("button", { type: "button", class: "small", onclick: () => choose(name) }, name));
  const choose = (chosen) => Object.keys(views).forEach((name, at) => {
    views[name].hidden = name !== chosen;
    buttons[at].setAttribute("aria-pressed", String(name === chosen));
  });
  choose("Tokens");
  return [h("div", { class: "row" }, h("span", { class: "joined" }, buttons),
    h("span", { class: "quiet" }, `${count(tokens.length)} tokens of ${count(context)}`)), ...Object.values(views)];
}

function tokenView(tokens, strings) {
  const shown = tokens.slice(0, SHOWN).map((id, at) => h("span", { class: "token", title: `token ${at}: id ${id}` }, visible(strings[at])));
  const rest = tokens.length - shown.length;
  return h("div", { class: "tokens mono", tabindex: "0", role: "group", "aria-label": "tokens of the prompt" }, shown,
    rest > 0 && h("p", { class: "quiet" }, `and ${count(rest)} more`));
}

/** Line breaks are seen and still break. */
function visible(text) {
  return text.replaceAll("\n", "⏎\n");
}

function curl(body) {
  const data = JSON.stringify({ ...body, stream: false, stream_options: undefined }, null, 2).replaceAll("'", "'\\''");
  return `curl ${address("v1/chat/completions")} \\\n  -H "Authorization: Bearer $KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${data}'`;
}
