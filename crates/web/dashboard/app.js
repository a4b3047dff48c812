// The frame of all pages: navigation, session, the counts of each second, and what happens while there is no router.

import { Refused, Unreachable, get, setToken, token } from "./client.js";
import { html, setAttribute, setText } from "./elements.js";
import { capture } from "./pages/capture.js";
import { filters } from "./pages/filters.js";
import { forwarders } from "./pages/forwarders.js";
import { graph } from "./pages/graph.js";
import { history } from "./pages/history.js";
import { interfaces } from "./pages/interfaces.js";
import { neighbours } from "./pages/neighbours.js";
import { overview } from "./pages/overview.js";
import { routes } from "./pages/routes.js";
import { trace } from "./pages/trace.js";
import { duration } from "./text.js";

/** @type {Record<string, Page>} */
const PAGES = { overview, graph, interfaces, routes, neighbours, filters, forwarders, history, trace, capture };

const ROLES = ["read", "operate", "configure"];
const SECOND = 1000;
const SAID_MS = 8000;
const LONGEST_MS = 5000;

/** @type {Session | null} */
let session = null;
/** @type {Overview | null} */
let last = null;
/** @type {{ name: string, page: Shown, stop: AbortController } | null} */
let shown = null;
let isLost = false;
let said = 0;
/** Ends all that belongs to the present session. */
let visit = new AbortController();

// --- the frame -------------------------------------------------------------------------------------

const facts = html("p", { class: "facts", "aria-live": "off" });
const who = html("span", { class: "who" });
const leave = html("button", { type: "button", class: "quiet", hidden: true, click: () => logOut("You have logged out.") }, "Log out");
const theme = html("button", { type: "button", class: "quiet", click: nextTheme });
const links = Object.entries(PAGES).map(([name, page]) => html("a", { href: `#/${name}`, "data-page": name }, page.title));
const nav = html("nav", { "aria-label": "Pages" }, html("ul", {}, ...links.map((link) => html("li", {}, link))));
const main = html("main", { id: "content", tabindex: -1 });
const lost = html("p", { class: "lost", hidden: true });
const word = html("p", { class: "word", hidden: true });
const notices = html("div", { class: "notices", role: "status", "aria-live": "polite" }, lost, word);
const skip = html("button", { type: "button", class: "skip", click: () => main.focus() }, "Skip to the content");

const header = html(
  "header", {}, html("a", { class: "name", href: "#/overview" }, html("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "Turnpike"),
  facts, html("div", { class: "session" }, who, theme, leave),
);

/**
 * Shows something for a while.
 * @param {string} text
 */
function say(text) {
  setText(word, text);
  word.hidden = false;
  clearTimeout(said);
  said = setTimeout(() => { word.hidden = true; }, SAID_MS);
}

// --- light and dark --------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function nextTheme() {
  const now = localStorage.getItem("turnpike-theme") ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length] ?? "auto";
  localStorage.setItem("turnpike-theme", next);
  setTheme(next);
}

/** @param {string} name */
function setTheme(name) {
  document.documentElement.dataset["theme"] = name;
  setText(theme, { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[name] ?? "");
  theme.setAttribute("aria-label", `Colours: ${name}. Change them`);
}

// --- the router ------------------------------------------------------------------------------------

/** The router has answered. */
function found() {
  if (!isLost) return;
  isLost = false;
  lost.hidden = true;
  document.body.classList.remove("absent");
  say("The router answers again.");
}

/** @param {Error} error */
function missing(error) {
  isLost = true;
  setText(lost, `${error.message} The numbers are old. Trying again.`);
  lost.hidden = false;
  document.body.classList.add("absent");
}

/** @param {number} ms @param {AbortSignal} signal */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve(undefined);
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}

/** Resolves when the page can be seen. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

/**
 * Calls a function again and again until the signal.
 * @param {number} seconds
 * @param {() => Promise<void>} ask
 * @param {AbortSignal} signal
 * @param {(error: Error | null) => void} failed
 */
async function repeat(seconds, ask, signal, failed) {
  while (!signal.aborted) {
    await seen();
    if (signal.aborted) return;
    const began = performance.now();
    await attempt(ask, signal, failed);
    // A router that has much to say, or much to do, is not asked without pause.
    const took = performance.now() - began;
    await pause(Math.max((isLost ? 2 : seconds) * SECOND, Math.min(3 * took, LONGEST_MS)), signal);
  }
}

/**
 * @param {() => Promise<void>} ask
 * @param {AbortSignal} signal
 * @param {(error: Error | null) => void} failed told of a refusal, and of its end
 */
async function attempt(ask, signal, failed) {
  try {
    await ask();
    if (!signal.aborted) {
      found();
      failed(null);
    }
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Unreachable) missing(error);
    else if (error instanceof Refused && error.status === 401) logOut(error.message);
    else if (error instanceof Error) failed(error);
  }
}

// --- the counts of each second ---------------------------------------------------------------------

async function counts() {
  const signal = visit.signal;
  const withInterfaces = shown ? PAGES[shown.name]?.interfaces ?? false : false;
  const next = /** @type {Overview} */ (await get("v1/overview", signal, { interfaces: withInterfaces }));
  if (signal.aborted) return;
  found();
  if (last && next.at_us < last.at_us) say(`The router has been started again, ${duration(next.status.uptime_s)} ago.`);
  if (last && next.status.version !== last.status.version) location.reload();
  last = next;
  const { version, uptime_s, configuration, unconfirmed } = next.status;
  setText(facts, `${version} · up ${duration(uptime_s)} · configuration ${configuration}${unconfirmed ? ", not confirmed" : ""}`);
  shown?.page.live?.(next);
}

// --- pages -----------------------------------------------------------------------------------------

/** The page and the query that the address names. */
function wanted() {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const name = Object.hasOwn(PAGES, path) ? path : "overview";
  return { name, query: new URLSearchParams(query) };
}

/** @param {boolean} isMoved true if the user has followed a link */
function show(isMoved) {
  if (!session) return;
  const { name, query } = wanted();
  if (shown?.name === name && shown.page.query) {
    shown.page.query(query);
    return;
  }
  shown?.stop.abort();
  const page = /** @type {Page} */ (PAGES[name]);
  const stop = new AbortController();
  const problem = html("p", { class: "problem", role: "alert", hidden: true });
  // Each question has a failure of its own, until it is answered.
  /** @type {Map<unknown, string>} */
  const failures = new Map();
  const failed = (/** @type {unknown} */ question) => (/** @type {Error | null} */ error) => {
    if (error) failures.set(question, error.message);
    else failures.delete(question);
    problem.hidden = failures.size === 0;
    setText(problem, [...new Set(failures.values())].join("\n"));
  };
  const repeated = new Set();
  const role = ROLES.indexOf(session.role);
  const made = page.show({
    may: (needed) => role >= ROLES.indexOf(needed),
    signal: stop.signal,
    overview: last,
    every: (seconds, ask) => {
      repeated.add(ask);
      void repeat(seconds, ask, stop.signal, failed(ask));
    },
    now: (ask) => attempt(ask, stop.signal, failed(repeated.has(ask) ? ask : "now")),
    say,
  }, query);
  shown = { name, page: made, stop };
  const heading = html("h1", { tabindex: -1 }, page.title);
  main.replaceChildren(heading, problem, made.element);
  document.title = `${page.title} · Turnpike`;
  for (const link of links) {
    if (link.dataset["page"] === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (isMoved) {
    heading.focus();
    window.scrollTo(0, 0);
  }
  if (last) made.live?.(last);
}

// --- the session -----------------------------------------------------------------------------------

/** @param {string} reason */
function logOut(reason) {
  setToken(null);
  end();
  logIn(reason);
}

function end() {
  visit.abort();
  visit = new AbortController();
  shown?.stop.abort();
  [shown, session, last] = [null, null, null];
}

/** @param {string} reason for which there is no session */
function logIn(reason) {
  const input = html("input", {
    type: "password", name: "token", required: true, autocomplete: "current-password", spellcheck: "false", "aria-describedby": "login-help",
  });
  const problem = html("p", { class: "problem", role: "alert" }, reason);
  const button = html("button", { type: "submit", class: "main" }, "Log in");
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    button.disabled = true;
    setToken(input.value.trim());
    try {
      await enter();
    } catch (error) {
      setToken(null);
      input.value = "";
      setText(problem, error instanceof Error ? error.message : String(error));
      input.focus();
    }
    button.disabled = false;
  };
  const form = html(
    "form", { class: "card login", submit }, html("h1", {}, "Log in"), problem,
    html("label", { class: "field" }, html("span", {}, "Token"), input),
    html("p", { id: "login-help", class: "help" }, "A line of the router's ", html("code", {}, "token_file"), " without its role. The token stays in this tab."),
    button,
  );
  document.title = "Log in · Turnpike";
  document.body.replaceChildren(html("div", { class: "alone" }, form), notices);
  input.focus();
}

/** Begins a session, if the router knows the client. */
async function enter() {
  const signal = visit.signal;
  session = /** @type {Session} */ (await get("v1/session", signal));
  setText(who, `${session.client} · ${session.role}`);
  leave.hidden = token() === null;
  document.body.replaceChildren(skip, header, html("div", { class: "frame" }, nav, main), notices);
  found();
  show(false);
  void repeat(1, counts, signal, (error) => {
    if (error) say(error.message);
  });
}

/**
 * A client that may do nothing, and why.
 * @param {string} reason
 */
function refuse(reason) {
  const again = html("button", { type: "button", class: "main", click: () => location.reload() }, "Try again");
  document.title = "Refused · Turnpike";
  document.body.replaceChildren(
    html("div", { class: "alone" }, html("div", { class: "card login" }, html("h1", {}, "Refused"), html("p", { class: "problem", role: "alert" }, reason), again)),
    notices,
  );
}

async function start() {
  setTheme(localStorage.getItem("turnpike-theme") ?? "auto");
  const signal = visit.signal;
  document.body.replaceChildren(notices);
  for (;;) {
    try {
      return await enter();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return logIn(token() === null ? "" : error.message);
      if (error instanceof Refused) return refuse(error.message);
      missing(/** @type {Error} */ (error));
      await pause(2 * SECOND, signal);
    }
  }
}

window.addEventListener("hashchange", () => show(true));
setAttribute(document.documentElement, "lang", "en");
void start();
