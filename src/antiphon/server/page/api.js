/**
 * The API of the server: requests, their errors, and the values that they return.
 *
 * @typedef {{ principal: string, scopes: string[], expires_at: string | null }} Session
 * @typedef {{ thread_id: string, title: string | null, status: string | null, pattern: string | null, kind: string | null,
 *   messages: number, open_calls: number, created_at: string, updated_at: string, input_tokens: number,
 *   output_tokens: number, cost: number, forked_from: string | null, forked_at: number | null, owner: string | null,
 *   runs: { id: string, name: string | null, status: string }[], unfit: { build: string, reason: string }[],
 *   moved_to: string | null }} Thread
 * @typedef {{ thread_id: string, status: string | null, pattern: string | null, messages: number, open_calls: number,
 *   created_at: string, updated_at: string, is_chain: boolean, current_phase: string | null, turn: number,
 *   phases_completed: string[], phases_remaining: string[], waits_for: string | null, owner: string | null,
 *   unfit: string[], question: string | null }} Status
 * @typedef {{ kind: "text", text: string, citations?: unknown[] } | { kind: "reasoning", text?: string, signature?: string }
 *   | { kind: "media", modality: string, url: string, mime?: string, prompt_hint?: string }
 *   | { kind: "data", data: unknown } | { kind: "foreign", dialect: string, value: unknown }} Part
 * @typedef {{ kind: "parts", parts: Part[] }
 *   | { kind: "option_call", invocation_id: string, option_name: string, arguments: unknown, arguments_text?: string }
 *   | { kind: "option_result", invocation_id: string, option_name: string, result?: unknown, parts?: Part[],
 *       is_error?: boolean, error_type?: string, error_message?: string, retryable?: boolean }} Payload
 * @typedef {{ input_tokens?: number, output_tokens?: number, cache_read_tokens?: number, reasoning_tokens?: number,
 *   cost?: string }} Usage
 * @typedef {{ id: string, policy: string, payload: Payload, to?: string[], lane?: string, created_at?: string, usage?: Usage,
 *   parent_id?: string, turn_id?: string, step_num?: number, in_reply_to?: string, metadata?: unknown }} Message
 * @typedef {{ thread_id: string, seq: number, recorded_at: string, hash: string, message: Message }} StoredRecord
 * @typedef {{ seq: number, at: string, kind: string, sender: string, receivers: string[], lane: string, text: string,
 *   message_id: string, option: string | null, invocation_id: string | null, pair: number | null, seconds: number | null,
 *   depth: number, parent: number | null, mark: string | null, host: string | null, taken_from: string | null, usage: Usage | null }} Step
 * @typedef {{ id: string, thread_id: string, agent: string, tool: string, arguments: unknown, reason: string | null,
 *   digest: string, expires_at: string | null, approvers: string[] }} Approval
 * @typedef {{ thread_id: string, invocation_id: string, reason: string, option: string, arguments: unknown,
 *   began_at: string | null, evidence: Record<string, unknown> }} Parked
 */

import { signal } from "./lib.js";

/** Who is signed in; null: not known yet, false: nobody. */
export const session = signal(/** @type {Session | false | null} */ (null));

/** Why a session has ended that nobody has signed out of, and what to do. */
export const whyEnded = signal(/** @type {string | null} */ (null));

/** The server does not accept the session any more, or there was none. */
export function endSession() {
  if (session.value) {
    whyEnded.value = "Your session has ended: its token was revoked or has expired, or the server was started again. Sign in with a valid token.";
  }
  session.value = false;
}

/** An error of the server, or that it cannot be reached. */
export class ApiProblem extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} detail
   */
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** @typedef {Record<string, string | number | boolean | null | undefined>} Query */

/**
 * Return the address of an endpoint. Each step is encoded, so an id may have a slash in it.
 * @param {string[]} steps
 * @param {Query} [query]
 */
export function address(steps, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/api/${steps.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/**
 * @param {string} method
 * @param {string} url
 * @param {unknown} [body]
 * @param {AbortSignal} [signal]
 */
async function ask(method, url, body, signal) {
  /** @type {RequestInit} */
  const options = { method, signal: signal ?? null, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "content-type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiProblem(0, "unreachable", "The server cannot be reached. Is it running?");
  }
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) endSession();
  throw new ApiProblem(answer.status, problem.code ?? "unknown", problem.detail ?? `The server answered ${answer.status}.`);
}

/**
 * @param {string[]} steps
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 */
export const get = (steps, query, signal) => ask("GET", address(steps, query), undefined, signal);

/**
 * @param {string[]} steps
 * @param {unknown} [body]
 */
export const post = (steps, body = {}) => ask("POST", address(steps), body);

/**
 * @param {string[]} steps
 * @param {Query} [query]
 */
export const remove = (steps, query) => ask("DELETE", address(steps, query));

/**
 * Whether the one who is signed in may do something; the server decides, this only hides what it would refuse.
 * @param {string} scope
 */
export const may = (scope) => !!session.value && session.value.scopes.includes(scope);

/**
 * Trade a token or a one-time code for the cookie of a session.
 * @param {{ token: string } | { code: string }} given
 */
export async function signIn(given) {
  session.value = await post(["session"], given);
  whyEnded.value = null;
}

/** Find out whether this browser has a session. */
export async function whoAmI() {
  try {
    session.value = await get(["session"]);
  } catch (problem) {
    const isAway = problem instanceof ApiProblem && problem.status === 0;
    if (!isAway || !session.value) endSession(); // a server that cannot be reached has ended nothing
  }
}

export async function signOut() {
  session.value = false; // first: nothing asks any more with a session that is about to end
  await remove(["session"]).catch(() => null);
}

/** Names of models and formats, read once. */
export const choices = signal(
  /** @type {{ models: string[], model: string | null, dialects: string[] }} */ ({ models: [], model: null, dialects: [] }),
);
let choicesAsked = false;

export async function loadChoices() {
  if (choicesAsked) return;
  choicesAsked = true;
  try {
    choices.value = await get(["choices"]);
  } catch {
    choicesAsked = false;
  }
}
