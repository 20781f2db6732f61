// Schedules, and projects that somebody closed.

import { element, what } from "./parts.js";

const BY_PAGE = { reason: "asked on the page" };

function moment(time) {
  return time ? element("time", { datetime: time, title: time }, new Date(time).toLocaleString()) : "";
}

function because({ mode, mode_actor: actor, mode_reason: reason }) {
  return `${mode} by ${actor}${reason ? `: ${reason}` : ""}`;
}

function button(word, label, press) {
  return element("button", { type: "button", "aria-label": `${word} ${label}`, onclick: press }, word);
}

export function scheduleRow(schedule, act) {
  const path = `/schedules/${encodeURIComponent(schedule.name)}`;
  const open = schedule.mode === "open";
  const verb = open ? "pause" : "resume";
  const last = schedule.last_order
    ? element("a", { href: `#order=${encodeURIComponent(schedule.last_order)}`, "aria-label": `last order of ${schedule.name}` }, moment(schedule.last_at))
    : "";
  return element(
    "tr", {},
    element("td", {}, element("b", {}, schedule.name)),
    element("td", {}, element("code", {}, schedule.cron), ` ${schedule.zone}`),
    element("td", {}, what(schedule.order)),
    element("td", {}, open ? moment(schedule.next_at) : element("span", { class: "bad" }, because(schedule))),
    element("td", {}, last),
    element(
      "td", {},
      button("run now", `schedule ${schedule.name}`, () => act(`${path}/run`)),
      " ",
      button(verb, `schedule ${schedule.name}`, () => act(`${path}/${verb}`, BY_PAGE)),
    ),
  );
}

export function projectCard(project, act) {
  const path = `/projects/${encodeURIComponent(project.name)}/resume`;
  return element(
    "article", { class: "held" },
    element("h2", {}, "project ", element("b", {}, project.name)),
    element("span", { class: "bad" }, because(project)),
    button("resume", `project ${project.name}`, () => act(path, BY_PAGE)),
  );
}
