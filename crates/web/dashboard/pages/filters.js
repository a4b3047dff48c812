// Filters with the hits of their rules, a question to each, and sets of prefixes.

import { get } from "../client.js";
import { badge, field, html, section, setText } from "../elements.js";
import { Rates } from "../rates.js";
import { Table } from "../table.js";
import { ago, bytes, count, duration, rate } from "../text.js";

/** The filter that no port has. */
const TO_ROUTER = "to-router";

/** More elements of a set than these are not shown. */
const MOST = 200;

/** More rules of a filter than these are not shown. */
const RULES = 400;

/** @typedef {{ filter: string, rule: Rule | null, of: Filter }} Row */

/**
 * What a rule is, beside its counts: another rule of the same number has counts of its own.
 * @param {Filter} filter
 * @param {Rule | null} rule
 */
function key(filter, rule) {
  return rule ? `${filter.name} ${rule.number} ${rule.name} ${rule.action} ${rule.matches}` : `${filter.name} default ${filter.default}`;
}

/** @param {Row} row */
const packetsOf = (row) => (row.rule ? row.rule.packets : row.of.default_packets);

/**
 * A filter's section.
 * @param {Context} context
 * @param {Rates} rates
 * @param {Filter} filter
 */
function shown(context, rates, filter) {
  const table = new Table(`Rules of ${filter.name}`, /** @type {import("../table.js").Column<Row>[]} */ ([
    { title: "Rule", kind: "name", text: (row) => (row.rule ? `${row.rule.number}${row.rule.name ? ` ${row.rule.name}` : ""}` : "default") },
    { title: "Matches", kind: "wide", text: (row) => (row.rule ? row.rule.matches || "everything" : "packets that no rule matches") },
    { title: "Action", make: (row) => badge(row.rule ? row.rule.action : row.of.default) },
    { title: "Limit", text: (row) => row.rule?.police ?? "–" },
    { title: "Packets/s", kind: "number", text: (row) => rate(rates.of(key(row.of, row.rule))) },
    { title: "Packets", kind: "number", text: (row) => count(packetsOf(row)) },
    { title: "Bytes", kind: "number", text: (row) => bytes(row.rule ? row.rule.bytes : row.of.default_bytes) },
    { title: "Last packet", kind: "number", text: (row) => (row.rule ? ago(row.rule.last_s) : "–") },
  ]), "It has no rule.");
  const places = html("p", { class: "help" });
  const packet = html("input", { type: "text", required: true, placeholder: "udp 10.0.1.2 > 10.0.2.2:53 in left", spellcheck: "false", autocomplete: "off" });
  const verdict = html("output", { class: "verdict" });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    void context.now(async () => {
      const of = /** @type {Verdict} */ (await get(`v1/filters/${encodeURIComponent(filter.name)}/verdict`, context.signal, { packet: packet.value }));
      const by = of.rule ? `rule ${of.rule.number}${of.rule.name ? ` ${of.rule.name}` : ""}` : of.why || "the default";
      setText(verdict, `${of.action}: ${by}`);
    });
  };
  const form = html("form", { class: "tools", submit }, field("Verdict on a packet", packet), html("button", { type: "submit" }, "Ask"), verdict);
  return {
    element: section(filter.name, places, table.element, form),
    /** @param {Filter} now */
    update(now) {
      const inward = now.inward.length ? `received on ${now.inward.join(", ")}` : "";
      const outward = now.outward.length ? `sent on ${now.outward.join(", ")}` : "";
      const used = [inward, outward].filter(Boolean).join("; ") || (now.name === TO_ROUTER ? "packets to the router itself" : "no port has it for all of its packets");
      setText(places, now.rules.length > RULES ? `${used}; the first ${RULES} of ${count(now.rules.length)} rules` : used);
      table.update([...now.rules.slice(0, RULES), null].map((rule) => [key(now, rule), { filter: now.name, rule, of: now }]));
    },
  };
}

/** @type {Page} */
export const filters = {
  title: "Filters",
  show(context) {
    const rates = new Rates();
    /** @type {Map<string, ReturnType<typeof shown>>} */
    const known = new Map();
    const place = html("div", { class: "page" });
    const none = html("p", { class: "card" }, "The configuration has no filter. turnpike.filter declares one, and a port's setting filter uses it.");
    const sets = html("div", { class: "page" });
    // The router has to list all elements for them, so they are shown when they are asked for.
    const ask = html("button", { type: "button", click: () => void context.now(showSets) }, "Show sets of prefixes");
    context.every(1, async () => {
      const all = /** @type {Filter[]} */ (await get("v1/filters", context.signal));
      const counts = all.flatMap((filter) => [...filter.rules.slice(0, RULES), null].map((rule) => (
        /** @type {[string, number]} */ ([key(filter, rule), packetsOf({ filter: filter.name, rule, of: filter })])
      )));
      rates.sample(performance.now() / 1000, new Map(counts));
      for (const filter of all) {
        const one = known.get(filter.name) ?? shown(context, rates, filter);
        if (!known.has(filter.name)) place.append(one.element);
        known.set(filter.name, one);
        one.update(filter);
      }
      for (const [name, one] of known) {
        if (all.some((filter) => filter.name === name)) continue;
        one.element.remove();
        known.delete(name);
      }
      if (all.length) none.remove();
      else place.append(none);
    });
    async function showSets() {
      const all = /** @type {PrefixSet[]} */ (await get("v1/sets", context.signal));
      sets.replaceChildren(...all.map((set) => {
        const of = (/** @type {PrefixSet["elements"][0]} */ one) => `${one.prefix}${one.by === "configuration" ? "" : ` (${one.by}${one.remaining_s === null ? "" : `, ${duration(one.remaining_s)} left`})`}`;
        const more = set.elements.length > MOST ? ` and ${count(set.elements.length - MOST)} more` : "";
        const text = set.elements.slice(0, MOST).map(of).join(", ") || "empty";
        return section(`Set ${set.name}`, html("p", { class: "elements" }, text + more));
      }));
      if (!all.length) sets.replaceChildren(html("p", { class: "card" }, "There is no set of prefixes."));
    }
    return { element: html("div", { class: "page" }, place, html("div", { class: "buttons" }, ask), sets) };
  },
};
