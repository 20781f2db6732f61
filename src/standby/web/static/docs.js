// The API's own description (openapi.json) as a page: routes by part, then the shapes they speak of.

import { get, takeKeyFromAddress, useKey, wrongKey } from "./api.js";
import { element } from "./parts.js";

const by = (id) => document.getElementById(id);
const shapeId = (name) => `shape-${name}`;

takeKeyFromAddress();
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(event.target.elements.key.value);
  draw();
});
by("find").addEventListener("input", () => find(by("find").value.trim().toLowerCase()));
addEventListener("hashchange", () => { if (takeKeyFromAddress()) draw(); else openTarget(); });
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input")) return;
  event.preventDefault();
  by("find").focus();
});
draw();

async function draw() {
  let api;
  try {
    api = await get("/openapi.json");
  } catch (error) {
    const refused = error.status === 401;
    by("key-form").hidden = !refused;
    by("key-form").querySelector(".error").textContent = wrongKey();
    by("about").textContent = refused ? "The API" : error.message;
    return;
  }
  by("key-form").hidden = true;
  by("about").textContent = `The API, version ${api.info.version}`;
  by("intro").replaceChildren(...prose(api.info.description));
  const parts = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const part = (operation.tags || ["other"])[0];
      parts.set(part, [...(parts.get(part) || []), route(method, path, operation)]);
    }
  }
  by("parts").replaceChildren(...[...parts.keys(), "shapes"].map((part) => chip(part)));
  by("routes").replaceChildren(...[...parts].flatMap(([part, routes]) => [heading(part), ...routes]));
  const shapes = Object.entries(api.components.schemas).sort(([a], [b]) => a.localeCompare(b));
  by("shapes").replaceChildren(heading("shapes"), ...shapes.map(([name, schema]) => shape(name, schema)));
  openTarget();
}

function chip(part) {
  return element("a", { class: "chip", href: `#${slug(part)}` }, part);
}

function heading(part) {
  return element("h2", { id: slug(part) }, part);
}

function slug(text) {
  return `part-${text.replaceAll(" ", "-")}`;
}

function route(method, path, operation) {
  const first = (operation.description || "").split(/[.;:(]\s|[.;]$/)[0].replaceAll("`", "");
  return element(
    "details",
    { id: operation.operationId, "data-words": `${method} ${path} ${operation.description}`.toLowerCase() },
    element(
      "summary",
      {},
      element("span", { class: `method ${method}` }, method.toUpperCase()),
      element("code", {}, path),
      element("small", {}, first),
    ),
    element(
      "div",
      { class: "inside" },
      element("p", {}, ...prose(operation.description)),
      ...parameters(operation.parameters || []),
      ...body(operation.requestBody),
      ...answers(operation.responses),
    ),
  );
}

function parameters(list) {
  if (!list.length) return [];
  const rows = list.map((each) => [
    element("code", {}, each.name),
    each.in,
    type(each.schema),
    about(each.required, each.description, each.schema),
  ]);
  return [element("h3", {}, "Parameters"), table(["name", "in", "type", ""], rows)];
}

function body(request) {
  if (!request) return [];
  const schema = request.content["application/json"].schema;
  const note = request.required ? "needed" : "may be left out";
  return [element("h3", {}, `Body (JSON, ${note})`), element("p", {}, type(schema))];
}

function answers(responses) {
  const rows = Object.entries(responses).map(([status, response]) => [
    element("span", { class: `status ${status < 400 ? "good" : "bad"}` }, status),
    element("span", {}, response.description),
    element("span", {}, ...joined(Object.entries(response.content || {}).map(([kind, { schema }]) => content(kind, schema)), ", ")),
  ]);
  return [element("h3", {}, "Answers"), table(["status", "", "content"], rows)];
}

function content(kind, schema) {
  if (kind === "application/json" || kind === "application/problem+json") return type(schema);
  return element("code", {}, kind);
}

function shape(name, schema) {
  const inside = schema.properties
    ? [table(["field", "type", ""], Object.entries(schema.properties).map(([field, each]) => fieldRow(field, each, schema)))]
    : [element("p", {}, type(schema))];
  return element(
    "details",
    { id: shapeId(name), "data-words": name.toLowerCase() },
    element("summary", {}, element("code", {}, name), element("small", {}, (schema.description || "").replaceAll("`", ""))),
    element("div", { class: "inside" }, element("p", {}, ...prose(schema.description || "")), ...inside),
  );
}

function fieldRow(field, schema, of) {
  const needed = (of.required || []).includes(field) && of.title?.endsWith("Body");
  return [element("code", {}, field), type(schema), about(needed, schema.description, schema)];
}

// What a field means, and below it how large it may be and what it is when it is left out.
function about(needed, text, schema) {
  return element(
    "span",
    {},
    ...(needed ? [element("span", { class: "must" }, "needed ")] : []),
    ...prose(text),
    ...(limits(schema) ? [element("small", {}, limits(schema))] : []),
  );
}

// A schema as people write types: words, links to shapes, "one of" as a | b.
function type(schema) {
  if (!schema) return element("span", {}, "any JSON");
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return element("a", { href: `#${shapeId(name)}` }, name);
  }
  if (schema.enum) return element("code", {}, schema.enum.map((each) => JSON.stringify(each)).join(" | "));
  if (schema.const !== undefined) return element("code", {}, JSON.stringify(schema.const));
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return element("span", {}, ...joined(choices.map(type), " | "));
  if (schema.type === "array") return element("span", {}, "list of ", type(schema.items));
  const values = schema.additionalProperties || Object.values(schema.patternProperties || {})[0];
  if (schema.type === "object" && values) return element("span", {}, "map of ", type(values === true ? {} : values));
  if (!schema.type) return element("span", {}, "any JSON");
  return element("span", {}, [schema.format === "date-time" ? "time" : schema.type].flat().join(" | "));
}

function limits(schema) {
  const one = (schema.anyOf || []).find((each) => each.type !== "null") || schema;
  const words = [
    one.minimum !== undefined && `from ${one.minimum}`,
    one.maximum !== undefined && `up to ${one.maximum}`,
    one.maxLength !== undefined && `at most ${one.maxLength} letters`,
    one.maxItems !== undefined && `at most ${one.maxItems}`,
    schema.default !== undefined && schema.default !== null && `default ${JSON.stringify(schema.default)}`,
  ];
  return words.filter(Boolean).join(", ");
}

function table(heads, rows) {
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", {}, head)))),
    element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))))),
  );
}

function joined(nodes, between) {
  return nodes.flatMap((node, place) => (place ? [between, node] : [node]));
}

// `words` in backquotes are code.
function prose(text) {
  return (text || "").split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

function find(words) {
  for (const each of document.querySelectorAll(".docs details")) each.hidden = !each.dataset.words.includes(words);
}

function openTarget() {
  const target = location.hash.length > 1 && by(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") {
    target.hidden = false;
    target.open = true;
    target.scrollIntoView({ block: "nearest" });
  }
}
