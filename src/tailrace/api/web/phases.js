// Where a request's time went: a bar whose parts add up to the whole, and the same as a table.

import { h } from "./dom.js";
import { fixed, ms, share } from "./format.js";

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

/** `timeline`: with a column that shows when each phase was. */
export function phaseTable(parts, { timeline = false } = {}) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  let since = 0;
  const row = ({ name, means, value }) => {
    const start = since;
    since += value;
    return h("tr", null,
      h("th", { scope: "row", title: means }, h("i", { class: `dot p-${name}` }), name),
      h("td", { class: "num" }, fixed(value, 2)), h("td", { class: "num quiet" }, share(value, total)),
      timeline && h("td", { class: "when" }, placed(name, start / total, value / total)),
      timeline && h("td", { class: "quiet means" }, means));
  };
  return h("table", { class: "facts times" }, h("caption", { class: "unseen" }, "Milliseconds of each phase"),
    h("tbody", null, parts.filter(({ value }) => value > 0).map(row)),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "total"), h("td", { class: "num" }, fixed(total, 2)),
      h("td", null, "ms"), timeline && h("td"), timeline && h("td"))));
}

function placed(name, start, part) {
  const bar = h("span", { class: `phase p-${name}` });
  bar.style.marginLeft = `${100 * start}%`;
  bar.style.width = `${100 * part}%`;
  return bar;
}
