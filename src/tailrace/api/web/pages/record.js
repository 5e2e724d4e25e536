// A request's record as people read it: when what happened, why, and everything that is known of it.

import { h } from "../dom.js";
import { clock, count, fixed, ms } from "../format.js";
import { empty } from "../notice.js";
import { partsOfRecord, phaseBar, phaseTable } from "../phases.js";

const GROUPS = {
  Who: ["tenant", "key", "task", "route", "origin", "job_id", "server", "entry_id", "answer_id"],
  Model: ["model_asked", "model", "adapter", "weights_format", "kv_format", "bucket", "attachments", "tools", "streamed"],
  Work: ["cached_tokens", "drafted_tokens", "accepted_tokens", "recomputed_tokens", "preemptions", "kv_blocks", "device_seconds", "measured_seconds", "price"],
};
const DECIDED = ["band", "limit", "uncached_estimate", "estimated_seconds", "predicted_ttft", "deadline_met", "admission"];
const ELSEWHERE = new Set([
  "id", "outcome", "status", "opened", "ended", "class", "class_reason", "error", "error_code", "error_domain", "phases_ms", "waited",
  "feedback", "total_ms", "ttft_ms", "tpot_ms", "queue_ms", "prompt_tokens", "completion_tokens", ...DECIDED, ...Object.values(GROUPS).flat(),
]);

export function recordViews(record) {
  const parts = partsOfRecord(record.phases_ms ?? {});
  const others = Object.keys(record).filter((name) => !ELSEWHERE.has(name));
  return [
    h("section", { class: "panel stack" }, heading(record), figures(record), phaseBar(parts), phaseTable(parts, { timeline: true })),
    h("section", { class: "panel stack" }, h("h2", null, "Why it went this way"), decisions(record), waits(record)),
    h("div", { class: "thirds" }, Object.entries({ ...GROUPS, More: others })
      .filter(([, names]) => names.some((name) => there(record[name])))
      .map(([title, names]) => h("section", { class: "panel stack" }, h("h2", null, title), facts(record, names)))),
  ];
}

function heading(record) {
  const good = record.outcome === "ok";
  const why = [record.status || null, record.error_code, record.error_domain && `fault: ${record.error_domain}`].filter(Boolean).join(" · ");
  return h("div", { class: "row" }, h("h2", { class: "mono" }, record.id),
    h("span", { class: `badge ${good ? "good" : "bad"}` }, record.outcome), !good && why && h("span", { class: "quiet" }, why),
    h("span", { class: "grow" }), record.opened && h("span", { class: "quiet num" }, clock(record.opened)));
}

function figures(record) {
  const figure = (name, value) => h("div", null, h("dt", null, name), h("dd", { class: "num" }, value));
  return h("dl", { class: "tiles inner" },
    figure("Total", ms(record.total_ms)), figure("First token", ms(record.ttft_ms)), figure("Waited", ms(record.queue_ms)),
    figure("Per token", ms(record.tpot_ms)), figure("Prompt", count(record.prompt_tokens)), figure("Answer", count(record.completion_tokens)));
}

function decisions(record) {
  const words = { class: [record.class, record.class_reason].filter(Boolean).join(", because: "), ...record };
  if (record.error) words.refusal = record.error;
  return facts(words, ["class", ...DECIDED, "refusal"]);
}

function waits({ waited }) {
  if (!waited?.length) return empty("It did not have to wait.");
  return h("ul", null, waited.map((each) => h("li", null, h("b", null, `${each.phase} ${ms(each.ms)}`), `: ${each.because}`)));
}

function facts(record, names) {
  const rows = names.filter((name) => there(record[name]));
  if (!rows.length) return empty("Nothing.");
  return h("table", { class: "facts" }, h("tbody", null, rows.map((name) =>
    h("tr", null, h("th", { scope: "row" }, name.replaceAll("_", " ")), h("td", null, shown(record[name]))))));
}

function there(value) {
  return value !== null && value !== undefined && value !== "";
}

function shown(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : fixed(value, 4);
  return typeof value === "object" ? facts(value, Object.keys(value)) : String(value);
}
