// The router at a glance: packets, load, interfaces, drops.

import { badge, html, meter, section, setBadge, setText, sparkline } from "../elements.js";
import { Past, Rates } from "../rates.js";
import { Table } from "../table.js";
import { bits, count, rate } from "../text.js";

const PLACES = 60;
const SHOWN = 12;
const GAP_US = 10_000_000;

/** They stay while other pages are shown. */
const past = new Past(PLACES);
let latest = 0;

/**
 * Counts of an overview by name.
 * @param {Overview} overview
 */
export function countsOf(overview) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  const { received, sent, to_host, dropped_total, dropped_by_step } = overview.counters;
  Object.entries({ received, sent, to_host, dropped_total }).forEach(([name, value]) => counts.set(name, value));
  for (const [step, reasons] of Object.entries(dropped_by_step)) {
    for (const [reason, value] of Object.entries(reasons)) counts.set(`drop ${step} ${reason}`, value);
  }
  for (const forwarder of overview.forwarders.forwarders) counts.set(`forwarder ${forwarder.number}`, forwarder.packets);
  for (const one of overview.interfaces ?? overview.ports) {
    counts.set(`rx ${one.name}`, one.rx_packets).set(`rx bytes ${one.name}`, one.rx_bytes);
    counts.set(`tx ${one.name}`, one.tx_packets).set(`tx bytes ${one.name}`, one.tx_bytes);
  }
  for (const port of overview.ports) counts.set(`lost ${port.name}`, lost(port));
  return counts;
}

/**
 * Packets that a port's device has lost.
 * @param {Port} port
 */
export function lost(port) {
  return port.rx_missed + port.rx_errors + port.tx_errors;
}

/** @param {string} title */
function figure(title) {
  const value = html("span", { class: "big" }, "–");
  const line = sparkline(`${title}, the last minute`);
  const total = html("span", { class: "total" }, " ");
  return { value, line, total, element: html("div", { class: "card figure" }, html("h2", {}, title), value, html("span", { class: "unit" }, " packets/s"), line.element, total) };
}

/** @type {Page} */
export const overview = {
  title: "Overview",
  interfaces: true,
  show() {
    const rates = new Rates();
    const figures = { received: figure("Received"), sent: figure("Sent"), to_host: figure("To the host"), dropped_total: figure("Dropped") };
    /** @type {Map<number, { load: ReturnType<typeof meter>, line: ReturnType<typeof sparkline>, packets: HTMLElement, element: HTMLElement }>} */
    const loads = new Map();
    const list = html("ul", { class: "loads" });
    const ports = new Table("Interfaces and their rates", /** @type {import("../table.js").Column<Interface | Port>[]} */ ([
      { title: "Interface", kind: "name", text: (row) => row.name },
      { title: "Link", make: (row) => badge(row.link), update: (element, row) => setBadge(element, row.link) },
      { title: "In, packets/s", kind: "number", text: (row) => rate(rates.of(`rx ${row.name}`)) },
      { title: "In", kind: "number", text: (row) => bits(rates.of(`rx bytes ${row.name}`)) },
      { title: "Out, packets/s", kind: "number", text: (row) => rate(rates.of(`tx ${row.name}`)) },
      { title: "Out", kind: "number", text: (row) => bits(rates.of(`tx bytes ${row.name}`)) },
      { title: "Lost by the device", kind: "number", text: (row) => (losses.has(row.name) ? count(losses.get(row.name) ?? 0) : "–") },
    ]), "The configuration has no port. Add a turnpike.port, and apply it.");
    /** @type {Map<string, number>} */
    let losses = new Map();
    const more = html("p", { class: "more" });
    const drops = new Table("Drops by step and reason", /** @type {import("../table.js").Column<{ step: string, reason: string, packets: number }>[]} */ ([
      { title: "Reason", kind: "name", text: (row) => row.reason },
      { title: "Step", text: (row) => row.step },
      { title: "Packets/s", kind: "number", text: (row) => rate(rates.of(`drop ${row.step} ${row.reason}`)) },
      { title: "Packets", kind: "number", text: (row) => count(row.packets) },
    ]), "No packet was dropped.");

    /** @param {Overview} now */
    function live(now) {
      const isNew = now.at_us !== latest;
      // Values from before a gap are of another minute.
      if (now.at_us < latest || now.at_us - latest > GAP_US) past.clear();
      latest = now.at_us;
      rates.sample(now.at_us / 1e6, countsOf(now));
      for (const [name, { value, line, total }] of Object.entries(figures)) {
        const of = rates.of(name);
        setText(value, rate(of));
        setText(total, `${count(now.counters[/** @type {"sent"} */ (name)])} in all`);
        const values = of !== null && isNew ? past.add(name, of) : past.of(name);
        line.set(values, 1, PLACES);
      }
      showLoads(now, isNew);
      showPorts(now);
      showDrops(now);
    }

    /** @param {Overview} now @param {boolean} isNew */
    function showLoads(now, isNew) {
      for (const one of now.forwarders.forwarders) {
        const name = `forwarder ${one.number}`;
        let made = loads.get(one.number);
        if (!made) {
          const [load, line, packets] = [meter(`Load of forwarder ${one.number}`), sparkline(`Load of forwarder ${one.number}, the last minute`), html("span", { class: "packets" })];
          const title = html("span", { class: "of" }, `${one.number}`, html("small", {}, one.control ? " control" : ` core ${one.core}`));
          made = { load, line, packets, element: html("li", {}, title, load.element, line.element, packets) };
          loads.set(one.number, made);
          list.append(made.element);
        }
        made.load.set(one.busy_percent);
        made.line.set(isNew ? past.add(`load ${one.number}`, one.busy_percent) : past.of(`load ${one.number}`), 100, PLACES);
        setText(made.packets, `${rate(rates.of(name))} packets/s`);
      }
      for (const [number, { element }] of loads) {
        if (now.forwarders.forwarders.some((one) => one.number === number)) continue;
        element.remove();
        loads.delete(number);
      }
    }

    /** @param {Overview} now */
    function showPorts(now) {
      const all = now.interfaces ?? now.ports;
      losses = new Map(now.ports.map((port) => [port.name, lost(port)]));
      ports.update(all.slice(0, SHOWN).map((one) => [one.name, one]));
      if (all.length <= SHOWN) more.replaceChildren();
      else more.replaceChildren(html("a", { href: "#/interfaces" }, `All ${all.length} interfaces`));
    }

    /** @param {Overview} now */
    function showDrops(now) {
      const all = Object.entries(now.counters.dropped_by_step).flatMap(([step, reasons]) => (
        Object.entries(reasons).filter(([, packets]) => packets > 0).map(([reason, packets]) => ({ step, reason, packets }))
      ));
      const by = (/** @type {{ step: string, reason: string, packets: number }} */ row) => rates.of(`drop ${row.step} ${row.reason}`) ?? 0;
      all.sort((one, other) => by(other) - by(one) || other.packets - one.packets);
      drops.update(all.slice(0, SHOWN).map((row) => [`${row.step} ${row.reason}`, row]));
    }

    const element = html(
      "div", { class: "page" },
      html("div", { class: "figures" }, ...Object.values(figures).map((one) => one.element)),
      html("div", { class: "columns" }, section("Forwarders", list), section("Drops", drops.element)),
      section("Interfaces", ports.element, more),
    );
    return { element, live };
  },
};
