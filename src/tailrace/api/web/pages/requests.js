// One request's record: when what happened, and why it went the way it did.

import { get } from "../client.js";
import { h } from "../dom.js";
import { ms } from "../format.js";
import { empty, refused } from "../notice.js";
import { partsOfRecord, phaseBar, phaseTable } from "../phases.js";
import { visited } from "../visited.js";

const NEEDS = "A record is shown to the tenant whose request it was.";
// What has a place of its own on the page; the rest of a record is listed as it is.
const PLACED = new Set(["id", "outcome", "phases_ms", "admission", "waited", "limit", "total_ms", "ttft_ms"]);

export function requests({ askForKeys }) {
  const wanted = h("input", { type: "search", name: "id", placeholder: "x-request-id of an answer", spellcheck: "false", autocomplete: "off", class: "mono", maxlength: "128" });
  const found = h("div", { class: "stack" });
  const recent = h("div", { class: "panel stack" });
  const element = h("div", { class: "requests stack" },
    h("h1", null, "Requests"),
    h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      location.hash = `#/requests/${encodeURIComponent(wanted.value.trim())}`;
    } }, h("label", { class: "grow field inline" }, h("span", null, "Request"), wanted), h("button", { type: "submit", class: "main" }, "Look up")),
    h("div", { class: "beside" }, found, recent));

  function list(shown) {
    const links = visited().map((id) => h("li", null,
      h("a", { class: "mono", href: `#/requests/${encodeURIComponent(id)}`, "aria-current": id === shown ? "true" : null }, id)));
    recent.replaceChildren(h("h2", null, "From this tab"),
      links.length ? h("ul", { class: "plain-list" }, links) : empty("Requests that you make in the playground are listed here."));
  }

  return {
    element,
    async show(id) {
      wanted.value = id;
      list(id);
      if (!id) return found.replaceChildren(empty("Each answer names its record in the header x-request-id."));
      try {
        const record = await get(`v1/requests/${encodeURIComponent(id)}`);
        if (wanted.value === id) found.replaceChildren(...views(record));
      } catch (error) {
        found.replaceChildren(refused(error, NEEDS, askForKeys));
      }
    },
    hide() {},
  };
}

function views(record) {
  const parts = partsOfRecord(record.phases_ms ?? {});
  return [
    h("section", { class: "panel stack" },
      h("div", { class: "row" }, h("h2", { class: "mono" }, record.id), h("span", { class: `badge ${record.outcome === "ok" ? "good" : "bad"}` }, record.outcome)),
      h("p", null, h("b", null, ms(record.total_ms)), " in all, ", h("b", null, ms(record.ttft_ms)), " to the first token"),
      phaseBar(parts), phaseTable(parts)),
    h("section", { class: "panel stack" }, h("h2", null, "Why it waited"), waits(record)),
    h("section", { class: "panel stack" }, h("h2", null, "Decisions"), decisions(record)),
    h("section", { class: "panel stack" }, h("h2", null, "Facts"), facts(Object.entries(record).filter(([name, value]) => !PLACED.has(name) && value !== null))),
  ];
}

function waits({ waited }) {
  if (!waited?.length) return empty("It waited for less than a millisecond anywhere.");
  return h("ul", null, waited.map((each) => h("li", null, h("b", null, `${each.phase} ${ms(each.ms)}`), `: ${each.because}`)));
}

function decisions(record) {
  return facts([
    ["class", [record.class, record.class_reason].filter(Boolean).join(": ")],
    ["admission", record.admission],
    ["limit", record.limit],
  ].filter(([, value]) => value));
}

function facts(entries) {
  if (!entries.length) return empty("None were needed.");
  return h("table", { class: "facts" }, h("tbody", null, entries.map(([name, value]) =>
    h("tr", null, h("th", { scope: "row" }, name.replaceAll("_", " ")), h("td", null, shown(value))))));
}

function shown(value) {
  if (value === null || typeof value !== "object") return typeof value === "number" ? String(Math.round(value * 1e4) / 1e4) : String(value);
  return facts(Object.entries(value).filter(([, inner]) => inner !== null));
}
