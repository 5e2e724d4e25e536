// Errors and empty places, said in words with what can be done.

import { h } from "./dom.js";
import { ms } from "./format.js";

/** A failure as the server worded it. `actions` are buttons or links. */
export function failure(error, ...actions) {
  const facts = [
    error.status ? `status ${error.status}` : null,
    error.code,
    error.param ? `field ${error.param}` : null,
    error.retryAfter ? `try again in ${ms(error.retryAfter)}` : null,
  ].filter(Boolean);
  return h("div", { class: "notice bad", role: "alert" },
    h("p", null, error.message),
    facts.length > 0 && h("p", { class: "quiet mono" }, facts.join(" · ")),
    actions.length > 0 && h("div", { class: "row" }, actions));
}

/** The same, with a button for keys where one is missing or may not. `what` says what the page needs. */
export function refused(error, what, askForKeys) {
  const keys = [401, 403].includes(error.status);
  return failure(error, ...(keys ? [h("span", { class: "quiet" }, what),
    h("button", { type: "button", onclick: askForKeys }, "Enter a key")] : []));
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}
