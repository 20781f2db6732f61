// Talks to the server: the key, requests, and streams (EventSource cannot send a key, so streams are read by fetch).

const BASE = "api/v1";

export class Refusal extends Error {
  constructor(problem, status) {
    super(problem.detail ? `${problem.detail}: ${problem.what_to_do}` : `the server answered ${status}`);
    this.status = status;
  }
}

// The server could not be asked at all.
export class Gone extends Error {
  constructor() {
    super("the server does not answer: is it running?");
  }
}

// Whether there was one.
export function takeKeyFromAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const key = parts.get("key");
  if (key === null) return false;
  sessionStorage.setItem("key", key);
  parts.delete("key");
  const rest = parts.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
  return true;
}

export function useKey(key) {
  sessionStorage.setItem("key", key.trim());
}

// What to say where a key is asked for: the one there is was not taken.
export function wrongKey() {
  return sessionStorage.getItem("key") ? "This server does not know that key." : "";
}

function headers(more) {
  const key = sessionStorage.getItem("key");
  if (key && !/^[\x21-\x7e]+$/.test(key)) throw new Refusal({}, 401);
  return key ? { ...more, Authorization: `Bearer ${key}` } : { ...more };
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`${BASE}${path}`, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Gone();
  }
  if (!response.ok) await refuse(response);
  return response;
}

async function refuse(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // Not a problem document: the status has to do.
  }
  throw new Refusal(problem, response.status);
}

export async function get(path) {
  return (await ask(path, { headers: headers() })).json();
}

export async function post(path, body, more = {}) {
  const said = headers({ "Content-Type": "application/json", ...more });
  return (await ask(path, { method: "POST", headers: said, body: JSON.stringify(body) })).json();
}

async function* textLines(path, accept, signal) {
  const response = await ask(path, { headers: headers({ Accept: accept }), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}

// Events as they happen; the caller remembers the last id and passes it to go on from there.
export async function* events(after, signal) {
  const path = after ? `/events/stream?after=${encodeURIComponent(after)}` : "/events/stream";
  let id = after;
  for await (const line of textLines(path, "text/event-stream", signal)) {
    if (line.startsWith("id: ")) id = line.slice(4);
    if (line.startsWith("data: ")) yield { id, event: JSON.parse(line.slice(6)) };
  }
}

// Lines of a run's output until it is closed; `place` is from=LINE or tail=LINES.
export async function* logLines(order, run, place, signal) {
  const path = `/work-orders/${encodeURIComponent(order)}/logs?follow=true&run=${run}&${place}`;
  for await (const line of textLines(path, "application/x-ndjson", signal)) {
    if (line) yield JSON.parse(line);
  }
}
