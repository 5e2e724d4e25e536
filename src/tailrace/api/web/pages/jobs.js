// Batches of one's own: made of a file, looked at while they run, ended, and what came out of them.

import { download, get, post, upload } from "../client.js";
import { announce, h, say } from "../dom.js";
import { clock, count } from "../format.js";
import { failure, refused } from "../notice.js";
import { liveTable } from "../table.js";

const NEEDS = "Jobs are shown to the tenant that made them.";
const EVERY = 2000; // milliseconds, while one is on its way
const ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
const GOING = new Set(["validating", "in_progress", "finalizing", "cancelling"]);

export function jobs({ askForKeys }) {
  const trouble = h("div");
  const table = batches(tried);
  const list = h("section", { class: "panel", hidden: true }, table.element);
  const making = form((file, endpoint) => tried(async () => {
    const { id } = await upload("v1/files", { purpose: "batch", file });
    await post("v1/batches", { input_file_id: id, endpoint, completion_window: "24h" });
    announce("The batch is made");
  }));
  let timer = 0;
  let shown = false;

  /** Does something, then looks again; what was refused is said. */
  async function tried(work) {
    try {
      await work();
      await look();
    } catch (error) {
      trouble.replaceChildren(failure(error));
    }
  }

  async function look() {
    clearTimeout(timer);
    try {
      const { data } = await get("v1/batches?limit=100");
      list.hidden = making.hidden = false;
      trouble.replaceChildren();
      table.update(data);
      if (shown && data.some(({ status }) => GOING.has(status))) timer = setTimeout(look, EVERY);
    } catch (error) {
      list.hidden = making.hidden = true;
      trouble.replaceChildren(refused(error, NEEDS, askForKeys));
    }
  }

  return {
    element: h("div", { class: "jobs stack" }, h("h1", null, "Jobs"), trouble, making, list),
    show() {
      shown = true;
      return look();
    },
    hide() {
      shown = false;
      clearTimeout(timer);
    },
  };
}

function form(make) {
  const file = h("input", { type: "file", accept: ".jsonl", required: true });
  const endpoint = h("select", null, ENDPOINTS.map((path) => h("option", null, path)));
  return h("form", { class: "panel row", hidden: true, onsubmit: async (event) => {
    event.preventDefault();
    await make(file.files[0], endpoint.value);
    event.target.reset();
  } }, h("label", { class: "field grow" }, h("span", null, "Requests, one a line (JSONL)"), file),
  h("label", { class: "field" }, h("span", null, "For the route"), endpoint), h("button", { type: "submit", class: "main" }, "Make a batch"));
}

function batches(tried) {
  return liveTable("Batches, newest first", [
    { name: "batch", text: (batch) => batch.id, title: (batch) => batch.id },
    { name: "made", text: (batch) => clock(batch.created_at) },
    { name: "route", text: (batch) => batch.endpoint },
    { name: "status", text: (batch) => batch.status.replaceAll("_", " "), title: wrong },
    { name: "done", number: true, make: progress },
    { name: "failed", number: true, text: (batch) => count(batch.request_counts.failed) },
    { name: "tokens", number: true, text: (batch) => count(batch.usage?.total_tokens) },
    { name: "", make: () => actions(tried) },
  ], (batch) => batch.id, "There are no batches.");
}

/** What its file has that is no request, by line. */
function wrong(batch) {
  return (batch.errors?.data ?? []).map(({ line, message }) => `line ${line}: ${message}`).join("\n");
}

function progress() {
  const bar = h("progress", { "aria-label": "lines that are done" });
  const text = h("span");
  return { node: h("span", { class: "progress" }, bar, text), update({ request_counts: { completed, failed, total } }) {
    bar.max = Math.max(total, 1);
    bar.value = completed + failed;
    say(text, `${count(completed + failed)} / ${count(total)}`);
  } };
}

function actions(tried) {
  let batch = null;
  const button = (name, act) => h("button", { type: "button", class: "small plain", onclick: () => tried(act) }, name);
  const fetched = (field, name) => button(name, () => download(`v1/files/${encodeURIComponent(batch[field])}/content`, `${batch.id}-${name.toLowerCase()}.jsonl`));
  const ending = button("Cancel", () => post(`v1/batches/${encodeURIComponent(batch.id)}/cancel`, {}));
  const output = fetched("output_file_id", "Output");
  const errors = fetched("error_file_id", "Errors");
  return { node: h("span", { class: "row" }, ending, output, errors), update(item) {
    batch = item;
    ending.hidden = !GOING.has(item.status) || item.status === "cancelling";
    output.hidden = !item.output_file_id;
    errors.hidden = !item.error_file_id;
  } };
}
