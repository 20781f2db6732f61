// The output of a run: followed near its end, or read page by page from the beginning. Drawn once a frame, and bounded.

import { get, logLines } from "./api.js";
import { element } from "./parts.js";

const KEPT = 5000;
const AGAIN_MS = 1000;

export class Output {
  constructor() {
    // The buttons stay while lines come: one that is pressed must still be there when it is let go.
    const button = (word, act) => element("button", { type: "button", onclick: act }, word);
    this.range = element("span");
    this.toFirst = button("From the beginning", () => this.read(0));
    this.toNext = button("Next lines", () => this.read(this.next));
    this.toNewest = button("Newest lines", () => this.follow(this.source.order, this.source.run));
    this.bar = element("p", { class: "bar", hidden: true }, this.range, this.toFirst, this.toNext, this.toNewest);
    this.text = element("pre", { class: "log", tabindex: "0", "aria-label": "Output" });
    this.following = null;
    this.clear();
  }

  clear(words = "") {
    this.stop();
    this.turn = {};
    this.waiting = [];
    this.first = null;
    this.next = 0;
    this.text.replaceChildren(words);
    this.bar.hidden = true;
  }

  stop() {
    this.following?.abort();
    this.following = null;
    cancelAnimationFrame(this.frame);
    this.frame = null;
  }

  // The last lines there are, and what comes after them, until the log is closed.
  async follow(order, run) {
    this.clear();
    const following = (this.following = new AbortController());
    this.source = { order, run };
    let place = `tail=${KEPT}`;
    while (!following.signal.aborted) {
      try {
        for await (const line of logLines(order, run, place, following.signal)) {
          if (line.end && !line.closed) this.add({ text: "(this may not be all: the output was not stored to its end)" });
          if (line.end && line.closed && line.next === 0) this.add({ text: "it wrote nothing" });
          if (line.end) return;
          if (line.text !== undefined) place = `from=${line.line + 1}`;
          this.add(line);
        }
      } catch (error) {
        if (following.signal.aborted || error.status) return;
      }
      await new Promise((wake) => setTimeout(wake, AGAIN_MS));
    }
  }

  // One page from a line on; it stands still.
  async read(from) {
    const { order, run } = this.source;
    this.clear();
    const turn = this.turn;
    let page;
    try {
      page = await get(`/work-orders/${encodeURIComponent(order)}/logs?run=${run}&from=${from}&limit=${KEPT - 1}`);
    } catch (error) {
      page = { lines: [], closed: true, dropped: 0 };
      if (turn === this.turn) this.add({ text: error.message });
    }
    if (turn !== this.turn) return;
    if (page.dropped) this.add({ dropped: page.dropped });
    page.lines.forEach((line) => this.add(line));
    this.standing = !page.closed && page.lines.length > 0;
    this.draw();
    this.text.scrollTop = 0;
    this.drawBar(true);
  }

  add(line) {
    this.waiting.push(line);
    // A hidden page draws no frames: what would be thrown away anyway is not kept for it.
    if (this.waiting.length > 2 * KEPT) this.waiting = this.waiting.slice(-KEPT);
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    const lines = this.waiting.slice(-KEPT);
    this.waiting = [];
    if (lines.length === 0) return;
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 8;
    const excess = this.text.childElementCount + lines.length - KEPT;
    if (excess >= this.text.childElementCount) this.text.replaceChildren();
    else for (let count = 0; count < excess; count += 1) this.text.firstElementChild.remove();
    this.text.append(...lines.map(drawn));
    this.note(lines);
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
    this.drawBar(false);
  }

  // Which lines are shown: numbers of the first and the one after the last.
  note(lines) {
    const numbered = lines.filter((line) => line.line !== undefined);
    if (numbered.length === 0) return;
    this.next = numbered.at(-1).line + 1;
    this.first = Math.max(this.first ?? numbered[0].line, this.next - KEPT);
  }

  drawBar(reading) {
    this.bar.hidden = !reading && !this.first;
    this.range.textContent = this.first === null ? "no more lines" : `lines ${this.first + 1} to ${this.next}`;
    this.toFirst.hidden = reading && this.first === 0;
    this.toNext.hidden = !(reading && this.standing);
    this.toNewest.hidden = !reading;
  }
}

function drawn(line) {
  const text = line.dropped ? `(${line.dropped} older lines are no longer kept)` : line.text;
  return element("span", { class: line.stream || "system" }, `${text}\n`);
}
