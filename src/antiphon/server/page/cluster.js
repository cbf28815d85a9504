/** The hosts of the ledger together: the threads that they have, those that wait and why, take-overs, and limits of requests. */

import { html } from "./lib.js";
import { Command, Empty, Figure, now } from "./parts.js";
import { href } from "./route.js";
import { ago, clock, count, dollars, plural, Said, seconds, short, visible } from "./text.js";

/** @typedef {{ name: string, build: string, kinds: string[], is_alive: boolean, since: string, until: string, threads: number }} Host */
/** @typedef {{ model: string, at_once: number | null, per_minute: number | null, cost_per_day: number | string | null, held: number,
 *   waiting: number, started: number, spent: number | string, reserved: number | string }} Limit */
/** @typedef {{ thread_id: string, kind: string | null, due_at: string, reason: string }} Stuck */
/** @typedef {{ hosts: Host[], in_hand: number, due: number, oldest_age: number | null, stuck: number, stuck_threads: Stuck[],
 *   take_overs: number, last_take_over: string | null, limits: Limit[], tail_lag: number, at: string }} ClusterStatus */

const MOST_STUCK = 10;

/** @param {{ cluster: ClusterStatus }} props */
export function Cluster({ cluster }) {
  const living = cluster.hosts.filter((each) => each.is_alive).length;
  return html`<section aria-label="Cluster" data-testid="cluster"><h2>Cluster</h2>
    <div class="figures">
      <${Figure} name="Threads in hand" value=${short(cluster.in_hand)} note=${`of ${plural(living, "living host")}`} />
      <${Figure} name="Threads due" value=${short(cluster.due)} note=${cluster.oldest_age === null ? "none waits for a host" : `the oldest for ${seconds(cluster.oldest_age)}`} />
      <${Figure} name="Threads stuck" value=${short(cluster.stuck)} note="due for more than 30 s" tone=${cluster.stuck ? "bad" : ""} />
      <${Figure} name="Taken over" value=${short(cluster.take_overs)} note=${cluster.last_take_over ? `the last ${ago(cluster.last_take_over, now.value)}` : "from hosts that died"} />
      <${Figure} name="Event stream" value=${cluster.tail_lag ? seconds(cluster.tail_lag) : "0 s"} note="behind the last commit" />
    </div>
    ${cluster.stuck ? html`<h3>Stuck threads</h3><${StuckThreads} cluster=${cluster} />` : null}
    <h3>Hosts</h3><${Hosts} hosts=${cluster.hosts} />
    <h3>Limits of model requests</h3><${Limits} limits=${cluster.limits} />
  </section>`;
}

/** @param {{ cluster: ClusterStatus }} props */
function StuckThreads({ cluster }) {
  const shown = cluster.stuck_threads.slice(0, MOST_STUCK);
  const at = Date.parse(cluster.at);
  return html`<ul class="letters" aria-label="Stuck threads" data-testid="stuck">${shown.map((each) => html`<li key=${each.thread_id}>
    <a href=${href(["thread", each.thread_id])}><${Said} class="mono">${each.thread_id}<//></a> <span class="note">due for ${seconds((at - Date.parse(each.due_at)) / 1000)}</span>
    <div>${visible(each.reason)}</div></li>`)}
    ${cluster.stuck > shown.length ? html`<li class="note">${plural(cluster.stuck - shown.length, "more thread")}: <code>antiphon status --all --json</code></li>` : null}</ul>`;
}

/** @param {{ hosts: Host[] }} props */
function Hosts({ hosts }) {
  const living = hosts.filter((each) => each.is_alive);
  const ended = hosts.filter((each) => !each.is_alive);
  return html`${living.length ? html`<${HostTable} hosts=${living} name="hosts" />` : html`<${NoHosts} />`}
    ${ended.length ? html`<details><summary>${plural(ended.length, "ended host")}, the last to own a thread</summary><${HostTable} hosts=${ended} name="ended-hosts" /></details>` : null}`;
}

const NoHosts = () => html`<${Empty} title="No host runs" name="no-hosts"><p>A host is a process that takes the threads of this ledger that are due, and continues those of hosts that died. Start one:</p>
  <${Command}>antiphon host<//><p>Or try three of them on this machine, with a database of their own:</p><${Command}>antiphon up --hosts 3<//><//>`;

/** @param {{ hosts: Host[], name: string }} props */
const HostTable = ({ hosts, name }) => html`<div class="table-box"><table class="hosts" data-testid=${name}><thead><tr><th scope="col">Host</th><th scope="col">Health</th><th scope="col">Build</th><th scope="col">Threads</th><th scope="col">Since</th><th scope="col">Lease</th></tr></thead>
  <tbody>${hosts.map((each) => html`<tr key=${`${each.name}${each.since}`} data-alive=${each.is_alive}><th scope="row"><a href=${href([], { owner: each.name })}><${Said}>${each.name}<//></a></th>
    <td><span class="status" data-tone=${each.is_alive ? "done" : "rest"}><i></i>${each.is_alive ? "alive" : "ended"}</span></td><td><${Said}>${each.build}<//></td><td>${count(each.threads)}</td>
    <td>${ago(each.since, now.value)}</td><td>${each.is_alive ? `until ${clock(each.until)}` : `ended ${ago(each.until, now.value)}`}</td></tr>`)}</tbody></table></div>`;

/**
 * How much of a limit is used; nothing where there is none.
 * @param {number | string} used
 * @param {number | string | null} limit
 * @param {(value: any) => string} show
 */
const use = (used, limit, show) => (limit === null ? "" : `${show(used)} of ${show(limit)}`);

/** @param {{ limits: Limit[] }} props */
function Limits({ limits }) {
  if (!limits.length) return html`<p class="note">No model is limited. <code>antiphon limits MODEL --at-once 8</code> sets a limit for all hosts together.</p>`;
  return html`<div class="table-box"><table class="numbers" data-testid="limits"><thead><tr><th scope="col">Model</th><th scope="col">At once</th><th scope="col">Waiting</th><th scope="col">In a minute</th><th scope="col">Cost today</th><th scope="col">Reserved</th></tr></thead>
    <tbody>${limits.map((each) => html`<tr key=${each.model}><th scope="row">${each.model === "*" ? "all models" : html`<${Said}>${each.model}<//>`}</th>
      <td>${use(each.held, each.at_once, count)}</td><td data-tone=${each.waiting ? "waits" : ""}>${count(each.waiting)}</td><td>${use(each.started, each.per_minute, count)}</td>
      <td>${use(each.spent, each.cost_per_day, dollars)}</td><td>${each.cost_per_day === null ? "" : dollars(each.reserved)}</td></tr>`)}</tbody></table></div>`;
}
