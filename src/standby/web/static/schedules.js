// Schedules, and projects that hold their orders back.

import { ago, element, what } from "./parts.js";

const BY_PAGE = { reason: "asked on the page" };

function moment(time) {
  return time ? element("time", { datetime: time, title: time }, new Date(time).toLocaleString()) : "";
}

function because({ mode, mode_actor: actor, mode_since: since, mode_reason: reason }) {
  return `${mode} by ${actor} for ${ago(since)}${reason ? `: ${reason}` : ""}`;
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
    element("td", { class: "what", title: what(schedule.order) }, what(schedule.order)),
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

// Somebody closed it, or it has as many runs as it may and more orders wait.
export function holdsBack(project) {
  return project.mode !== "open" || (project.pending > 0 && project.running_max !== null && project.open >= project.running_max);
}

export function projectCard(project, act) {
  const path = `/projects/${encodeURIComponent(project.name)}/resume`;
  const open = project.mode === "open";
  const why = open ? `at its limit: ${project.open} of ${project.running_max} open runs` : because(project);
  return element(
    "article", { class: "held" },
    element("h2", {}, "project ", element("b", {}, project.name)),
    element("span", { class: "bad" }, project.pending ? `${why}, ${project.pending} waiting` : why),
    open ? null : button("resume", `project ${project.name}`, () => act(path, BY_PAGE)),
  );
}
