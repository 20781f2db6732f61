// One order: why it waits, what happened, its output.

import { get, logLines, post } from "./api.js";

const LOG_LINES_KEPT = 5000;
const WORDS = {
  "order.submitted": "submitted",
  "order.queued": "queued again",
  "order.claimed": "got a slot, is being started",
  "order.recommanded": "started once more (the first command had no effect)",
  "order.ready": "running",
  "order.stopping": "asked to stop",
  "order.stop_changed": "stop reason changed",
  "order.retry_waiting": "run ended, waits for a retry",
  "order.completed": "completed",
  "order.failed": "failed",
  "order.cancelled": "cancelled",
};
const ENDED = new Set(["completed", "failed", "cancelled"]);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function what(order) {
  if (order.command) return order.command.join(" ");
  return (order.script || "").trim().split("\n").slice(0, 3).join("; ");
}

export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - Date.parse(time)) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false }) + "." + time.slice(20, 23);
}

export class Detail {
  constructor(place, say, close) {
    this.place = place;
    this.say = say;
    this.close = close;
    this.id = null;
    this.follow = null;
  }

  async show(id) {
    this.hide();
    this.id = id;
    this.facts = element("dl");
    this.head = element("div", { class: "head" });
    this.gate = element("p", { class: "gate", hidden: true });
    this.timeline = element("ol", { class: "timeline" });
    this.log = element("pre", { class: "log", tabindex: "0", "aria-label": "Output" });
    this.place.replaceChildren(
      this.head,
      this.gate,
      element("h3", {}, "Output"),
      this.log,
      element("h3", {}, "What happened"),
      this.timeline,
      element("h3", {}, "Facts"),
      this.facts,
    );
    this.place.hidden = false;
    await this.refresh();
  }

  hide() {
    this.id = null;
    this.stopLog();
    this.place.hidden = true;
    this.place.replaceChildren();
  }

  async refresh() {
    const id = this.id;
    if (id === null) return;
    const path = `/work-orders/${encodeURIComponent(id)}`;
    let order, happened;
    try {
      [order, happened] = await Promise.all([get(path), get(`${path}/events?limit=1000`)]);
    } catch (error) {
      if (error.status === 404) this.close();
      this.say(error.message);
      return;
    }
    if (this.id !== id) return;
    this.drawHead(order);
    this.drawEvents(happened.events);
    this.drawFacts(order);
    if (order.attempt > 0 && order.attempt !== this.run) this.followLog(order);
    if (order.attempt === 0) this.log.textContent = ENDED.has(order.state) ? "it never ran" : "it has not started yet";
  }

  drawHead(order) {
    const ended = ENDED.has(order.state);
    const cancel = element("button", { type: "button", class: "danger", disabled: ended, onclick: () => this.cancel() }, "Cancel");
    const back = element("button", { type: "button", title: "Escape", onclick: this.close }, "Close");
    const focused = this.head.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.head.replaceChildren(
      element("span", { class: `chip ${order.state}` }, order.state.replace("_", " ")),
      element("code", { class: "id" }, order.id),
      cancel,
      back,
    );
    if (focused) [...this.head.querySelectorAll("button")].find((each) => each.textContent === focused)?.focus();
    this.gate.hidden = order.gate === null;
    if (order.gate) {
      const place = order.queue_position ? `Number ${order.queue_position} in its queue. ` : "";
      this.gate.textContent = `${place}It waits: ${order.gate.text}.`;
    }
  }

  async cancel() {
    if (!confirm(`Cancel order ${this.id}?`)) return;
    try {
      await post(`/work-orders/${encodeURIComponent(this.id)}/cancel`, {});
      await this.refresh();
    } catch (error) {
      this.say(error.message);
    }
  }

  drawEvents(events) {
    let before = null;
    const rows = events.map((event) => {
      const at = Date.parse(event.at);
      const took = before === null ? "" : ` +${((at - before) / 1000).toFixed(at - before < 10000 ? 2 : 0)} s`;
      before = at;
      const reason = event.data.reason ? ` (${event.data.reason})` : "";
      const who = event.trigger === "request" ? ` by ${event.actor}` : "";
      return element(
        "li",
        { class: event.to || "" },
        element("time", { datetime: event.at, title: event.at }, clock(event.at)),
        element("span", {}, (WORDS[event.kind] || event.kind) + reason + who),
        element("small", {}, took),
      );
    });
    this.timeline.replaceChildren(...rows);
  }

  drawFacts(order) {
    const facts = {
      "runs so far": `${order.attempt}, ${order.retries_left} more allowed`,
      "exit code": order.exit_code,
      reason: order.reason,
      slot: order.slot,
      "pool / project": `${order.pool} / ${order.project}`,
      what: order.command ? JSON.stringify(order.command) : order.script,
      payload: order.payload === null ? null : JSON.stringify(order.payload),
      labels: Object.entries(order.labels).map(([name, value]) => `${name}=${value}`).join(", ") || null,
      "env (names only)": order.env_names.join(", ") || null,
      memory: `${order.memory_mb} MB`,
      priority: order.priority,
      submitted: `${order.submitted_at} by ${order.submitted_by}`,
      "not before": order.not_before,
      "next try": order.due_at,
      "must be done by": order.deadline,
      ended: order.ended_at,
      "same as (dedupe key)": order.dedupe_key,
      "runs again": order.rerun_of,
    };
    const rows = Object.entries(facts).filter(([, value]) => value !== null && value !== undefined);
    this.facts.replaceChildren(
      ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
    );
  }

  stopLog() {
    this.follow?.abort();
    this.follow = null;
    this.run = null;
  }

  async followLog(order) {
    this.stopLog();
    this.run = order.attempt;
    const follow = (this.follow = new AbortController());
    this.log.textContent = "";
    let from = 0;
    while (!follow.signal.aborted) {
      try {
        for await (const line of logLines(order.id, from, follow.signal)) {
          if (line.end) return;
          if (line.text !== undefined) from = line.line + 1;
          this.addLine(line);
        }
      } catch (error) {
        if (follow.signal.aborted || error.status) return;
      }
      await new Promise((wake) => setTimeout(wake, 1000));
    }
  }

  addLine(line) {
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 8;
    const text = line.dropped ? `(${line.dropped} older lines are no longer kept)` : line.text;
    this.log.append(element("span", { class: line.stream || "system" }, `${text}\n`));
    while (this.log.childElementCount > LOG_LINES_KEPT) this.log.firstElementChild.remove();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }
}
