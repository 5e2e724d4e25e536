// Requests of a span of time in groups, the worst first. The server makes the sums.

import { get } from "../client.js";
import { timeChart } from "../chart.js";
import { h } from "../dom.js";
import { count, fixed, ms, number, share } from "../format.js";
import { empty, refused } from "../notice.js";

const NEEDS = "A report of all tenants needs a key with the scope admin; of your own requests any key does.";
const SPANS = { "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days" };
const GROUPS = ["tenant", "class", "bucket", "model", "day"];
const GOOD = "ok";

export function report({ askForKeys }) {
  const since = h("select", null, Object.entries(SPANS).map(([value, name]) => h("option", { value, selected: value === "7d" }, name)));
  const whose = h("select", null, h("option", { value: "admin/report" }, "all tenants"), h("option", { value: "v1/report" }, "my own"));
  const boxes = GROUPS.map((name) => h("input", { type: "checkbox", value: name, checked: ["tenant", "class", "bucket"].includes(name) }));
  const place = h("div", { class: "stack" });
  const field = (name, input) => h("label", { class: "field inline" }, h("span", null, name), input);
  const asking = h("form", { class: "row", onchange: look, onsubmit: (event) => event.preventDefault() },
    field("Requests of", whose), field("in the", since),
    h("fieldset", { class: "row" }, h("legend", { class: "unseen" }, "Grouped by"), h("span", { class: "quiet" }, "by"),
      boxes.map((box) => h("label", { class: "check" }, box, box.value))));
  let asked = 0; // answers to an older question are not shown

  async function look() {
    const own = (asked += 1);
    const by = boxes.filter((box) => box.checked).map((box) => box.value);
    try {
      const path = `${whose.value}?${new URLSearchParams({ since: since.value, by: by.join(",") || "tenant" })}`;
      const found = await get(path, { admin: whose.value.startsWith("admin") });
      if (own === asked) place.replaceChildren(...views(found));
    } catch (error) {
      if (own === asked) place.replaceChildren(refused(error, NEEDS, askForKeys));
    }
  }

  return {
    element: h("div", { class: "report stack" }, h("div", { class: "row" }, h("h1", null, "Report"), h("span", { class: "grow" }), asking), place),
    show: look,
    hide() {
      asked += 1;
    },
  };
}

function views(found) {
  if (!found.total.requests) return [empty("No requests ended in this time.")];
  return [
    totals(found),
    found.over_time.length > 1 && h("div", { class: "charts" }, charts(found.over_time).map((chart) => h("section", { class: "panel" }, chart.element))),
    h("section", { class: "panel stack" },
      h("div", { class: "row" }, h("h2", null, "Groups"), h("span", { class: "quiet" }, `${found.order}; percentiles ${found.percentiles}`)),
      groups(found)),
  ].filter(Boolean);
}

function totals({ total, currency }) {
  const tile = (name, value) => h("div", null, h("dt", null, name), h("dd", { class: "num" }, value));
  return h("dl", { class: "tiles" },
    tile("Requests", count(total.requests)), tile("Good", share(total.outcomes[GOOD] ?? 0, total.requests)),
    tile("TTFT P95", ms(total.ttft_ms?.p95)), tile("End to end P95", ms(total.e2e_ms?.p95)),
    tile("Tokens out", count(total.tokens.output)), tile("Device seconds", number(total.device_seconds)),
    tile(`Money${currency ? `, ${currency}` : ""}`, fixed(total.money, 2)));
}

/** Slots without any request are zeros. */
function charts(slots) {
  const known = new Map(slots.map((slot) => [slot.at, slot]));
  const all = [];
  for (let at = slots[0].at; at <= slots.at(-1).at; at += slots[0].seconds) all.push(known.get(at) ?? null);
  const good = (slot) => slot?.outcomes[GOOD] ?? 0;
  const made = [
    timeChart("Requests", [
      { name: "good", look: "p-decode", of: good },
      { name: "others", look: "p-queue", of: (slot) => (slot?.requests ?? 0) - good(slot) },
    ], count, { stacked: true, points: all.length }),
    timeChart("First token P95", [{ name: "ms", look: "p-prefill", of: (slot) => slot?.ttft_ms?.p95 ?? 0 }], number, { points: all.length }),
    timeChart("Tokens out", [{ name: "tokens", look: "p-decode", of: (slot) => slot?.tokens.output ?? 0 }], count, { stacked: true, points: all.length }),
  ];
  for (const chart of made) for (const slot of all) chart.add(slot);
  return made;
}

function groups({ by, groups: found, currency }) {
  const columns = [
    ...by.map((name) => [name, (line) => line.group[name] || "–"]),
    ["requests", (line) => count(line.requests), true],
    ["good", (line) => share(line.outcomes[GOOD] ?? 0, line.requests), true],
    ...Object.entries({ queue_ms: "queue", ttft_ms: "TTFT", tpot_ms: "TPOT", e2e_ms: "E2E" }).flatMap(([key, name]) =>
      ["p50", "p95", "p99"].map((point) => [`${name} ${point.toUpperCase()}`, (line) => number(line[key]?.[point]), true])),
    ["tokens in", (line) => count(line.tokens.prompt), true],
    ["out", (line) => count(line.tokens.output), true],
    ["device s", (line) => number(line.device_seconds), true],
    [currency || "money", (line) => fixed(line.money, 2), true],
    ["in time", (line) => share(line.deadlines.met, line.deadlines.had), true],
    ["success", (line) => share(line.success.succeeded, line.success.told), true],
  ];
  const cell = (tag, content, numeric) => h(tag, { scope: tag === "th" ? "col" : null, class: numeric ? "num" : null }, content);
  const rows = found.map((line) => h("tr", { title: outcomes(line) }, columns.map(([, read, numeric]) => cell("td", read(line), numeric))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Groups, worst first" },
    h("table", null, h("caption", { class: "unseen" }, "Groups of requests, worst first; times in milliseconds"),
      h("thead", null, h("tr", null, columns.map(([name, , numeric]) => cell("th", name, numeric)))), h("tbody", null, rows)));
}

function outcomes(line) {
  return Object.entries(line.outcomes).map(([name, times]) => `${name} ${count(times)}`).join(", ");
}
