// Requests looked up by their id, and those that this tab made.

import { get } from "../client.js";
import { h } from "../dom.js";
import { empty, refused } from "../notice.js";
import { visited } from "../visited.js";
import { recordViews } from "./record.js";

const NEEDS = "A record is shown to the tenant whose request it was.";

export function requests({ askForKeys }) {
  const wanted = h("input", {
    type: "search", placeholder: "x-request-id, or the id of an answer", spellcheck: "false", autocomplete: "off", class: "mono", maxlength: "128",
  });
  const found = h("div", { class: "stack" });
  const recent = h("nav", { class: "panel stack", "aria-label": "Recent requests" });
  const element = h("div", { class: "requests stack" },
    h("h1", null, "Requests"),
    h("form", { class: "row", onsubmit: lookUp }, h("label", { class: "grow field inline" }, h("span", null, "Request"), wanted),
      h("button", { type: "submit", class: "main" }, "Look up")),
    h("div", { class: "beside" }, recent, found));

  function lookUp(event) {
    event.preventDefault();
    location.hash = `#/requests/${encodeURIComponent(wanted.value.trim())}`;
  }

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
        if (wanted.value === id) found.replaceChildren(...recordViews(record));
      } catch (error) {
        found.replaceChildren(refused(error, NEEDS, askForKeys));
      }
    },
    hide() {},
  };
}
