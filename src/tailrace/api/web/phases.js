// Where a request's time went: a bar whose parts add up to the whole, and the same as a table.

import { h } from "./dom.js";
import { ms, share } from "./format.js";

const ANSWER = [
  ["ingress_ms", "ingress", "reading and checking the request"],
  ["render_ms", "render", "chat template and tokenizer"],
  ["queue_ms", "queue", "waiting, for whatever reason"],
  ["prefill_ms", "prefill", "computing the prompt"],
  ["decode_ms", "decode", "making the answer's tokens"],
  ["post_ms", "post", "from the last token to the end"],
];
const RECORD = {
  ingress: "reading and checking the request", load: "loading the model", render: "chat template and tokenizer",
  classify: "finding its class", admission: "deciding about it", limit: "waiting for the tenant's own limits",
  wait: "waiting in the fair queue", route: "choosing a backend", queue: "in the backend, before its first step",
  prefill: "computing the prompt", decode: "making the answer's tokens", post: "from the last token to the end",
};

/** Parts of an answer's `timings`. */
export function partsOfTimings(timings) {
  return ANSWER.map(([key, name, means]) => ({ name, means, value: timings[key] }));
}

/** Parts of a record's `phases_ms`. */
export function partsOfRecord(phases) {
  return Object.entries(phases).map(([name, value]) => ({ name, means: RECORD[name] ?? "", value }));
}

export function phaseBar(parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const label = `${ms(total)} in all: ${parts.filter(({ value }) => value > 0).map(({ name, value }) => `${name} ${ms(value)}`).join(", ")}`;
  const bar = h("div", { class: "phases", role: "img", "aria-label": label });
  for (const { name, value } of parts) {
    if (!(value > 0)) continue;
    const part = h("span", { class: `phase p-${name}`, title: `${name} ${ms(value)}, ${share(value, total)}` });
    part.style.flexGrow = String(value / total);
    bar.append(part);
  }
  return bar;
}

export function phaseTable(parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const row = ({ name, means, value }) => h("tr", null,
    h("th", { scope: "row", title: means }, h("i", { class: `dot p-${name}` }), name),
    h("td", { class: "num" }, ms(value)), h("td", { class: "num quiet" }, share(value, total)));
  return h("table", { class: "facts" }, h("caption", { class: "unseen" }, "Time of each phase"),
    h("tbody", null, parts.filter(({ value }) => value > 0).map(row)),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "total"), h("td", { class: "num" }, ms(total)), h("td"))));
}
