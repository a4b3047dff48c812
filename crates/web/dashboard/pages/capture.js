// A capture into a file of the browser's, in pcapng.

import { get, respond } from "../client.js";
import { field, html, section, setText } from "../elements.js";
import { bytes, duration } from "../text.js";

/** A capture that is longer ends by itself: the browser keeps it in memory. */
const MOST = 256 << 20;

/** @type {Page} */
export const capture = {
  title: "Capture",
  show(context) {
    if (!context.may("operate")) return { element: html("p", { class: "card" }, "Captures need the role operate.") };
    const port = html("select", { name: "interface" }, html("option", { value: "" }, "all"));
    const place = html("select", { name: "place" }, ...[
      ["wire", "Received and sent"], ["dropped", "Dropped"], ["punted", "To the slow path"], ["at", "Entering a step"],
    ].map(([value, text]) => html("option", { value }, text)));
    const step = html("select", { name: "step" });
    const reason = html("input", { type: "text", name: "reason", placeholder: "any", spellcheck: "false", autocomplete: "off" });
    const rule = html("input", { type: "text", name: "rule", placeholder: "proto=udp to_port=53", spellcheck: "false", autocomplete: "off" });
    const snap = html("input", { type: "number", name: "snap", min: 14, max: 16384, value: 262, required: true });
    const [atStep, forReason] = [field("Step", step), field("Drop reason", reason)];
    const start = html("button", { type: "submit", class: "main" }, "Start");
    const stop = html("button", { type: "button", disabled: true, click: () => running?.abort() }, "Stop");
    const state = html("p", { class: "help", "aria-live": "off" }, "Nothing is captured.");
    const files = html("ul", { class: "files", "aria-live": "polite" });
    /** @type {AbortController | null} */
    let running = null;
    /** @type {string[]} */
    const addresses = [];

    function choose() {
      atStep.hidden = place.value !== "at";
      forReason.hidden = place.value !== "dropped";
    }

    function request() {
      return {
        ...(port.value ? { interface: port.value } : {}),
        ...(place.value === "at" ? { at: step.value } : {}),
        ...(place.value === "dropped" ? { dropped: reason.value.trim() } : {}),
        ...(place.value === "punted" ? { punted: true } : {}),
        snap: snap.valueAsNumber, rule: rule.value.split(/\s+/).filter(Boolean),
      };
    }

    async function run() {
      if (running) return;
      const own = new AbortController();
      running = own;
      [start.disabled, stop.disabled] = [true, false];
      context.signal.addEventListener("abort", () => own.abort());
      const began = performance.now();
      /** @type {Uint8Array[]} */
      const pieces = [];
      let size = 0;
      const say = () => setText(state, `Capturing for ${duration((performance.now() - began) / 1000)}: ${bytes(size)}`);
      try {
        const response = await respond("POST", "v1/capture", own.signal, request());
        const reader = response.body?.getReader();
        say();
        const ticks = setInterval(say, 500);
        own.signal.addEventListener("abort", () => clearInterval(ticks));
        for (;;) {
          const piece = await reader?.read();
          if (!piece || piece.done) break;
          pieces.push(piece.value);
          size += piece.value.length;
          if (size > MOST) own.abort();
        }
      } catch (error) {
        // What has come is the file; one that was not stopped here says so.
        if (!own.signal.aborted) throw error;
      } finally {
        own.abort();
        running = null;
        [start.disabled, stop.disabled] = [false, true];
        setText(state, "Nothing is captured.");
        if (size && !context.signal.aborted) offer(pieces, size);
      }
    }

    /** @param {Uint8Array[]} pieces @param {number} size */
    function offer(pieces, size) {
      const address = URL.createObjectURL(new Blob(pieces, { type: "application/vnd.tcpdump.pcap" }));
      addresses.push(address);
      const name = `turnpike-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.pcapng`;
      files.prepend(html("li", {}, html("a", { href: address, download: name }, `Download ${name}`), ` ${bytes(size)}`));
    }

    place.addEventListener("change", choose);
    choose();
    context.signal.addEventListener("abort", () => addresses.forEach((address) => URL.revokeObjectURL(address)));
    void context.now(async () => {
      const [graph, interfaces] = await Promise.all([get("v1/graph", context.signal), get("v1/interfaces", context.signal)]);
      step.replaceChildren(.../** @type {Graph} */ (graph).steps.map((one) => html("option", { value: one.name }, one.name)));
      port.append(.../** @type {Interface[]} */ (interfaces).map((one) => html("option", { value: one.name }, one.name)));
    });
    const form = html(
      "form", { submit: (/** @type {Event} */ event) => { event.preventDefault(); void context.now(run); } },
      html("div", { class: "tools" }, field("Packets", place), atStep, forReason, field("Interface", port), field("Bytes of each", snap)),
      field("Condition", rule, "As in a rule of a filter; empty: all packets"),
      html("div", { class: "buttons" }, start, stop), state,
    );
    return { element: html("div", { class: "page" }, section("", form), section("Files", html("p", { class: "help" }, "They stay in this tab until you leave the page."), files)) };
  },
};
