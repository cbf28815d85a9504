/** The page: sign-in, the frame around the views, and which view is shown. It starts here. */

import { ActDialog, Toast } from "./acts.js";
import { may, session, signIn, signOut, whoAmI, whyEnded } from "./api.js";
import { CompareView } from "./compare.js";
import { Help, helpShown, useKeys } from "./keys.js";
import { connection } from "./live.js";
import { effect, html, render, signal, useEffect, useSignal } from "./lib.js";
import { OverviewView } from "./overview.js";
import { announced, Command, Empty, Problem } from "./parts.js";
import { go, route, takeCode } from "./route.js";
import { ThreadView } from "./thread.js";
import { beginList, searching, ThreadsView } from "./threads.js";
import { lookForWaiting, waitingCount, WaitingView } from "./waiting.js";

const THEMES = ["system", "light", "dark"];
const theme = signal(localStorage.getItem("theme") ?? "system");
effect(() => {
  if (theme.value === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("theme", theme.value);
});

/** Whether this browser had a session before: then the views begin to load while the server is asked whether it still has. */
const mayBeSignedIn = localStorage.getItem("signed-in") === "yes" && location.hash.startsWith("#/");
effect(() => {
  if (session.value !== null) localStorage.setItem("signed-in", session.value ? "yes" : "no");
});

const STREAM_WORDS = /** @type {Record<string, [string, string]>} */ ({
  live: ["done", "Live"],
  connecting: ["rest", "Connecting"],
  cut: ["bad", "Cut off, trying again"],
  off: ["rest", ""],
});

function App() {
  if (session.value === null && !mayBeSignedIn) return html`<main id="main" aria-busy="true"></main>`;
  return session.value !== false ? html`<${Frame} />` : html`<${SignIn} />`;
}

function SignIn() {
  const token = useSignal("");
  const error = useSignal(/** @type {string | null} */ (null));
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    error.value = null;
    try {
      await signIn({ token: token.value.trim() });
    } catch (problem) {
      error.value = problem instanceof Error ? problem.message : String(problem);
    }
  };
  return html`<main id="main" class="sign-in" data-testid="sign-in">
    <form onSubmit=${send} aria-labelledby="sign-in-title">
      <p class="wordmark"><${Mark} />antiphon</p>
      <h1 id="sign-in-title">Sign in</h1>
      <label class="field">Token<input type="password" name="token" required autofocus autocomplete="off" spellcheck=${false} placeholder="aph_…"
        value=${token.value} onInput=${(/** @type {Event} */ event) => (token.value = /** @type {HTMLInputElement} */ (event.target).value)} /></label>
      <${Problem} error=${error.value ?? startProblem.value ?? whyEnded.value} />
      <button type="submit" class="primary">Sign in</button>
      <p class="note">The token of this server is in the file that <code>antiphon serve</code> names when it starts. Another one is made by:</p>
      <${Command}>antiphon token make NAME<//>
    </form>
  </main>`;
}

const startProblem = signal(/** @type {string | null} */ (null));

const Mark = () => html`<svg class="mark" viewBox="0 0 20 20" aria-hidden="true"><path d="M4 3v14M16 3v14M5.500 7h9M14.500 13h-9" /></svg>`;

function Frame() {
  const here = route.value.steps[0] ?? "threads";
  useEffect(lookForWaiting, []);
  useKeys("Go", [
    { keys: "g t", about: "threads", run: () => go("#/") },
    { keys: "g w", about: "what waits for a person", run: () => go("#/waiting") },
    { keys: "g o", about: "overview", run: () => go("#/overview") },
    { keys: "/", about: "search all messages", run: () => { if (here !== "threads") go("#/"); searching.value = true; } },
  ]);
  const [tone, words] = STREAM_WORDS[connection.value] ?? ["rest", ""];
  const next = () => (theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]);
  const link = (/** @type {string} */ name, /** @type {string} */ to, /** @type {string} */ text, badge = 0) => html`<a href=${to} data-testid=${`nav-${name}`}
    aria-current=${here === name || (name === "threads" && ["thread", "compare"].includes(here)) ? "page" : undefined}>${text}${badge ? html` <span class="badge">${badge}</span>` : null}</a>`;
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <header class="top" role="banner">
      <a class="wordmark" href="#/" aria-label="antiphon, all threads"><${Mark} /><span>antiphon</span></a>
      <nav aria-label="Main">${link("threads", "#/", "Threads")}${link("waiting", "#/waiting", "Waiting", waitingCount.value)}${link("overview", "#/overview", "Overview")}</nav>
      <div class="top-end">
        <span class="status stream" data-tone=${tone} data-testid="connection"><i aria-hidden="true"></i><span>${words}</span></span>
        <button type="button" class="quiet" onClick=${next} aria-label=${`Theme: ${theme.value}`} data-testid="theme">${{ system: "◐", light: "○", dark: "●" }[theme.value] ?? "◐"}</button>
        <button type="button" class="quiet" onClick=${() => (helpShown.value = true)} aria-label="Keys" data-testid="keys">?</button>
        <button type="button" class="quiet who-am-i" onClick=${signOut} data-testid="sign-out" title="Sign out">${session.value && session.value.principal}</button>
      </div>
    </header>
    <main id="main" tabindex="-1"><${View} /></main>
    <${ActDialog} /><${Help} /><${Toast} />
    <div class="unseen" role="status" aria-live="polite">${announced.value}</div>`;
}

function View() {
  const [name, first, second] = route.value.steps;
  if (session.value && !may("read")) return html`<${Empty} title="This token cannot read"><p>Make one with the scope <code>read</code>: <code>antiphon token make NAME --scope read</code></p><//>`;
  if (name === undefined) return html`<${ThreadsView} />`;
  if (name === "thread" && first !== undefined) return html`<${ThreadView} key=${first} id=${first} />`;
  if (name === "compare" && second !== undefined) return html`<${CompareView} key=${`${first} ${second}`} left=${first} right=${second} />`;
  if (name === "waiting") return html`<${WaitingView} />`;
  if (name === "overview") return html`<${OverviewView} />`;
  return html`<${Empty} title="There is nothing here" name="nowhere"><p><a href="#/">All threads</a></p><//>`;
}

async function start() {
  const code = takeCode();
  if (code !== null) {
    try {
      await signIn({ code });
    } catch {
      startProblem.value = "The link was used already, or is older than a minute. Sign in with the token.";
      await whoAmI();
    }
  } else {
    if (["", "#", "#/"].includes(location.hash)) beginList();
    await whoAmI();
  }
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
void start();
