// One order: why it waits, what happened, its output.

import { get, post } from "./api.js";
import { Output } from "./output.js";
import { counted, element, ENDED, ending, fill, lasts, released } from "./parts.js";

const AGAIN_MS = 5000;
const WORDS = {
  "order.submitted": "submitted",
  "order.queued": "queued again",
  "order.claimed": "got a slot, is being started",
  "order.recommanded": "started once more (the first command had no effect)",
  "order.bound": "has its worker",
  "order.ready": "running",
  "order.stopping": "asked to stop",
  "order.stop_changed": "stop reason changed",
  "order.retry_waiting": "run ended, waits for a retry",
  "order.completed": "completed",
  "order.failed": "failed",
  "order.cancelled": "cancelled",
};
function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour12: false }) + "." + time.slice(20, 23);
}

// Why it happened, as far as the event says: the reason with the exit code, and a person's own words.
function because(event) {
  const note = event.data.note || {};
  const { reason: own, exit_code: code } = event.data.run || event.data.order || {};
  const reason = note.reason || own;
  const how = reason ? ending({ reason: reason === event.to ? null : reason, exit_code: code ?? null }) : null;
  return [how, note.said].filter(Boolean).join(": ");
}

// When it probably starts, from when to when that is, and what the guess is worth; or why nobody can say.
function starts(order) {
  const guess = order.estimate;
  if (guess === null) return "";
  if (order.estimated_wait_ms === null) return `Nobody can say when it starts: ${guess.why_none}.`;
  const range = `${lasts(guess.low_ms)} to ${lasts(guess.high_ms)}, a ${guess.confidence} guess`;
  return `It starts in about ${lasts(order.estimated_wait_ms)} (${range}).`;
}

function share(progress) {
  return progress === null || progress === undefined ? null : `${Math.round(progress * 100)} %`;
}

export class Detail {
  constructor(place, say, close) {
    this.place = place;
    this.say = say;
    this.close = close;
    this.id = null;
    this.run = null;
    this.repeating = false;
    this.output = new Output();
  }

  async show(id) {
    this.hide();
    this.id = id;
    this.facts = element("dl");
    this.head = element("div", { class: "head" });
    this.gate = element("p", { class: "gate", hidden: true });
    this.runs = element("ul", { class: "runs", "aria-label": "Runs that did not end well" });
    this.timeline = element("ol", { class: "timeline" });
    this.place.replaceChildren(
      this.head,
      this.gate,
      this.runs,
      element("h3", {}, "Output"),
      this.output.bar,
      this.output.text,
      element("h3", {}, "What happened"),
      this.timeline,
      element("h3", {}, "Facts"),
      this.facts,
    );
    this.place.hidden = false;
    await this.refresh();
  }

  hide() {
    clearTimeout(this.again);
    this.id = null;
    this.run = null;
    this.output.clear();
    this.place.hidden = true;
    this.place.replaceChildren();
  }

  async refresh() {
    const id = this.id;
    if (id === null) return;
    const path = `/work-orders/${encodeURIComponent(id)}`;
    let order, happened, tried;
    try {
      [order, happened, tried] = await Promise.all([get(path), get(`${path}/events?limit=1000`), get(`${path}/runs`)]);
    } catch (error) {
      if (error.status === 404) this.close();
      this.say(error.message);
      return;
    }
    await released();
    if (this.id !== id) return;
    this.drawHead(order);
    this.drawRuns(tried.runs);
    this.drawEvents(happened.events);
    this.drawFacts(order);
    if (order.attempt > 0 && order.attempt !== this.run) {
      this.run = order.attempt;
      this.output.follow(order.id, order.attempt);
    }
    // an estimate gets old although nothing happens
    clearTimeout(this.again);
    if (order.gate && !document.hidden) this.again = setTimeout(() => this.refresh(), AGAIN_MS);
    if (order.attempt === 0) this.output.clear(ENDED.has(order.state) ? "it never ran" : "it has not started yet");
  }

  drawRuns(runs) {
    const alike = [];
    for (const run of runs.filter((run) => run.reason !== null || run.error !== null)) {
      const word = run.state === "ended" ? "ended" : `is ${run.state}`;
      const text = `${word}: ${[ending(run), run.error].filter(Boolean).join(": ")}`;
      const before = alike.at(-1);
      if (before?.text === text && before.last === run.number - 1) before.last = run.number;
      else alike.push({ first: run.number, last: run.number, text });
    }
    const numbers = ({ first, last }) => (first === last ? `run ${first}` : `runs ${first} to ${last}`);
    fill(this.runs, ...alike.map((each) => element("li", {}, `${numbers(each)} ${each.text}`)));
  }

  drawHead(order) {
    const ended = ENDED.has(order.state);
    const act = ended
      ? element("button", { type: "button", onclick: () => this.rerun() }, "Run again")
      : element("button", { type: "button", class: "danger", onclick: () => this.cancel() }, "Cancel");
    const back = element("button", { type: "button", title: "Escape", onclick: this.close }, "Close");
    fill(
      this.head,
      element("span", { class: `chip ${order.state}` }, order.state.replace("_", " ")),
      element("code", { class: "id" }, order.id),
      act,
      back,
    );
    this.gate.hidden = order.gate === null;
    if (order.gate) {
      const place = order.queue_position ? `Number ${order.queue_position} in its queue. ` : "";
      const holders = order.gate.holders.flatMap((id) => [" ", element("a", { href: `#order=${encodeURIComponent(id)}` }, id)]);
      const held = holders.length ? [" Held by:", ...holders, "."] : [];
      fill(this.gate, `${place}It waits: ${order.gate.text}.`, ...held, ` ${starts(order)}`);
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

  // It is where Cancel was a moment ago, so it asks; one yes is one order, however often it is pressed before the answer.
  async rerun() {
    const id = this.id;
    if (this.repeating || !confirm(`Run order ${id} again, as a new order?`)) return;
    this.repeating = true;
    try {
      const order = await post(`/work-orders/${encodeURIComponent(id)}/rerun`, {});
      if (this.id === id) location.hash = `order=${encodeURIComponent(order.id)}`;
    } catch (error) {
      this.say(error.message);
    } finally {
      this.repeating = false;
    }
  }

  drawEvents(events) {
    let before = null;
    const rows = events.map((event) => {
      const at = Date.parse(event.at);
      const took = before === null ? "" : ` +${((at - before) / 1000).toFixed(at - before < 10000 ? 2 : 0)} s`;
      before = at;
      const why = because(event);
      const reason = why ? ` (${why})` : "";
      const who = event.trigger === "request" ? ` by ${event.actor}` : "";
      return element(
        "li",
        { class: event.to || "" },
        element("time", { datetime: event.at, title: event.at }, clock(event.at)),
        element("span", {}, (WORDS[event.kind] || event.kind) + reason + who),
        element("small", {}, took),
      );
    });
    fill(this.timeline, ...rows);
  }

  drawFacts(order) {
    const worker = order.worker || {};
    // Until it has ended these are of the run before.
    const { reason, exit_code: code } = ENDED.has(order.state) ? order : {};
    const facts = {
      progress: [share(worker.progress), worker.text].filter(Boolean).join(": ") || null,
      "heard from its worker": worker.heartbeat_at,
      error: worker.error ? [worker.error.name, worker.error.text].filter(Boolean).join(": ") : null,
      result: worker.result === null || worker.result === undefined ? null : JSON.stringify(worker.result),
      "runs so far": ENDED.has(order.state) ? order.attempt : `${order.attempt}, ${counted(order.retries_left, "retry", "retries")} left`,
      "exit code": code,
      reason,
      slot: order.slot,
      "pool / project": `${order.pool} / ${order.project}`,
      what: order.command ? JSON.stringify(order.command) : order.script,
      payload: order.payload === null ? null : JSON.stringify(order.payload),
      labels: Object.entries(order.labels).map(([name, value]) => `${name}=${value}`).join(", ") || null,
      "env (names only)": order.env_names.join(", ") || null,
      memory: `${order.memory_mb} MB`,
      processors: order.cpus,
      priority: order.priority,
      submitted: `${order.submitted_at} by ${order.submitted_by}`,
      "not before": order.not_before,
      "queued at": order.due_at,
      "must be done by": order.deadline,
      ended: order.ended_at,
      "same as (dedupe key)": order.dedupe_key,
      "one at a time (concurrency key)": order.concurrency_key,
      "runs again": order.rerun_of,
      schedule: order.schedule ? `${order.schedule}, tick of ${order.tick_at}` : null,
    };
    const rows = Object.entries(facts).filter(([, value]) => value !== null && value !== undefined);
    fill(
      this.facts,
      ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
    );
  }
}
