// The page: a live list of orders, the pools and hosts, a form. Everything is put in as text, never as markup.

import { events, get, post, takeKeyFromAddress, useKey, wrongKey } from "./api.js";
import { Detail } from "./detail.js";
import { ago, counted, element, ENDED, ending, keepFocus, lasts, released, what } from "./parts.js";
import { holdsBack, projectCard, scheduleRow } from "./schedules.js";

const STATES = ["pending", "preparing", "running", "stopping", "waiting_retry", "completed", "failed", "cancelled"];
const PAGE = 50;
const SETTLE_MS = 250;
const POLL_MS = 2000;
const RETRY_MS = 3000;
const AGAIN_MS = 10000;
const MEASURED_MIN = 10;
const NOT_THERE = "not connected: the server does not answer";

const by = (id) => document.getElementById(id);
const view = { state: null, orders: null, next: null, pages: 1, pools: [], hosts: [], projects: [], schedules: [] };

function say(text) {
  by("message").textContent = text;
  by("message").hidden = !text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { by("message").hidden = true; }, 8000);
}

const detail = new Detail(by("detail"), say, () => { location.hash = ""; });

function connection(word) {
  by("connection").textContent = word;
  by("connection").className = word.split(" ")[0];
}

// Reading

async function readOrders() {
  const filter = view.state ? `&state=${view.state}` : "";
  let orders = [], next = null;
  for (let page = 0; page < view.pages; page += 1) {
    const cursor = next ? `&cursor=${encodeURIComponent(next)}` : "";
    const answer = await get(`/work-orders?limit=${PAGE}${filter}${cursor}`);
    orders = orders.concat(answer.orders);
    next = answer.next;
    if (!next) break;
  }
  return { orders, next };
}

// The list is drawn as it was asked for last: an answer that comes later to an older question counts no more.
let asking = null;
async function refresh() {
  const turn = (asking = {});
  try {
    const [pools, hosts, projects, schedules, found] = await Promise.all([
      get("/pools"), get("/hosts"), get("/projects"), get("/schedules"), readOrders(),
    ]);
    await released();
    if (turn !== asking) return true;
    Object.assign(view, found);
    view.pools = pools.pools;
    view.hosts = hosts.hosts;
    view.projects = projects.projects.filter(holdsBack);
    view.schedules = schedules.schedules;
    by("key-form").hidden = true;
    mayOrder(true, "n");
    draw();
    await detail.refresh();
    return true;
  } catch (error) {
    if (error.status === 401) askForKey();
    else connection(error.status ? `not connected: ${error.message}` : NOT_THERE);
    return false;
  }
}

// Changes that come close together are drawn once; a hidden page waits until it is looked at.
let settling = null;
let again = false;
function refreshSoon() {
  if (document.hidden) return;
  if (settling !== null) { again = true; return; }
  settling = setTimeout(async () => {
    again = false;
    await refresh();
    settling = null;
    if (again) refreshSoon();
  }, SETTLE_MS);
}

let listening = null;
async function listen() {
  let last = null;
  for (;;) {
    try {
      for await (const { id } of events(last, undefined)) {
        last = id;
        connection("live");
        refreshSoon();
      }
    } catch (error) {
      if (error.status === 401) { askForKey(); return; }
      if (error.status === 410) last = null;
    }
    connection(NOT_THERE);
    const until = Date.now() + RETRY_MS;
    while (Date.now() < until) {
      refreshSoon();
      await new Promise((wake) => setTimeout(wake, POLL_MS));
    }
  }
}

// A form that nobody may send is not offered.
function mayOrder(may, title) {
  by("new").disabled = !may;
  by("new").title = title;
}

function askForKey() {
  connection("needs a key");
  mayOrder(false, "needs a key first");
  by("key-form").querySelector(".error").textContent = wrongKey();
  by("key-form").hidden = false;
  by("key-form").elements.key.focus();
}

// Drawing

function draw() {
  drawChips();
  drawPlaces();
  drawSchedules();
  drawOrders();
  drawForm();
}

function drawChips() {
  const counts = {};
  for (const pool of view.pools) {
    for (const [state, count] of Object.entries(pool.orders)) counts[state] = (counts[state] || 0) + count;
  }
  const chip = (state) => {
    const count = state && counts[state] ? ` ${counts[state]}` : "";
    const label = state ? state.replace("_", " ") + count : "all";
    const press = () => { view.state = state; view.pages = 1; refresh(); };
    return element("button", { type: "button", class: `chip ${state || "all"}`, "aria-pressed": String(view.state === state), onclick: press }, label);
  };
  keepFocus(by("chips"), () => by("chips").replaceChildren(chip(null), ...STATES.map(chip)));
}

function drawPlaces() {
  const cards = [...view.pools.map(poolCard), ...view.hosts.map(hostCard), ...view.projects.map((each) => projectCard(each, act))];
  keepFocus(by("places"), () => by("places").replaceChildren(...cards));
}

function drawSchedules() {
  by("schedules").hidden = view.schedules.length === 0;
  const rows = view.schedules.map((each) => scheduleRow(each, act));
  keepFocus(by("schedules"), () => by("schedule-rows").replaceChildren(...rows));
}

// Ask for something that a button stands for.
async function act(path, body) {
  try { await post(path, body); await refresh(); }
  catch (error) { say(error.message); }
}

// How right the waits were that orders were told; a few orders say nothing of that.
function told(estimates) {
  if (!estimates || estimates.started < MEASURED_MIN) return null;
  const off = lasts(Math.max(1, estimates.off_ms));
  const title = `Of the last ${estimates.started} orders that were told at their submit how long they will wait, half started `
    + `at most ${off} sooner or later than told, and ${Math.round(estimates.held * 100)} % within the range that they were told.`;
  return element("small", { title }, `waits are usually estimated within ${off}`);
}

function poolCard(pool) {
  const busy = (pool.slots.busy || 0) + (pool.slots.deploying || 0);
  const open = pool.mode === "open";
  const verb = open ? "pause" : "resume";
  const change = async () => {
    try { await post(`/pools/${encodeURIComponent(pool.name)}/${verb}`, { reason: "asked on the page" }); await refresh(); }
    catch (error) { say(error.message); }
  };
  const errors = pool.slots.error ? element("span", { class: "bad" }, `${counted(pool.slots.error, "slot")} in error`) : null;
  const coming = (pool.slots.creating || 0) + (pool.slots.cleaning || 0);
  const idle = pool.warmth ? `, ${pool.slots.idle || 0} idle${coming ? `, ${coming} being made` : ""}` : "";
  const reset = async () => {
    try { await post(`/pools/${encodeURIComponent(pool.name)}/reset-breaker`, { reason: "asked on the page" }); await refresh(); }
    catch (error) { say(error.message); }
  };
  const limits = [["running_max", "open run", "open runs"], ["starts_per_minute", "start a minute", "starts a minute"], ["queue_max", "waiting", "waiting"]]
    .filter(([name]) => pool.settings[name] !== null)
    .map(([name, one, more]) => `at most ${counted(pool.settings[name], one, more)}`)
    .join(", ");
  const broken = pool.broken_since
    ? [element("span", { class: "bad" }, `makes no slots since ${pool.failures} failed`),
       element("button", { type: "button", "aria-label": `reset the breaker of pool ${pool.name}`, onclick: reset }, "reset")]
    : [];
  const kinds = pool.lengths ? Object.entries(pool.lengths.usual_ms_by_label).map(([value, ms]) => `${value} ${lasts(ms)}`) : [];
  const takes = kinds.length
    ? element("small", { title: "how long runs usually take, by the label that tells it" },
        `runs by ${pool.lengths.label}: ${kinds.slice(0, 4).join(", ")}${kinds.length > 4 ? ", ..." : ""}`)
    : null;
  const above = pool.peaks && pool.peaks.above
    ? element("span", { class: "bad" },
      `${pool.peaks.above} of the last ${counted(pool.peaks.runs, "run")} took more memory than declared, up to ${pool.peaks.most_mb} MB`)
    : null;
  return element(
    "article", { class: open ? "" : "held" },
    element("h2", {}, "pool ", element("b", {}, pool.name)),
    element("meter", { min: 0, max: Math.max(1, pool.slots_max), value: busy, title: "slots in use" }),
    element("span", {}, `${busy} of ${pool.slots_max} busy${idle}, ${pool.pending} waiting`),
    told(pool.estimates),
    takes,
    limits ? element("span", {}, limits) : null,
    errors,
    above,
    ...broken,
    open ? null : element("span", { class: "bad" }, `${pool.mode}${pool.mode_reason ? `: ${pool.mode_reason}` : ""}`),
    element("button", { type: "button", "aria-label": `${verb} pool ${pool.name}`, onclick: change }, verb),
  );
}

function pressed(host) {
  if (host.pressure === "none") return null;
  const word = host.pressure === "critical" ? "takes nothing new" : "starts slowly";
  const unknown = host.measured ? "" : "; not measured now";
  const text = `${word}: ${host.pressure_cause}, ${host.pressure} for ${ago(host.pressure_since)}${unknown}`;
  return element("span", { class: "bad" }, text);
}

function hostCard(host) {
  const budget = host.memory_mb;
  const led = host.lease !== null && host.lease.live;
  const bad = host.unreachable_since ? `cannot be asked: ${host.error}` : led ? host.error : "no server leads it";
  return element(
    "article", { class: bad ? "held" : "" },
    element("h2", {}, "host ", element("b", {}, host.name)),
    budget ? element("meter", { min: 0, max: budget, value: host.memory_used_mb, title: "memory in use" }) : null,
    element("span", {}, budget ? `${host.memory_used_mb} of ${budget} MB` : `${host.memory_used_mb} MB, no limit`),
    bad ? element("span", { class: "bad" }, bad) : null,
    pressed(host),
    host.mode === "open" ? null : element("span", { class: "bad" }, host.mode),
  );
}

function drawOrders() {
  if (view.orders === null) return;
  by("list").hidden = false;
  const rows = view.orders.map((order) => {
    const link = element("a", { href: `#order=${encodeURIComponent(order.id)}`, "aria-label": `order ${order.id}` }, what(order) || "(nothing)");
    const note = order.gate ? order.gate.text : ENDED.has(order.state) && order.reason ? ending(order) : "";
    return element(
      "tr", { class: order.id === detail.id ? "chosen" : "" },
      element("td", {}, element("span", { class: `chip ${order.state}` }, order.state.replace("_", " "))),
      element("td", { class: "what" }, link, note ? element("small", {}, note) : null),
      element("td", {}, order.pool),
      element("td", {}, order.project),
      element("td", {}, element("time", { datetime: order.state_since, title: order.state_since }, ago(order.state_since))),
    );
  });
  keepFocus(by("orders"), () => by("orders").replaceChildren(...rows));
  by("empty").hidden = rows.length > 0;
  by("more").hidden = view.next === null;
}

function drawForm() {
  const select = by("form").elements.pool;
  const names = view.pools.map((pool) => pool.name);
  if ([...select.options].map((option) => option.value).join() === names.join()) return;
  const chosen = select.value || "default";
  select.replaceChildren(...names.map((name) => element("option", { value: name, selected: name === chosen }, name)));
}

// Doing

function toggleForm(open = by("form").hidden) {
  by("form").hidden = !open;
  by("new").setAttribute("aria-expanded", String(open));
  if (open) by("form").elements.script.focus();
}

// The same content has the same key until it was taken in: however often it is sent, it is one order.
let draft = null;
function keyOf(content) {
  if (draft?.content !== content) {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    draft = { content, key: [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("") };
  }
  return draft.key;
}

async function submit(event) {
  event.preventDefault();
  const fields = by("form").elements;
  const button = by("form").querySelector("button");
  const error = by("form").querySelector(".error");
  if (button.disabled) return;
  const body = { script: fields.script.value, pool: fields.pool.value, project: fields.project.value };
  if (fields.priority.value !== "") body.priority = Number(fields.priority.value);
  error.textContent = "";
  button.disabled = true;
  try {
    const order = await post("/work-orders", body, { "Idempotency-Key": keyOf(JSON.stringify(body)) });
    draft = null;
    fields.script.value = "";
    toggleForm(false);
    location.hash = `order=${order.id}`;
    await refresh();
  } catch (refusal) {
    error.textContent = refusal.message;
  } finally {
    button.disabled = false;
  }
}

async function showFromAddress() {
  const id = new URLSearchParams(location.hash.slice(1)).get("order");
  document.body.classList.toggle("with-detail", Boolean(id));
  if (!id) detail.hide();
  else if (id !== detail.id) await detail.show(id);
  drawOrders();
  // Where there is only one column the order is above the list, perhaps far above.
  if (id && matchMedia("(max-width: 900px)").matches) by("detail").scrollIntoView({ block: "start" });
}

by("new").addEventListener("click", () => toggleForm());
by("form").addEventListener("submit", submit);
by("more").addEventListener("click", () => { view.pages += 1; refresh(); });
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(by("key-form").elements.key.value);
  start();
});
window.addEventListener("hashchange", () => { if (takeKeyFromAddress()) start(); else showFromAddress(); });
document.addEventListener("visibilitychange", refreshSoon);
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
  if (event.key === "Escape") { toggleForm(false); location.hash = ""; }
  if (event.key === "n" && !by("new").disabled && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); toggleForm(true); }
});

async function start() {
  if (await refresh()) {
    await showFromAddress();
    if (!listening) listening = listen().finally(() => { listening = null; });
  } else if (by("key-form").hidden) {
    setTimeout(start, RETRY_MS);
  }
}

takeKeyFromAddress();
start();
// How long something lasts changes although nothing happens.
setInterval(() => { if (listening) refreshSoon(); }, AGAIN_MS);
