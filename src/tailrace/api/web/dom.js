// Makes elements. Whatever comes in as data becomes a text node or an attribute's value, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `on...` are listeners, true and false are bare attributes, null and false children are left out. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function set(element, name, value) {
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (value === false || value === null || value === undefined) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : value);
}

/** Changes an element's text only when it differs, so that selections and readers are not disturbed. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Speaks to those who do not see the screen. */
export function announce(text) {
  say(document.getElementById("said"), text);
}
