// The way of packets through the graph, step by step: of one made by hand, or of those that come.

import { post } from "../client.js";
import { field, html, section, setText } from "../elements.js";
import { count } from "../text.js";

/** @type {Page} */
export const trace = {
  title: "Trace",
  show(context, query) {
    if (!context.may("operate")) return { element: html("p", { class: "card" }, "Traces need the role operate.") };
    const packet = html("input", { type: "text", name: "packet", required: true, value: query.get("packet") ?? "", placeholder: "udp 10.0.1.2 > 10.0.2.2 in left", spellcheck: "false", autocomplete: "off" });
    const rule = html("input", { type: "text", name: "rule", placeholder: "proto=udp to_port=53", spellcheck: "false", autocomplete: "off" });
    const packets = html("input", { type: "number", name: "packets", value: 5, min: 1, max: 100, required: true });
    const seconds = html("input", { type: "number", name: "seconds", value: 10, min: 1, max: 600, required: true });
    const state = html("p", { class: "help", "aria-live": "polite" });
    const ways = html("div", { class: "page" });
    const [made, coming] = [
      html("button", { type: "submit", class: "main" }, "Trace this packet"), html("button", { type: "submit", class: "main" }, "Trace what comes"),
    ];

    /** @param {Event} event @param {unknown} request @param {string} text */
    function run(event, request, text) {
      event.preventDefault();
      [made.disabled, coming.disabled] = [true, true];
      setText(state, text);
      void context.now(async () => show(await post("v1/trace", context.signal, request))).finally(() => {
        [made.disabled, coming.disabled] = [false, false];
        if (state.textContent === text) setText(state, "");
      });
    }

    /** @param {Trace} answer */
    function show(answer) {
      const lost = answer.lost ? `; ${count(answer.lost)} steps are missing` : "";
      setText(state, answer.packets.length ? `${count(answer.packets.length)} ${answer.packets.length === 1 ? "packet" : "packets"}${lost}` : "No such packet came in this time.");
      ways.replaceChildren(...answer.packets.map(way));
    }

    const element = html(
      "div", { class: "page" },
      html(
        "div", { class: "columns" },
        section("A packet made by hand", html("form", {
          submit: (/** @type {Event} */ event) => run(event, { packet: packet.value }, "Under way…"),
        }, field("Packet", packet, "It passes the graph, and is not sent. More words: ttl 1, tcp 10.0.1.2:1000 > 10.0.2.2:80, vrf blue"), made)),
        section("Packets that come", html("form", {
          submit: (/** @type {Event} */ event) => run(event, {
            rule: rule.value.split(/\s+/).filter(Boolean), packets: packets.valueAsNumber, seconds: seconds.valueAsNumber,
          }, "Waiting for packets…"),
        }, field("Condition", rule, "As in a rule of a filter; empty: all packets"), html("div", { class: "tools" }, field("Packets", packets), field("Seconds", seconds)), coming)),
      ),
      state, ways,
    );
    return { element };
  },
};

/** @param {Trace["packets"][0]} packet */
function way(packet) {
  const steps = packet.steps.map((step) => html(
    "li", {}, html("strong", {}, step.step), html("span", { class: "output" }, ` → ${step.output}`),
    step.notes.length ? html("ul", {}, ...step.notes.map((note) => html("li", {}, note))) : null,
  ));
  return section(
    packet.packet, html("p", { class: "help" }, `${packet.length} bytes, received on ${packet.interface}, forwarder ${packet.forwarder}`),
    html("ol", { class: "steps" }, ...steps), html("p", { class: "end" }, packet.end),
  );
}
