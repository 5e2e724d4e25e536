// Who holds the KV blocks: a field of cells, each the same part of the memory, and the numbers beside it.

import { h, say, svg } from "../dom.js";
import { count, share } from "../format.js";

const CELLS = 192;
const ACROSS = 48;
const PARTS = { referenced: ["in use", "k-used"], cached: ["cached, can be evicted", "k-cached"], free: ["free", "k-free"] };

export function kvMap() {
  const cells = Array.from({ length: CELLS }, (_, at) =>
    svg("rect", { x: (at % ACROSS) * 10, y: Math.floor(at / ACROSS) * 10, width: 8, height: 8, rx: 1.5, class: "k-free" }));
  const map = svg("svg", { viewBox: `0 0 ${ACROSS * 10 - 2} ${(CELLS / ACROSS) * 10 - 2}`, role: "img", class: "kv" }, cells);
  const values = Object.fromEntries(Object.keys(PARTS).map((key) => [key, h("b", { class: "num" })]));
  const about = h("span", { class: "quiet" });
  const legend = Object.entries(PARTS).map(([key, [name, look]]) => h("span", null, h("i", { class: `dot ${look}` }), `${name} `, values[key]));
  return {
    element: h("div", { class: "stack" }, map, h("div", { class: "legend" }, legend, about)),
    update(kv) {
      const used = cellsOf(kv.referenced, kv.total);
      const cached = used + Math.min(cellsOf(kv.cached, kv.total), CELLS - used);
      cells.forEach((cell, at) => cell.setAttribute("class", at < used ? "k-used" : at < cached ? "k-cached" : "k-free"));
      for (const [key, value] of Object.entries(values)) say(value, `${count(kv[key])} (${share(kv[key], kv.total)})`);
      say(about, `${count(kv.total)} blocks of ${kv.block_tokens} tokens`);
      map.setAttribute("aria-label", `KV blocks: ${Object.entries(PARTS).map(([key, [name]]) => `${count(kv[key])} ${name}`).join(", ")}`);
    },
  };
}

/** Whatever is there has a cell at least. */
function cellsOf(part, total) {
  return part > 0 ? Math.max(Math.round((CELLS * part) / total), 1) : 0;
}
