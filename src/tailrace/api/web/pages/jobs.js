// Batches of one's own: how far they are.

import { get } from "../client.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { empty, refused } from "../notice.js";
import { liveTable } from "../table.js";

const NEEDS = "Jobs are shown to the tenant that made them.";

export function jobs({ askForKeys }) {
  const table = liveTable("Batches", [
    { name: "batch", text: (batch) => batch.id },
    { name: "status", text: (batch) => batch.status },
    { name: "endpoint", text: (batch) => batch.endpoint },
    { name: "made", text: (batch) => new Date(batch.created_at * 1000).toLocaleString() },
    { name: "done", number: true, text: (batch) => count(batch.request_counts?.completed) },
    { name: "failed", number: true, text: (batch) => count(batch.request_counts?.failed) },
    { name: "of", number: true, text: (batch) => count(batch.request_counts?.total) },
  ], (batch) => batch.id, "There are no batches.");
  const trouble = h("div");
  table.element.hidden = true;
  return {
    element: h("div", { class: "jobs stack" }, h("h1", null, "Jobs"), trouble, table.element),
    async show() {
      try {
        table.update((await get("v1/batches?limit=100")).data);
        table.element.hidden = false;
        trouble.replaceChildren();
      } catch (error) {
        trouble.replaceChildren(error.status === 404 ? empty("This server takes no batches.") : refused(error, NEEDS, askForKeys));
      }
    },
    hide() {},
  };
}
