// Hosts on the router's networks.

import { get } from "../client.js";
import { badge, field, html, section, setBadge, setText } from "../elements.js";
import { Table } from "../table.js";
import { count } from "../text.js";

/** More rows than these are not shown at once. */
const MOST = 400;

/** @type {Page} */
export const neighbours = {
  title: "Neighbours",
  show(context, query) {
    /** @type {Neighbour[]} */
    let all = [];
    const search = html("input", { type: "search", value: query.get("q") ?? "", placeholder: "address, MAC or port", input: draw });
    const shownOf = html("p", { class: "help" });
    const table = new Table("Neighbours", /** @type {import("../table.js").Column<Neighbour>[]} */ ([
      { title: "Address", kind: "name", text: (row) => row.address },
      { title: "Port", text: (row) => row.port },
      { title: "MAC", text: (row) => row.mac ?? "–" },
      { title: "State", make: (row) => badge(row.state), update: (element, row) => setBadge(element, row.state) },
      { title: "Configured", text: (row) => (row.static ? "yes" : "no") },
      { title: "Waiting packets", kind: "number", text: (row) => count(row.queued) },
    ]), "Reading…");

    function draw() {
      const wanted = search.value.trim().toLowerCase();
      const rows = all.filter((row) => [row.address, row.port, row.mac ?? ""].some((text) => text.toLowerCase().includes(wanted)));
      table.empty = wanted ? `No neighbour has "${wanted}" in its address, MAC or port.` : "No neighbour is known: none has sent or was sent a packet.";
      table.update(rows.slice(0, MOST).map((row) => [`${row.port} ${row.address}`, row]));
      const more = rows.length > MOST ? `; ${MOST} are shown, search for the others` : "";
      setText(shownOf, `${count(rows.length)} of ${count(all.length)}${more}`);
    }

    context.every(2, async () => {
      all = /** @type {Neighbour[]} */ (await get("v1/neighbours", context.signal));
      draw();
    });
    return { element: html("div", { class: "page" }, section("", html("div", { class: "tools" }, field("Search", search), shownOf), table.element)) };
  },
};
