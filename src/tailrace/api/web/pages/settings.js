// What a playground request asks for besides its messages. Empty fields are not sent: the server's defaults hold.

import { h } from "../dom.js";

// name, label, placeholder, attributes of the input
const NUMBERS = [
  ["temperature", "Temperature", "1", { min: "0", max: "2", step: "any" }],
  ["top_p", "Top p", "1", { min: "0", max: "1", step: "any" }],
  ["max_tokens", "Max tokens", "what fits", { min: "1", step: "1" }],
  ["seed", "Seed", "random", { step: "1" }],
];
const MORE = [
  ["top_k", "Top k", "off", { min: "-1", step: "1" }],
  ["min_p", "Min p", "0", { min: "0", max: "1", step: "any" }],
  ["presence_penalty", "Presence", "0", { min: "-2", max: "2", step: "any" }],
  ["frequency_penalty", "Frequency", "0", { min: "-2", max: "2", step: "any" }],
  ["repetition_penalty", "Repetition", "1", { min: "0.01", max: "10", step: "any" }],
];
const EXAMPLE = `{
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 40},
    "population": {"type": "integer"}
  },
  "required": ["name", "population"]
}`;

export function settings() {
  const model = h("select", { id: "model" }, h("option", { value: "" }, "the server's first"));
  const system = h("textarea", { rows: "2", placeholder: "none" });
  const numbers = Object.fromEntries([...NUMBERS, ...MORE].map(([name, , placeholder, bounds]) => [
    name, h("input", { type: "number", inputmode: "decimal", placeholder, ...bounds }),
  ]));
  const stop = h("textarea", { rows: "2", placeholder: "none" });
  const tier = select(["auto", "priority", "flex"]);
  const format = select(["text", "json", "schema"], ["Text", "JSON", "JSON Schema"]);
  const schema = h("textarea", { rows: "10", class: "mono", spellcheck: "false" });
  const schemaField = field("Schema", schema);
  const place = h("div");
  const own = ([name, label]) => field(label, numbers[name]);
  schema.value = EXAMPLE;
  schemaField.hidden = true;
  format.addEventListener("change", () => { schemaField.hidden = format.value !== "schema"; });

  const form = h("form", { class: "stack", onsubmit: (event) => event.preventDefault() },
    place, field("Model", model), field("System prompt", system),
    h("div", { class: "pairs" }, NUMBERS.map(own)),
    field("Answer as", format), schemaField,
    h("details", null, h("summary", null, "More parameters"), h("div", { class: "stack" },
      h("div", { class: "pairs" }, MORE.map(own), field("Service tier", tier)),
      field("Stop strings, one a line", stop))));
  const element = h("details", { class: "panel options", open: matchMedia("(min-width: 800px)").matches },
    h("summary", null, "Settings"), form);

  function checked() {
    schema.setCustomValidity(format.value === "schema" ? problem(schema.value) : "");
    if (form.checkValidity()) return true;
    element.open = true;
    for (const inner of element.querySelectorAll("details")) if (inner.querySelector(":invalid")) inner.open = true;
    return form.reportValidity() && false;
  }

  return {
    element,
    /** The body of a streamed chat; null when a field is wrong, which says so itself. */
    body(messages) {
      if (!checked()) return null;
      const told = system.value.trim() ? [{ role: "system", content: system.value }] : [];
      const body = { messages: [...told, ...messages], stream: true, stream_options: { include_usage: true } };
      if (model.value) body.model = model.value;
      for (const [name, input] of Object.entries(numbers)) if (input.value !== "") body[name] = number(name, input.value);
      const stops = stop.value.split("\n").filter(Boolean);
      if (stops.length) body.stop = stops;
      if (tier.value !== "auto") body.service_tier = tier.value;
      if (format.value === "json") body.response_format = { type: "json_object" };
      if (format.value === "schema") {
        const given = { name: "answer", strict: true, schema: JSON.parse(schema.value) };
        body.response_format = { type: "json_schema", json_schema: given };
      }
      return body;
    },

    models(cards) {
      const chosen = model.value;
      model.replaceChildren(...cards.map(({ id, loaded, max_model_len }) =>
        h("option", { value: id }, `${id}${loaded ? ` · ${max_model_len} tokens` : " · not loaded yet"}`)));
      if (cards.some(({ id }) => id === chosen)) model.value = chosen;
      place.replaceChildren();
    },

    refused(notice) {
      place.replaceChildren(notice);
    },
  };
}

function problem(text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found) ? "" : "A schema is a JSON object.";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}

/** Seeds may be larger than what JavaScript counts exactly; those are written as they are. */
function number(name, text) {
  return name === "seed" && !Number.isSafeInteger(Number(text)) && JSON.rawJSON ? JSON.rawJSON(text) : Number(text);
}

function select(values, labels = values) {
  return h("select", null, values.map((value, at) => h("option", { value }, labels[at])));
}

function field(name, input) {
  return h("label", { class: "field" }, h("span", null, name), input);
}
