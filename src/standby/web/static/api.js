// Talks to the server: the key, requests, and streams (EventSource cannot send a key, so streams are read by fetch).

const BASE = "api/v1";

export class Refusal extends Error {
  constructor(problem, status) {
    super(problem.detail ? `${problem.detail}: ${problem.what_to_do}` : `the server answered ${status}`);
    this.status = status;
  }
}

export function takeKeyFromAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const key = parts.get("key");
  if (key === null) return;
  sessionStorage.setItem("key", key);
  parts.delete("key");
  const rest = parts.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
}

export function useKey(key) {
  sessionStorage.setItem("key", key.trim());
}

function headers(more) {
  const key = sessionStorage.getItem("key");
  return key ? { ...more, Authorization: `Bearer ${key}` } : { ...more };
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
  const response = await fetch(`${BASE}${path}`, { headers: headers() });
  if (!response.ok) await refuse(response);
  return response.json();
}

export async function post(path, body) {
  const response = await fetch(`${BASE}${path}`, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
  });
  if (!response.ok) await refuse(response);
  return response.json();
}

async function* textLines(path, accept, signal) {
  const response = await fetch(`${BASE}${path}`, { headers: headers({ Accept: accept }), signal });
  if (!response.ok) await refuse(response);
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

// Lines of a run's output until it is closed.
export async function* logLines(order, from, signal) {
  const path = `/work-orders/${encodeURIComponent(order)}/logs?follow=true&from=${from}`;
  for await (const line of textLines(path, "application/x-ndjson", signal)) {
    if (line) yield JSON.parse(line);
  }
}
