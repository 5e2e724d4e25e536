// The server as it is, looked at once a second while somebody looks.

import { get, post } from "../client.js";
import { timeChart } from "../chart.js";
import { announce, h, say } from "../dom.js";
import { count, fixed, number, seconds } from "../format.js";
import { refused } from "../notice.js";
import { liveTable } from "../table.js";
import { kvMap } from "./kv_map.js";

const EVERY = 1000; // milliseconds
const NEEDS = "This page needs a key with the scope admin.";
const TAILS = { queue_ms: "queue", ttft_ms: "first token (TTFT)", tpot_ms: "per token (TPOT)", total_ms: "end to end" };

export function live({ askForKeys }) {
  const parts = board();
  const trouble = h("div");
  const pausing = h("button", { type: "button", "aria-pressed": "false", onclick: pause }, "Pause");
  const element = h("div", { class: "live stack" },
    h("div", { class: "row" }, h("h1", null, "Live"), parts.model, h("span", { class: "grow" }), pausing),
    trouble, parts.element);
  let timer = 0;
  let paused = false;
  let looking = null;
  let before = null;

  function pause() {
    paused = !paused;
    pausing.setAttribute("aria-pressed", String(paused));
    if (paused) stop();
    else look();
  }

  function stop() {
    clearTimeout(timer);
    looking?.abort();
    looking = null;
  }

  async function look() {
    stop();
    const own = (looking = new AbortController());
    try {
      const state = await get("admin/state", { admin: true, signal: own.signal });
      trouble.replaceChildren();
      parts.element.hidden = false;
      const now = performance.now();
      parts.update(state, rates(before, { now, state }));
      before = { now, state };
    } catch (error) {
      if (error.name === "AbortError") return;
      troubled(error);
    }
    if (looking === own && !document.hidden) timer = setTimeout(look, EVERY);
  }

  function troubled(error) {
    if (!before) parts.element.hidden = true;
    if (trouble.dataset.said !== error.message || !trouble.hasChildNodes()) trouble.replaceChildren(refused(error, NEEDS, askForKeys));
    trouble.dataset.said = error.message;
  }

  function seen() {
    if (document.hidden) stop();
    else if (!paused) look();
  }

  return {
    element,
    show() {
      document.addEventListener("visibilitychange", seen);
      if (!paused) look();
    },
    hide() {
      document.removeEventListener("visibilitychange", seen);
      stop();
    },
  };
}

/** What happened each second between two looks; zeros for the first, and for a server that has started anew. */
function rates(before, after) {
  const elapsed = before && after.state.uptime_s > before.state.uptime_s ? (after.now - before.now) / 1000 : 0;
  const rate = (read) => (elapsed > 0 ? Math.max(read(after.state) - read(before.state), 0) / elapsed : 0);
  return {
    decode: rate((state) => state.tokens.generated),
    prefill: rate((state) => state.tokens.prompt - state.tokens.cached),
    steps: rate((state) => state.step.count),
  };
}

function board() {
  const model = h("span", { class: "quiet" });
  const figures = headline();
  const charts = chartsOf();
  const kv = kvMap();
  const first = running();
  const tables = [first, queues(), tails(), rejects(), predictions(), tenants()];
  const element = h("div", { class: "board", hidden: true },
    figures.element, h("div", { class: "charts" }, charts.map((chart) => h("section", { class: "panel" }, chart.element))),
    panel(first), h("section", { class: "panel wide" }, h("h2", null, "KV cache"), kv.element), ...tables.slice(1).map(panel));
  return {
    model, element,
    update(state, rate) {
      say(model, `${state.model}${state.draining ? " · stopping: takes no new work" : ""} · up ${seconds(state.uptime_s)}`);
      figures.update(state, rate);
      for (const chart of charts) chart.add({ state, rate });
      kv.update(state.kv);
      for (const { table, rows } of tables) table.update(rows(state));
    },
  };
}

function panel({ title, size, table }) {
  return h("section", { class: `panel ${size ?? ""}` }, h("h2", null, title), table.element);
}

function headline() {
  const tiles = {
    Running: (state) => count(state.requests.running),
    Waiting: (state) => count(state.requests.waiting),
    "Tokens/s": (_, rate) => number(rate.decode),
    "Steps/s": (_, rate) => number(rate.steps),
    "Step": (state) => `${number(state.step.seconds * 1000)} ms`,
    "KV used": (state) => `${number((100 * state.kv.referenced) / Math.max(state.kv.total, 1))} %`,
    Refused: (state) => count(Object.values(state.rejects).reduce((sum, one) => sum + one, 0)),
  };
  const shown = Object.keys(tiles).map(() => h("dd", { class: "num" }, "–"));
  const element = h("dl", { class: "tiles" }, Object.keys(tiles).map((name, at) => h("div", null, h("dt", null, name), shown[at])));
  return { element, update(state, rate) {
    Object.values(tiles).forEach((read, at) => say(shown[at], read(state, rate)));
  } };
}

function chartsOf() {
  const made = [
    { name: "decode", look: "p-decode", of: ({ rate }) => rate.decode },
    { name: "prefill", look: "p-prefill", of: ({ rate }) => rate.prefill },
  ];
  const perStep = made.map((each) => ({ ...each, of: (sample) => each.of(sample) / Math.max(sample.rate.steps, 1) }));
  return [
    timeChart("Requests", [
      { name: "running", look: "p-decode", of: ({ state }) => state.requests.running },
      { name: "waiting", look: "p-queue", of: ({ state }) => state.requests.waiting },
    ], count, { stacked: true }),
    timeChart("Tokens per second", made, number, { stacked: true }),
    timeChart("Tokens per step", perStep, number, { stacked: true }),
    timeChart("Step time", [{ name: "ms", look: "p-prefill", of: ({ state }) => state.step.seconds * 1000 }], number),
    timeChart("KV blocks", [
      { name: "in use", look: "k-used", of: ({ state }) => state.kv.referenced },
      { name: "cached", look: "k-cached", of: ({ state }) => state.kv.cached },
    ], count, { stacked: true }),
  ];
}

function queues() {
  const table = liveTable("Waiting requests by class and tenant", [
    { name: "class", text: (line) => line.class },
    { name: "tenant", text: (line) => line.tenant },
    { name: "requests", number: true, text: (line) => count(line.requests) },
    { name: "prompt tokens", number: true, text: (line) => count(line.prompt_tokens) },
    { name: "oldest", number: true, text: (line) => seconds(line.oldest_s) },
  ], (line) => `${line.class}/${line.tenant}`, "Nothing waits.");
  return { title: "Queues", size: "wide", table, rows: (state) => [...state.queues].sort((a, b) => b.requests - a.requests) };
}

function running() {
  const table = liveTable("Running requests", [
    { name: "request", text: (run) => run.id, title: (run) => run.id },
    { name: "tenant", text: (run) => run.tenant },
    { name: "class", text: (run) => run.class },
    { name: "phase", make: phase },
    { name: "prompt", number: true, text: (run) => count(run.prompt_tokens) },
    { name: "cached", number: true, text: (run) => count(run.cached_tokens) },
    { name: "answer", number: true, make: progress },
    { name: "age", number: true, text: (run) => seconds(run.age_s) },
    { name: "", make: cancelButton },
  ], (run) => run.id, "Nothing runs.");
  return { title: "Running", size: "full", table, rows: (state) => [...state.running].sort((a, b) => b.age_s - a.age_s) };
}

function phase() {
  const dot = h("i", { class: "dot" });
  const name = h("span");
  return { node: h("span", null, dot, name), update(run) {
    dot.className = `dot p-${run.phase === "decode" ? "decode" : "prefill"}`;
    say(name, run.phase);
  } };
}

function progress() {
  const bar = h("progress", { "aria-label": "tokens of the answer" });
  const text = h("span");
  return { node: h("span", { class: "progress" }, bar, text), update(run) {
    bar.max = Math.max(run.max_tokens, 1);
    bar.value = run.generated;
    say(text, `${count(run.generated)} / ${count(run.max_tokens)}`);
  } };
}

/** Asks once more: what is ended is somebody's. */
function cancelButton(id) {
  let sure = false;
  const button = h("button", { type: "button", class: "small plain", "aria-label": `Cancel ${id}`, onclick, onblur: () => ask(false) }, "Cancel");
  function ask(value) {
    sure = value;
    say(button, sure ? "Really?" : "Cancel");
    button.setAttribute("aria-label", `${sure ? "Really cancel" : "Cancel"} ${id}`);
  }
  async function onclick() {
    if (!sure) return ask(true);
    button.disabled = true;
    try {
      await post(`admin/requests/${encodeURIComponent(id)}/cancel`, {}, { admin: true });
      announce("Cancelled");
    } catch (error) {
      announce(error.message);
      say(button, "failed");
      button.title = error.message;
    }
  }
  return { node: button, update() {} };
}

function tenants() {
  const limits = (tenant) => Object.entries(tenant.limits).map(([name, value]) => `${name.replaceAll("_", " ")} ${count(value)}`).join(", ") || "none";
  const table = liveTable("Tenants", [
    { name: "tenant", text: (tenant) => tenant.name },
    { name: "weight", number: true, text: (tenant) => number(tenant.weight) },
    { name: "priority", text: (tenant) => tenant.priority },
    { name: "running", number: true, text: (tenant) => count(tenant.running) },
    { name: "waiting", number: true, text: (tenant) => count(tenant.waiting) },
    { name: "device s", number: true, text: (tenant) => number(tenant.device_seconds) },
    { name: "limits", text: limits, title: limits },
  ], (tenant) => tenant.name, "There are none.");
  return { title: "Tenants", size: "full", table, rows: (state) => state.tenants };
}

function tails() {
  const point = (name, key) => ({ name, number: true, text: (line) => fixed(line[key], 1) });
  const table = liveTable("Latency of the last requests, in milliseconds", [
    { name: "ms", text: (line) => line.name }, point("P50", "p50"), point("P95", "p95"), point("P99", "p99"),
    point("max", "max"), { name: "requests", number: true, text: (line) => count(line.count) },
  ], (line) => line.name, "No request has ended yet.");
  const rows = (state) => Object.entries(TAILS).filter(([key]) => state.tails[key]).map(([key, name]) => ({ name, ...state.tails[key] }));
  return { title: "Latency", size: "wide", table, rows };
}

function rejects() {
  const table = liveTable("Refused requests by reason, since the start", [
    { name: "reason", text: ([reason]) => reason },
    { name: "requests", number: true, text: ([, times]) => count(times) },
  ], ([reason]) => reason, "Nothing was refused.");
  return { title: "Refused", table, rows: (state) => Object.entries(state.rejects).sort((a, b) => b[1] - a[1]) };
}

function predictions() {
  const table = liveTable("Actual over predicted; 1 is exact", [
    { name: "actual / predicted", text: ([name]) => name },
    { name: "P50", number: true, text: ([, found]) => fixed(found.p50, 2) },
    { name: "P90", number: true, text: ([, found]) => fixed(found.p90, 2) },
  ], ([name]) => name, "No request has ended yet.");
  return { title: "Predictions", table, rows: (state) => Object.entries(state.prediction) };
}
