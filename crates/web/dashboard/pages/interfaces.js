// Ports, bonds and VLANs as a tree, by VRF if wanted.

import { badge, field, html, section, setBadge, setText } from "../elements.js";
import { Rates } from "../rates.js";
import { Table } from "../table.js";
import { bits, count, rate } from "../text.js";
import { countsOf, lost } from "./overview.js";

/** More rows than these are not shown at once. */
const MOST = 400;

/**
 * @typedef {Interface & { depth: number, port: Port | undefined }} Row
 */

/**
 * Each interface below the one that carries it.
 * @param {Overview} overview
 * @returns {Row[]}
 */
export function tree(overview) {
  const ports = new Map(overview.ports.map((port) => [port.name, port]));
  const all = overview.interfaces ?? [];
  /** @type {Map<string | undefined, Interface[]>} */
  const children = new Map();
  const known = new Set(all.map((one) => one.name));
  for (const one of all) {
    const parent = one.parent !== undefined && known.has(one.parent) ? one.parent : undefined;
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  /** @type {(parent: string | undefined, depth: number) => Row[]} */
  const below = (parent, depth) => (
    (children.get(parent) ?? []).flatMap((one) => [{ ...one, depth, port: ports.get(one.name) }, ...below(one.name, depth + 1)])
  );
  return below(undefined, 0);
}

/** @type {Page} */
export const interfaces = {
  title: "Interfaces",
  interfaces: true,
  show(_, query) {
    const rates = new Rates();
    /** @type {Overview | null} */
    let now = null;
    const search = html("input", { type: "search", value: query.get("q") ?? "", placeholder: "name, address, MAC or VRF", input: draw });
    const table = new Table("Interfaces", /** @type {import("../table.js").Column<Row>[]} */ ([
      { title: "Interface", kind: "name", make: (row) => name(row), update: () => undefined },
      { title: "Link", make: (row) => badge(row.link), update: (element, row) => setBadge(element, row.link) },
      { title: "VRF", text: (row) => row.vrf ?? "–" },
      { title: "Addresses", kind: "wide", text: (row) => row.addresses.join(", ") || "–" },
      { title: "In, packets/s", kind: "number", text: (row) => rate(rates.of(`rx ${row.name}`)) },
      { title: "In", kind: "number", text: (row) => bits(rates.of(`rx bytes ${row.name}`)) },
      { title: "Out, packets/s", kind: "number", text: (row) => rate(rates.of(`tx ${row.name}`)) },
      { title: "Out", kind: "number", text: (row) => bits(rates.of(`tx bytes ${row.name}`)) },
      { title: "Lost by the device", kind: "number", text: (row) => (row.port ? count(lost(row.port)) : "–") },
      { title: "Packets in", kind: "number", text: (row) => count(row.rx_packets) },
      { title: "Packets out", kind: "number", text: (row) => count(row.tx_packets) },
      { title: "MAC", text: (row) => row.mac },
      { title: "MTU", kind: "number", text: (row) => count(row.mtu) },
      { title: "Device", text: (row) => (row.port ? `${row.port.device} (${row.port.driver})` : "–") },
      { title: "Host interface", text: (row) => row.host?.reason ?? row.host?.state ?? "–" },
    ]), "There is no interface.");
    const shownOf = html("p", { class: "help" });

    function draw() {
      if (!now) return;
      const wanted = search.value.trim().toLowerCase();
      const fits = (/** @type {Row} */ row) => [row.name, row.mac, row.vrf ?? "", ...row.addresses].some((text) => text.toLowerCase().includes(wanted));
      const rows = tree(now).filter((row) => !wanted || fits(row));
      table.empty = wanted ? `No interface has "${wanted}" in its name, MAC, VRF or addresses.` : "There is no interface.";
      table.update(rows.slice(0, MOST).map((row) => [`${row.depth} ${row.kind} ${row.tag?.id} ${row.name}`, row]));
      setText(shownOf, rows.length > MOST ? `${MOST} of ${count(rows.length)} are shown; search for the others.` : "");
    }

    const element = html("div", { class: "page" }, section("", html("div", { class: "tools" }, field("Search", search), shownOf), table.element));
    return {
      element,
      live(next) {
        if (!next.interfaces) return;
        now = next;
        rates.sample(next.at_us / 1e6, countsOf(next));
        draw();
      },
    };
  },
};

/** @param {Row} row */
function name(row) {
  const tag = row.tag ? ` ${row.tag.protocol} ${row.tag.id}` : "";
  return html("span", { class: `depth${Math.min(row.depth, 3)}` }, row.name, html("small", {}, ` ${row.kind}${tag}`));
}
