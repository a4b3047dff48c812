// The client of the API. A token is kept as long as the tab, and sent in a header: there is no cookie that another page's
// requests would carry.

const KEY = "turnpike-token";
const PATIENCE_S = 65;

/** The router refuses a request. */
export class Refused extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** There is no router, or it does not answer. */
export class Unreachable extends Error {}

/** Statuses of a proxy without a router. The router's own refusals have a type of their own. */
const ABSENT = [502, 503, 504];
const PROBLEM = "application/problem+json";

/** @returns {string | null} */
export function token() {
  return sessionStorage.getItem(KEY);
}

/** @param {string | null} value */
export function setToken(value) {
  if (value === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, value);
}

/** @param {unknown} body */
function headers(body) {
  const all = new Headers();
  const bearer = token();
  if (bearer !== null) all.set("Authorization", `Bearer ${bearer}`);
  if (body !== undefined) all.set("Content-Type", "application/json");
  return all;
}

/**
 * The response to a request, whose status is right.
 * @param {string} method
 * @param {string} path below the dashboard's own, as `v1/status`
 * @param {AbortSignal} signal
 * @param {unknown} [body]
 */
export async function respond(method, path, signal, body) {
  let response;
  try {
    response = await fetch(path, {
      method, signal, headers: headers(body), body: body === undefined ? null : JSON.stringify(body),
      mode: "same-origin", credentials: "omit", cache: "no-store", redirect: "error",
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Unreachable("The router does not answer.");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const detail = typeof problem.detail === "string" ? problem.detail : response.statusText;
  const isOwn = response.headers.get("Content-Type")?.startsWith(PROBLEM) ?? false;
  if (ABSENT.includes(response.status) && !isOwn) throw new Unreachable(detail);
  throw new Refused(response.status, detail);
}

/**
 * The answer to a request.
 * @param {string} method
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
async function ask(method, path, signal, body) {
  // A query without an answer is given up; a change is not known to have failed.
  const own = new AbortController();
  const stop = () => own.abort(signal.reason);
  const timer = method === "GET" ? setTimeout(() => own.abort(), 1000 * PATIENCE_S) : undefined;
  if (signal.aborted) stop();
  signal.addEventListener("abort", stop);
  try {
    const response = await respond(method, path, own.signal, body);
    return await response.json();
  } catch (error) {
    if (own.signal.aborted && !signal.aborted) throw new Unreachable(`The router does not answer for ${PATIENCE_S} s.`);
    // The answer was cut.
    if (error instanceof TypeError || error instanceof SyntaxError) throw new Unreachable("The router's answer is not complete.");
    throw error;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

/**
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {Record<string, string | number | boolean | undefined>} [query] undefined ones are left out
 */
export function get(path, signal, query = {}) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined) given.set(name, String(value));
  }
  const text = given.toString();
  return ask("GET", text ? `${path}?${text}` : path, signal);
}

/** @param {string} path @param {AbortSignal} signal @param {unknown} [body] */
export function post(path, signal, body = {}) {
  return ask("POST", path, signal, body);
}
