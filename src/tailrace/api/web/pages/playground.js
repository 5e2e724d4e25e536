// A conversation with a model: what is sent, how the answer comes, where its time went.

import { get, stream } from "../client.js";
import { announce, h, say } from "../dom.js";
import { count, ms, number } from "../format.js";
import { failure, refused } from "../notice.js";
import { phaseBar, partsOfTimings } from "../phases.js";
import { render } from "../markdown.js";
import { inspector } from "./inspector.js";
import { settings } from "./settings.js";

const NEEDS = "The playground needs a key with the scope inference.";

export function playground({ askForKeys }) {
  const options = settings();
  const inspected = inspector();
  const log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const composer = h("textarea", {
    id: "composer", rows: "3", placeholder: "Ask something", "aria-label": "Message", "aria-describedby": "composer-hint",
    onkeydown: typed,
  });
  const sending = h("button", { type: "submit", class: "main" }, "Send");
  const stopping = h("button", { type: "button", class: "stop", hidden: true, onclick: () => running?.abort() }, "Stop");
  const clearing = h("button", { type: "button", class: "plain", onclick: clear }, "New chat");
  const element = h("div", { class: "playground" },
    options.element,
    h("section", { class: "talk", "aria-label": "Chat" }, log,
      h("form", { class: "composer", onsubmit: submit }, composer,
        h("div", { class: "row" }, h("small", { id: "composer-hint", class: "quiet" },
          "Enter sends, Shift+Enter is a new line, Esc stops"),
        h("span", { class: "grow" }), clearing, stopping, sending))),
    inspected.element);

  let turns = []; // { role, content }, of those that were answered
  let running = null; // the AbortController of the answer that comes
  welcome();

  function welcome() {
    log.replaceChildren(h("div", { class: "welcome" }, h("h1", null, "Playground"),
      h("p", { class: "quiet" }, "What you send goes to this server alone. Each answer says where its time went; “Inspect” shows the prompt as the model saw it.")));
  }

  function typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit(event);
    }
  }

  function stops(event) {
    if (event.key === "Escape" && running) running.abort();
  }

  function clear() {
    running?.abort();
    turns = [];
    welcome();
    inspected.clear();
    composer.focus();
  }

  function submit(event) {
    event.preventDefault();
    const text = composer.value.trim();
    if (!text || running) return;
    const body = options.body([...turns, { role: "user", content: text }]);
    if (body === null) return; // a field says what is wrong
    log.querySelector(".welcome")?.remove();
    log.append(h("article", { class: "turn user" }, h("h2", { class: "who" }, "You"), h("div", { class: "said plain-text" }, text)));
    composer.value = "";
    answer(text, body);
  }

  async function answer(text, body) {
    const shown = answerElement("response_format" in body, follow);
    log.append(shown.element);
    log.scrollTop = log.scrollHeight;
    busy(new AbortController());
    const own = running;
    const since = performance.now();
    const got = { text: "", thoughts: "", finish: null, timings: null, requestId: null, body };
    try {
      const events = stream("v1/chat/completions", body, { signal: own.signal, began: (headers) => {
        got.requestId = headers.get("x-request-id");
      } });
      for await (const event of events) {
        collect(got, event);
        shown.grow(got);
      }
      shown.end(got, () => inspected.show(got));
      announce(`Answer complete, ${count(got.timings?.completion_tokens)} tokens`);
    } catch (error) {
      if (error.name === "AbortError") shown.stopped(got, performance.now() - since, () => inspected.show(got));
      else failed(error, shown, got, () => answer(text, body));
    } finally {
      if (running === own) busy(null);
    }
    if (!log.contains(shown.element)) return; // another chat has begun
    if (got.text) turns.push({ role: "user", content: text }, { role: "assistant", content: got.text });
    if (got.timings) inspected.show(got);
  }

  function failed(error, shown, got, retry) {
    announce("The answer failed");
    const again = h("button", { type: "button", onclick: () => {
      if (running) return;
      shown.element.remove();
      retry();
    } }, "Try again");
    shown.failed(got, error.status === 401 || error.status === 403 ? refused(error, NEEDS, askForKeys) : failure(error, again));
  }

  function busy(controller) {
    running = controller;
    stopping.hidden = !controller;
    sending.hidden = Boolean(controller);
    log.setAttribute("aria-busy", String(Boolean(controller)));
    if (controller) announce("Answering");
  }

  /** Stay at the end, unless the reader has gone up. */
  function follow() {
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  }

  async function models() {
    try {
      options.models((await get("v1/models")).data);
    } catch (error) {
      options.refused(refused(error, NEEDS, askForKeys));
    }
  }

  return {
    element,
    show() {
      document.addEventListener("keydown", stops);
      models();
    },
    hide() {
      document.removeEventListener("keydown", stops);
    },
  };
}

function collect(got, event) {
  const choice = event.choices[0];
  got.model = event.model;
  got.timings = choice?.timings ?? event.timings ?? got.timings;
  if (!choice) return;
  got.text += choice.delta.content ?? "";
  got.thoughts += choice.delta.reasoning_content ?? "";
  got.finish = choice.finish_reason ?? got.finish;
}

/** The place of one answer: grows with it, ends with its figures. `structured`: it is data, shown as it is. `grown` is
 * called when it has become taller. */
function answerElement(structured, grown) {
  const text = structured ? h("pre", { class: "said", tabindex: "0", "aria-label": "structured answer" }) : h("div", { class: "said prose" });
  const thoughts = h("div", { class: "plain-text quiet" });
  const thinking = h("details", { class: "thoughts", hidden: true }, h("summary", null, "Thoughts"), thoughts);
  const who = h("h2", { class: "who" }, "Model");
  const foot = h("footer", { class: "figures" }, h("span", { class: "waiting" }, "waiting for the first token"));
  const element = h("article", { class: "turn model" }, who, thinking, text, foot);
  let due = 0;

  function paint(got) {
    due = 0;
    if (got.model) say(who, got.model);
    if (structured) say(text, got.text);
    else render(text, got.text);
    if (got.thoughts) {
      thinking.hidden = false;
      say(thoughts, got.thoughts);
    }
    grown();
  }

  function close(got, content) {
    cancelAnimationFrame(due);
    paint(got);
    foot.replaceChildren(...content);
    grown();
  }

  return {
    element,
    grow(got) {
      if (got.text && foot.firstChild?.className === "waiting") foot.replaceChildren();
      if (!due) due = requestAnimationFrame(() => paint(got));
    },
    end(got, inspect) {
      if (structured) got.text = indented(got.text);
      close(got, [phaseBar(partsOfTimings(got.timings)), figures(got, inspect)]);
    },
    stopped(got, took, inspect) {
      close(got, [h("p", { class: "quiet" }, `Stopped by you after ${ms(took)} `, inspectButton(inspect))]);
    },
    failed(got, notice) {
      close(got, [notice]);
    },
  };
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut short by max_tokens
  }
}

function figures(got, inspect) {
  const times = got.timings;
  const fact = (name, value, title) => h("span", { title }, h("b", null, value), ` ${name}`);
  const cached = times.cached_tokens ? ` (${count(times.cached_tokens)} cached)` : "";
  return h("div", { class: "row facts-line" },
    fact("first token", ms(times.ttft_ms), "from the socket to the first token"),
    fact("tokens/s", number(times.tokens_per_second), "over prefill and decode"),
    fact(`prompt${cached}`, count(times.prompt_tokens), "tokens of the prompt"),
    fact("answer", count(times.completion_tokens), "tokens of the answer"),
    fact("total", ms(times.total_ms), "from the socket to the end"),
    h("span", { title: "why it ended" }, got.finish),
    h("span", { class: "grow" }), inspectButton(inspect));
}

function inspectButton(inspect) {
  return h("button", { type: "button", class: "plain small", onclick: inspect }, "Inspect");
}
