// Small charts of the last minutes: one line for each series, or areas on top of each other.

import { h, say, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 64;

/** `series`: { name, look, of(sample) -> number }. `format` writes values. Points come one a second. */
export function timeChart(title, series, format, { stacked = false, points = 120 } = {}) {
  const past = [];
  const paths = series.map(({ look }) => svg("path", { class: `${stacked ? "area" : "line"} ${look}`, "vector-effect": "non-scaling-stroke" }));
  const top = h("span", { class: "quiet num" });
  const values = series.map(() => h("b", { class: "num" }));
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, paths);
  const legend = series.map(({ name, look }, at) => h("span", null, h("i", { class: `dot ${look}` }), `${name} `, values[at]));
  const element = h("figure", { class: "chart" }, h("figcaption", null, h("span", null, title), top), drawing, h("div", { class: "legend" }, legend));

  function heights() {
    return past.map((sample) => {
      let below = 0;
      return sample.map((value) => (stacked ? (below += value) : value));
    });
  }

  function draw() {
    const drawn = heights();
    const most = Math.max(...drawn.flat(), 0) || 1;
    const x = (at) => (WIDTH * (points - drawn.length + at)) / (points - 1);
    const y = (value) => HEIGHT - 1 - ((HEIGHT - 2) * value) / most;
    paths.forEach((path, line) => {
      const over = drawn.map((sample, at) => `${x(at).toFixed(1)},${y(sample[line]).toFixed(1)}`);
      const under = drawn.map((sample, at) => `${x(at).toFixed(1)},${y(line ? sample[line - 1] : 0).toFixed(1)}`).reverse();
      path.setAttribute("d", over.length < 2 ? "" : `M${over.join("L")}${stacked ? `L${under.join("L")}Z` : ""}`);
    });
    say(top, format(Math.max(...drawn.flat(), 0)));
  }

  return {
    element,
    add(sample) {
      past.push(series.map(({ of }) => of(sample)));
      if (past.length > points) past.shift();
      past.at(-1).forEach((value, at) => say(values[at], format(value)));
      drawing.setAttribute("aria-label", `${title}: ${series.map(({ name }, at) => `${name} ${format(past.at(-1)[at])}`).join(", ")}`);
      draw();
    },
  };
}
