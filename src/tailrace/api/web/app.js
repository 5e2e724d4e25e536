// The frame: which page is shown, by the address's hash, the keys and the theme.

import { announce, h, say } from "./dom.js";
import { askForKeys } from "./keys.js";
import { jobs } from "./pages/jobs.js";
import { live } from "./pages/live.js";
import { playground } from "./pages/playground.js";
import { report } from "./pages/report.js";
import { requests } from "./pages/requests.js";

// A page: { name, title, element, show(rest), hide() }, made when it is first looked at and kept.
const PAGES = { playground, live, requests, report, jobs };
const TITLES = { playground: "Playground", live: "Live", requests: "Requests", report: "Report", jobs: "Jobs" };
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("main");
const made = new Map();
let shown = null;

function route() {
  const [, name, ...rest] = location.hash.split("/");
  return { name: Object.hasOwn(PAGES, name ?? "") ? name : "playground", rest: decoded(rest.join("/")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const { name, rest } = route();
  if (!made.has(name)) made.set(name, PAGES[name]({ askForKeys: ask }));
  const page = made.get(name);
  if (shown !== page) {
    shown?.hide();
    main.replaceChildren(page.element);
    announce(`${TITLES[name]} page`);
  }
  shown = page;
  document.title = `${TITLES[name]} · tailrace`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.show(rest);
}

function ask() {
  askForKeys(() => {
    shown.hide();
    shown.show(route().rest);
  });
}

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function themeButton() {
  const button = document.getElementById("theme");
  const label = () => say(button, `Theme: ${theme()}`);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("tailrace.theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("tailrace.theme", next);
    }
    label();
  });
  label();
}

document.getElementById("nav").append(
  ...Object.entries(TITLES).map(([name, title]) => h("a", { href: `#/${name}`, "data-page": name }, title)),
);
document.getElementById("keys").addEventListener("click", ask);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the page's
  main.focus();
});
themeButton();
addEventListener("hashchange", show);
show();
