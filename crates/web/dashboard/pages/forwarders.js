// Forwarders, what they wait for and what disturbs them, and queues of interfaces in software.

import { get } from "../client.js";
import { html, meter, section, setText } from "../elements.js";
import { Rates } from "../rates.js";
import { Table } from "../table.js";
import { bytes, count, rate, short } from "../text.js";

/** @typedef {InterfaceQueue["classes"][0] & { interface: string, queue: string, shape?: string }} Class */

/** @type {Page} */
export const forwarders = {
  title: "Forwarders",
  show(context) {
    const rates = new Rates();
    /** @param {Forwarder} row @param {"busy_cycles" | "bursts"} what */
    const per = (row, what) => {
      const [packets, of] = [rates.of(`packets ${row.number}`), rates.of(`${what} ${row.number}`)];
      if (!packets || of === null) return "–";
      return what === "bursts" ? (of ? (packets / of).toFixed(1) : "–") : short(Math.round(of / packets));
    };
    /** @type {WeakMap<HTMLElement, ReturnType<typeof meter>>} */
    const meters = new WeakMap();
    const table = new Table("Forwarders", /** @type {import("../table.js").Column<Forwarder>[]} */ ([
      { title: "Forwarder", kind: "name", text: (row) => `${row.number}${row.control ? " control" : ""}` },
      { title: "Core", kind: "number", text: (row) => `${row.core}${row.node === undefined ? "" : ` (node ${row.node})`}` },
      {
        title: "Load",
        make: (row) => {
          const made = meter(`Load of forwarder ${row.number}`);
          meters.set(made.element, made);
          return made.element;
        },
        update: (element, row) => meters.get(element)?.set(row.busy_percent),
      },
      { title: "Packets/s", kind: "number", text: (row) => rate(rates.of(`packets ${row.number}`)) },
      { title: "Packets/burst", kind: "number", text: (row) => per(row, "bursts") },
      { title: "Cycles/packet", kind: "number", text: (row) => per(row, "busy_cycles") },
      { title: "Without packets", text: (row) => `${row.waiting.wait}${row.waiting.blocking ? ", blocks" : ""}` },
      { title: "Interruptions/s", kind: "number", text: (row) => rate(rates.of(`interruptions ${row.number}`)) },
      { title: "Receives from", kind: "wide", text: (row) => row.rx.join(", ") || "–" },
      { title: "Sends to", kind: "wide", text: (row) => row.tx.join(", ") || "–" },
      { title: "Packets", kind: "number", text: (row) => count(row.packets) },
    ]), "No forwarder runs.");
    const advice = html("ul", { class: "advice" });
    const control = html("p", { class: "help" });
    const queues = new Table("Queues of interfaces", /** @type {import("../table.js").Column<Class>[]} */ ([
      { title: "Interface", kind: "name", text: (row) => row.interface },
      { title: "Queue", text: (row) => row.queue + (row.shape ? `, ${row.shape}` : "") },
      { title: "Class", text: (row) => row.name },
      { title: "Waiting", kind: "number", text: (row) => count(row.waiting) },
      { title: "Bytes", kind: "number", text: (row) => bytes(row.waiting_bytes) },
      { title: "Delay, µs", kind: "number", text: (row) => count(row.delay_us) },
      { title: "Longest, µs", kind: "number", text: (row) => count(row.delay_most_us) },
      { title: "Sent", kind: "number", text: (row) => count(row.sent) },
      { title: "Dropped", kind: "number", text: (row) => count(row.full + row.red + row.codel) },
    ]), "No interface has a queue in software: its settings are queue and shape.");

    /** @param {Overview} now */
    function live(now) {
      /** @type {Map<string, number>} */
      const counts = new Map();
      for (const one of now.forwarders.forwarders) {
        counts.set(`packets ${one.number}`, one.packets).set(`bursts ${one.number}`, one.bursts);
        counts.set(`busy_cycles ${one.number}`, one.busy_cycles);
        if (one.interference) counts.set(`interruptions ${one.number}`, one.interference.involuntary_switches);
      }
      rates.sample(now.at_us / 1e6, counts);
      table.update(now.forwarders.forwarders.map((row) => [String(row.number), row]));
      setText(control, now.forwarders.control.length ? `Everything else runs on core ${now.forwarders.control.join(", ")}.` : "");
      const texts = now.forwarders.advice;
      if ([...advice.children].map((one) => one.textContent).join("\n") !== texts.join("\n")) {
        advice.replaceChildren(...texts.map((text) => html("li", {}, text)));
      }
    }

    context.every(1, async () => {
      const all = /** @type {InterfaceQueue[]} */ (await get("v1/queues", context.signal));
      const rows = all.flatMap(({ classes, ...of }) => classes.map((one) => ({ ...one, ...of })));
      queues.update(rows.map((row) => [`${row.interface} ${row.name}`, row]));
    });
    return {
      element: html("div", { class: "page" }, section("Forwarders", table.element, control, advice), section("Queues", queues.element)),
      live,
    };
  },
};
