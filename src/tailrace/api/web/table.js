// Tables that change while somebody looks: rows are kept by their key, so that focus and selections stay.

import { h, say } from "./dom.js";

/**
 * `columns`: { name, number, text(item) } or { name, make(key) -> { node, update(item) } }.
 * `key(item)` tells rows apart. `none` is said when there are no rows.
 */
export function liveTable(caption, columns, key, none) {
  const body = h("tbody");
  const nothing = h("p", { class: "empty" }, none);
  const head = columns.map(({ name, number }) => h("th", { scope: "col", class: number ? "num" : null }, name));
  const table = h("table", null, h("caption", { class: "unseen" }, caption), h("thead", null, h("tr", null, head)), body);
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table, nothing);
  const rows = new Map();

  function made(name) {
    const cells = columns.map((column) => column.make?.(name) ?? textCell(column));
    const row = h("tr", null, cells.map(({ node }, at) => h("td", { class: columns[at].number ? "num" : null }, node)));
    return { row, cells };
  }

  return {
    element,
    update(items) {
      const seen = new Set(items.map(key));
      for (const [name, { row }] of rows) if (!seen.has(name)) { row.remove(); rows.delete(name); }
      items.forEach((item, at) => {
        const name = key(item);
        if (!rows.has(name)) rows.set(name, made(name));
        const { row, cells } = rows.get(name);
        for (const cell of cells) cell.update(item);
        if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
      });
      table.hidden = items.length === 0;
      nothing.hidden = items.length > 0;
    },
  };
}

function textCell({ text, title }) {
  const node = h("span");
  return { node, update(item) {
    say(node, text(item));
    if (title) node.title = title(item);
  } };
}
