// A tenant's own requests: the latest, older ones page by page, and the record of one.

import { get } from "../client.js";
import { h } from "../dom.js";
import { clock, count, ms } from "../format.js";
import { empty, refused } from "../notice.js";
import { partsOfRecord, phaseBar } from "../phases.js";
import { recordViews } from "./record.js";

const NEEDS = "A record is shown to the tenant whose request it was.";
const PAGE = 50;
const COLUMNS = [
  ["when"], ["outcome"], ["request"], ["class"], ["model"], ["prompt", "num"], ["answer", "num"], ["first token", "num"], ["total", "num"], ["time by phase"],
];

export function requests({ askForKeys }) {
  const wanted = h("input", {
    type: "search", placeholder: "x-request-id, or the id of an answer", spellcheck: "false", autocomplete: "off", class: "mono", maxlength: "128",
  });
  const place = h("div", { class: "stack" });
  const element = h("div", { class: "requests stack" },
    h("div", { class: "row" }, h("h1", null, "Requests"), h("span", { class: "grow" }),
      h("form", { class: "row", onsubmit: lookUp }, h("label", { class: "field inline" }, h("span", null, "Request"), wanted),
        h("button", { type: "submit", class: "main" }, "Look up"))),
    place);
  let asked = 0; // answers to an older question are not shown

  function lookUp(event) {
    event.preventDefault();
    location.hash = `#/requests/${encodeURIComponent(wanted.value.trim())}`;
  }

  async function showing(views) {
    const own = (asked += 1);
    try {
      const found = await views();
      if (own === asked) place.replaceChildren(...found);
    } catch (error) {
      if (own === asked) place.replaceChildren(refused(error, NEEDS, askForKeys));
    }
  }

  async function one(id) {
    const back = h("a", { href: "#/requests" }, "← All requests");
    return [back, ...recordViews(await get(`v1/requests/${encodeURIComponent(id)}`))];
  }

  async function all() {
    const rows = h("tbody");
    const older = h("button", { type: "button", onclick: () => more(older.dataset.after) }, "Older requests");

    async function more(after) {
      const page = await get(`v1/requests?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
      rows.append(...page.data.map(row));
      older.hidden = !page.has_more;
      older.dataset.after = page.last_id;
    }

    await more("");
    if (!rows.hasChildNodes()) return [empty("No request has ended yet.")];
    const head = COLUMNS.map(([name, look]) => h("th", { scope: "col", class: look ?? null }, name));
    const table = h("table", { class: "list" }, h("caption", { class: "unseen" }, "Requests, newest first"), h("thead", null, h("tr", null, head)), rows);
    return [h("div", { class: "panel scroll", tabindex: "0", role: "region", "aria-label": "Requests, newest first" }, table), older];
  }

  return {
    element,
    show(id) {
      wanted.value = id;
      return showing(() => (id ? one(id) : all()));
    },
    hide() {
      asked += 1;
    },
  };
}

function row(record) {
  const good = record.outcome === "ok";
  const why = [record.status || null, record.error_code].filter(Boolean).join(" ");
  return h("tr", null,
    h("td", { class: "num-left" }, clock(record.opened)),
    h("td", null, h("span", { class: `badge ${good ? "good" : "bad"}`, title: good ? null : why }, record.outcome)),
    h("td", null, h("a", { class: "mono cut", href: `#/requests/${encodeURIComponent(record.id)}`, title: record.id }, record.id)),
    h("td", null, record.class), h("td", null, record.model || record.model_asked),
    h("td", { class: "num" }, count(record.prompt_tokens)), h("td", { class: "num" }, count(record.completion_tokens)),
    h("td", { class: "num" }, ms(record.ttft_ms)), h("td", { class: "num" }, ms(record.total_ms)),
    h("td", { class: "when" }, phaseBar(partsOfRecord(record.phases_ms))));
}
