// Requests of a time by tenant, class, length, model or day. The server makes the sums.

import { get } from "../client.js";
import { h } from "../dom.js";
import { empty, refused } from "../notice.js";

const NEEDS = "This page needs a key with the scope admin.";

export function report({ askForKeys }) {
  const place = h("div", { class: "stack" });
  return {
    element: h("div", { class: "report stack" }, h("h1", null, "Report"), place),
    async show() {
      try {
        place.replaceChildren(h("pre", { class: "panel wrap" }, JSON.stringify(await get("admin/report", { admin: true }), null, 2)));
      } catch (error) {
        place.replaceChildren(error.status === 404 ? empty("This server keeps no ledger, so there is nothing to report from.") : refused(error, NEEDS, askForKeys));
      }
    },
    hide() {},
  };
}
