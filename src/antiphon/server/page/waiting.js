/** What waits for a person: tool calls that need an approval, and parked calls, whose outcome only a person can record. */

import { acting, answer, settle, toast } from "./acts.js";
import { get, may, session } from "./api.js";
import { follow } from "./live.js";
import { html, signal, useEffect } from "./lib.js";
import { Empty, JsonText, now, Problem } from "./parts.js";
import { href } from "./route.js";
import { ago, Said, visible, wholeTime } from "./text.js";

/** How many calls wait; shown beside the name of the view. */
export const waitingCount = signal(0);

const problem = signal(/** @type {string | null} */ (null));
const found = signal(/** @type {{ approvals: import("./api.js").Approval[], parked: import("./api.js").Parked[] } | null} */ (null));
let timer = 0;

/** Read what waits; soon, and once for many calls. */
export function lookForWaiting() {
  timer ||= setTimeout(async () => {
    timer = 0;
    if (session.value === false) return;
    try {
      const [{ approvals }, { parked }] = await Promise.all([get(["approvals"]), get(["parked"])]);
      found.value = { approvals, parked };
      waitingCount.value = approvals.length + parked.length;
      problem.value = null;
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error); // the next look tries again
    }
  }, 150);
}

/**
 * Return the tool of an effect, without the toolset that it belongs to.
 * @param {string} option
 */
const toolOf = (option) => option.slice(option.lastIndexOf(".call_tool:") + 1).replace(/^call_tool:/, "");

export function WaitingView() {
  useEffect(() => {
    lookForWaiting();
    const stop = follow({ onRecord: lookForWaiting, onOpen: lookForWaiting });
    return stop;
  }, []);
  useEffect(lookForWaiting, [toast.value]);
  const principal = session.value ? session.value.principal : "";
  if (!found.value) return html`<div class="page" aria-busy="true"><h1>Waiting for a person</h1><${Problem} error=${problem.value} /></div>`;
  const { approvals, parked } = found.value;
  return html`<div class="page" data-testid="waiting">
    <h1>Waiting for a person</h1>
    <${Problem} error=${problem.value} />
    <section aria-label="Approvals"><h2>Approvals</h2>
      ${approvals.length ? null : html`<${Empty} title="No call waits for an approval" name="no-approvals"><p>A tool asks when its policy says so: <code>@tool(approval=True)</code>. The call appears here with its exact arguments, and the agent waits.</p><//>`}
      ${approvals.map((each) => html`<article class="card" key=${each.id} data-testid="approval">
        <header><h3><${Said} class="option">${each.tool}<//></h3><span class="note"><${Said}>${each.agent}<//> in <a href=${href(["thread", each.thread_id])}>${each.thread_id}</a></span>
          ${each.expires_at ? html`<span class="note">until ${wholeTime(each.expires_at)}</span>` : null}</header>
        ${each.reason ? html`<p>${visible(each.reason)}</p>` : null}
        <${JsonText} value=${each.arguments} label="Arguments" />
        <footer><span class="note mono">digest ${each.digest.slice(0, 16)}</span>
          ${each.approvers.length ? html`<span class="note">only ${each.approvers.join(", ")}</span>` : null}
          ${may("control") ? html`<button type="button" data-testid="deny" onClick=${() => (acting.value = answer(each, false, principal))}>Deny…</button>
          <button type="button" class="primary" data-testid="approve" onClick=${() => (acting.value = answer(each, true, principal))}>Approve…</button>` : null}</footer>
      </article>`)}
    </section>
    <section aria-label="Parked calls"><h2>Parked calls</h2>
      ${parked.length ? null : html`<${Empty} title="No call is parked" name="no-parked"><p>A call is parked when its process died after it began and nobody can tell whether it ran: it is never repeated without you.</p><//>`}
      ${parked.map((each) => html`<article class="card" key=${each.invocation_id} data-testid="parked">
        <header><h3 title=${each.option}><${Said} class="option">${toolOf(each.option) || "message"}<//></h3><span class="note">in <a href=${href(["thread", each.thread_id])}>${each.thread_id}</a></span>
          ${each.began_at ? html`<span class="note">began ${ago(each.began_at, now.value)}</span>` : null}</header>
        <p>${visible(each.option ? each.reason.replaceAll(each.option, toolOf(each.option)) : each.reason)}</p>
        <${JsonText} value=${each.arguments} label="Arguments" />
        <details><summary>Evidence</summary><${JsonText} value=${each.evidence} label="Evidence" /></details>
        ${may("control") ? html`<footer>
          <button type="button" class="danger" data-testid="settle-retry" onClick=${() => (acting.value = settle(each, "retry"))}>It did not run…</button>
          <button type="button" data-testid="settle-error" onClick=${() => (acting.value = settle(each, "error"))}>It failed…</button>
          <button type="button" class="primary" data-testid="settle-result" onClick=${() => (acting.value = settle(each, "result"))}>It ran…</button></footer>` : null}
      </article>`)}
    </section>
  </div>`;
}
