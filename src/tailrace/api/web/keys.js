// The user's keys: in this tab's session, or on this computer if the user says so; never in an address.

import { h } from "./dom.js";

const NAMES = { user: "tailrace.key", admin: "tailrace.admin-key" };
const PLAIN = /^[\x21-\x7e]*$/;

/** The key for a request; admin pages fall back on the only one there is. */
export function keyFor(admin) {
  return (admin && stored(NAMES.admin)) || stored(NAMES.user);
}

function stored(name) {
  return sessionStorage.getItem(name) ?? localStorage.getItem(name) ?? "";
}

function keep(name, value, remember) {
  sessionStorage.removeItem(name);
  localStorage.removeItem(name);
  if (value) (remember ? localStorage : sessionStorage).setItem(name, value);
}

/** Opens the dialog; `changed` is called after keys were saved or forgotten. */
export function askForKeys(changed) {
  const user = field("API key", stored(NAMES.user), "For the playground and your own requests.");
  const admin = field("Admin key", stored(NAMES.admin), "For Live and Report; empty: the API key is used.");
  const remember = h("input", { type: "checkbox", checked: Object.values(NAMES).some((name) => localStorage.getItem(name)) });
  const save = (event) => {
    event.preventDefault();
    keep(NAMES.user, user.input.value.trim(), remember.checked);
    keep(NAMES.admin, admin.input.value.trim(), remember.checked);
    dialog.close();
    changed();
  };
  const forget = () => {
    for (const name of Object.values(NAMES)) keep(name, "", false);
    dialog.close();
    changed();
  };
  const dialog = h("dialog", { "aria-labelledby": "keys-title", onclose: () => dialog.remove() },
    h("form", { class: "stack", onsubmit: save },
      h("h2", { id: "keys-title" }, "Keys"),
      h("p", { class: "quiet" }, "Sent in the Authorization header to this server alone. A server without keys needs none."),
      user.element, admin.element,
      h("label", { class: "check" }, remember, "Remember on this computer"),
      h("p", { class: "quiet" }, "Otherwise they are gone when this tab is closed."),
      h("div", { class: "row end" },
        h("button", { type: "button", class: "plain", onclick: forget }, "Forget both"),
        h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: "main" }, "Save"))));
  document.body.append(dialog);
  dialog.showModal();
}

function field(name, value, hint) {
  const id = name.toLowerCase().replace(" ", "-");
  const input = h("input", {
    id, type: "password", value, autocomplete: "off", spellcheck: "false", maxlength: "500", "aria-describedby": `${id}-hint`,
  });
  input.addEventListener("input", () => {
    input.setCustomValidity(PLAIN.test(input.value.trim()) ? "" : "A key has visible ASCII characters only.");
  });
  const label = h("label", { class: "field" }, h("span", null, name), input);
  return { input, element: h("div", null, label, h("small", { id: `${id}-hint`, class: "quiet" }, hint)) };
}
