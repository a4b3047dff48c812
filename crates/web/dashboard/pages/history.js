// Applied configurations: their changes, their texts, and the way back.

import { get, post } from "../client.js";
import { badge, html, section, setAttribute, setText } from "../elements.js";
import { difference, shortened } from "../lines.js";
import { Table } from "../table.js";
import { duration, time } from "../text.js";

const AROUND = 3;
const CONFIRM_S = 60;

/** @type {Page} */
export const history = {
  title: "Configuration",
  show(context) {
    const mayChange = context.may("configure");
    const details = html("div", { class: "page", "aria-live": "polite" });
    const waiting = html("div", { class: "card waiting", hidden: true });
    /** @type {HistoryEntry[]} */
    let all = [];
    let current = 0;
    const button = (/** @type {string} */ text, /** @type {HistoryEntry} */ row, /** @type {(row: HistoryEntry) => Promise<void>} */ run) => (
      html("button", { type: "button", "aria-label": `${text} ${row.number}`, click: () => void context.now(() => run(row)) }, text)
    );
    const table = new Table("Applied configurations", /** @type {import("../table.js").Column<HistoryEntry>[]} */ ([
      { title: "Number", kind: "name", text: (row) => String(row.number) },
      { title: "Time", text: (row) => time(row.time_s) },
      { title: "Origin", text: (row) => row.origin },
      { title: "File", kind: "wide", text: (row) => row.file },
      { title: "Changes", kind: "wide", text: (row) => row.summary },
      { title: "State", make: () => badge(""), update: (element, row) => showState(element, row) },
      {
        title: "Actions", hidden: true,
        make: (row) => html(
          "span", { class: "actions" }, button("Compare", row, compare), button("Text", row, text),
          mayChange ? button("Roll back", row, ask) : null,
        ),
        update: (element, row) => { element.lastChild.hidden = mayChange && row.state !== null; },
      },
    ]), "There is no configuration.");

    /** @param {HTMLElement} element @param {HistoryEntry} row */
    function showState(element, row) {
      setText(element, row.state ?? "");
      setAttribute(element, "class", row.state === null ? "" : `badge ${row.state === "current" ? "good" : "other"}`);
    }

    async function refresh() {
      all = /** @type {HistoryEntry[]} */ (await get("v1/history", context.signal));
      current = all.find((one) => one.state !== null)?.number ?? all[all.length - 1]?.number ?? 0;
      table.update([...all].reverse().map((row) => [String(row.number), row]));
      showWaiting();
    }

    function showWaiting() {
      const one = all.find((entry) => entry.state === "waiting");
      waiting.hidden = one === undefined;
      if (!one) {
        waiting.replaceChildren();
        return;
      }
      const said = `Configuration ${one.number} is undone in ${duration(one.confirm_s ?? 0)} unless it is confirmed.`;
      if (waiting.firstChild) setText(waiting.firstChild, said);
      else {
        const confirm = html("button", { type: "button", class: "main", click: () => void context.now(keep) }, "Confirm");
        waiting.replaceChildren(html("p", {}, said), ...(mayChange ? [confirm] : []));
      }
    }

    async function keep() {
      await post("v1/confirm", context.signal);
      context.say("The configuration is confirmed.");
      await refresh();
    }

    /** @param {number} number @returns {Promise<Configuration>} */
    const read = (number) => get(`v1/history/${number}`, context.signal);

    /** @param {HistoryEntry} row */
    async function text(row) {
      const { file, text } = await read(row.number);
      present(`Configuration ${row.number}, ${file}`, html("pre", { tabindex: 0 }, text));
    }

    /** @param {HistoryEntry} row */
    async function compare(row) {
      const [planned, before, now] = await Promise.all([plan(row), read(row.number), read(current)]);
      const lines = shortened(difference(now.text, before.text), AROUND);
      const shown = lines.map((line) => (
        line === null ? html("span", { class: "gap" }, "…\n") : html("span", { class: line.kind }, `${{ same: "  ", old: "- ", new: "+ " }[line.kind]}${line.text}\n`)
      ));
      const isSame = now.text === before.text;
      present(
        `From configuration ${current}, the current one, to ${row.number}`, changes(planned),
        isSame ? html("p", {}, "The texts are the same.") : html("pre", { class: "difference", tabindex: 0 }, ...shown),
      );
    }

    /** @param {HistoryEntry} row @returns {Promise<ChangePlan>} */
    const plan = (row) => get(`v1/history/${row.number}/difference`, context.signal);

    /** @param {string} title @param {...HTMLElement} children */
    function present(title, ...children) {
      const heading = html("h2", { tabindex: -1 }, title);
      const close = html("button", { type: "button", class: "quiet", click: () => details.replaceChildren() }, "Close");
      details.replaceChildren(html("section", { class: "card" }, html("div", { class: "title" }, heading, close), ...children));
      heading.focus();
    }

    /**
     * Asks whether it is meant.
     * @param {HistoryEntry} row
     */
    async function ask(row) {
      const planned = await plan(row);
      const problem = html("p", { class: "problem", role: "alert", hidden: true });
      const confirm = html("input", { type: "checkbox", checked: true });
      const run = html("button", { type: "button", class: "main danger" }, `Roll back to ${row.number}`);
      /** @type {HTMLDialogElement} */
      const dialog = html(
        "dialog", { "aria-labelledby": "rollback-title" },
        html("h2", { id: "rollback-title" }, `Roll back to configuration ${row.number}?`),
        changes(planned),
        html("label", { class: "tick" }, confirm, `Undo it after ${CONFIRM_S} s unless it is confirmed here`),
        problem,
        html("div", { class: "buttons" }, html("button", { type: "button", click: () => dialog.close() }, "Leave it"), run),
      );
      run.addEventListener("click", async () => {
        run.disabled = true;
        try {
          await rollBack(row.number, confirm.checked);
          dialog.close();
        } catch (error) {
          setText(problem, error instanceof Error ? error.message : String(error));
          problem.hidden = false;
          run.disabled = false;
        }
      });
      dialog.addEventListener("close", () => dialog.remove());
      context.signal.addEventListener("abort", () => dialog.remove());
      document.body.append(dialog);
      dialog.showModal();
    }

    /** @param {number} to @param {boolean} isOnTrial */
    async function rollBack(to, isOnTrial) {
      const body = isOnTrial ? { to, confirm_s: CONFIRM_S } : { to };
      const applied = /** @type {Applied} */ (await post("v1/rollback", context.signal, body));
      context.say(`Configuration ${applied.number}: ${applied.summary}`);
      details.replaceChildren();
      await refresh();
    }

    context.every(2, refresh);
    return { element: html("div", { class: "page" }, waiting, section("", table.element), details) };
  },
};

/** @param {ChangePlan} planned */
function changes(planned) {
  const table = new Table("Changes", /** @type {import("../table.js").Column<ChangePlan["changes"][0]>[]} */ ([
    { title: "Setting", kind: "name", text: (row) => row.what },
    { title: "Now", kind: "wide", text: (row) => row.from ?? "–" },
    { title: "Then", kind: "wide", text: (row) => row.to ?? "–" },
    { title: "How", text: (row) => row.because ?? (row.reopens ? "the port is reopened" : "live") },
  ]), "Nothing changes but the text.");
  table.update(planned.changes.map((row, at) => [`${at} ${row.what}`, row]));
  const { added, removed, changed } = planned.routes;
  const routes = added + removed + changed ? html("p", {}, `Routes: ${added} added, ${removed} removed, ${changed} changed.`) : null;
  return html("div", {}, table.element, routes);
}
