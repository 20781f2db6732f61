// Small parts that every drawing uses. Everything is put in as text, never as markup.

export const ENDED = new Set(["completed", "failed", "cancelled"]);

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
  return lasts(Math.round((now - Date.parse(time)) / 1000) * 1000);
}

export function lasts(ms) {
  if (ms >= 1 && ms < 1000) return `${Math.floor(ms)} ms`;
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function counted(count, one, more = `${one}s`) {
  return `${count} ${count === 1 ? one : more}`;
}

// How a run or an order ended: "exit 3", "timeout, exit 143".
export function ending({ reason, exit_code: code }) {
  const parts = [reason === "exit" && code !== null ? null : reason, code === null ? null : `exit ${code}`];
  return parts.filter((part) => part !== null).join(", ");
}

// Whoever moves by keyboard stays where they are when a part is drawn anew.
export function keepFocus(part, redraw) {
  // What was paused has a button of another name in the same place.
  const label = (each) => (each.getAttribute("aria-label") || each.className || each.textContent).replace(/^resume /, "pause ");
  const active = part.contains(document.activeElement) ? label(document.activeElement) : null;
  redraw();
  if (!active) return;
  [...part.querySelectorAll("a, button")].find((each) => label(each) === active)?.focus({ preventScroll: true });
}

// What would look the same is left alone: whoever selected some of it can still copy that.
export function fill(part, ...children) {
  const made = part.cloneNode(false);
  made.append(...children);
  if (!made.isEqualNode(part)) keepFocus(part, () => part.replaceChildren(...made.childNodes));
}

// A click begins and ends on the same element: whoever draws one anew waits while a button is held down, but not for ever.
const HELD_MS = 10000;
let heldSince = null;
addEventListener("pointerdown", () => { heldSince = Date.now(); }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { heldSince = null; }, true);

export async function released() {
  while (heldSince !== null && Date.now() - heldSince < HELD_MS) await new Promise((wake) => setTimeout(wake, 50));
}
