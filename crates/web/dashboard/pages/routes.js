// Routes in pages, with a search by prefix or address.

import { Refused, get } from "../client.js";
import { badge, field, html, section, setText } from "../elements.js";
import { Table } from "../table.js";
import { count, way } from "../text.js";

const LIMIT = 100;
const REFRESH_S = 5;

/** @typedef {{ vrf: string, q: string, unused: boolean, after: string[] }} Place */

/** @type {Page} */
export const routes = {
  title: "Routes",
  show(context, query) {
    /** @type {Place} */
    let at = read(query);
    const vrf = html("select", { name: "vrf" }, html("option", { value: "" }, "default"));
    const search = html("input", { type: "search", name: "q", placeholder: "10.0.0.0/8 or 10.1.2.3", autocomplete: "off", spellcheck: "false" });
    const unused = html("input", { type: "checkbox", name: "unused" });
    const form = html(
      "form", { class: "tools", role: "search", submit: (/** @type {Event} */ event) => { event.preventDefault(); go({ ...wanted(), after: [] }); } },
      field("VRF", vrf), field("Prefix or address", search), html("label", { class: "tick" }, unused, "Also unused routes"),
      html("button", { type: "submit", class: "main" }, "Search"),
    );
    vrf.addEventListener("change", () => go({ ...wanted(), after: [] }));
    unused.addEventListener("change", () => go({ ...wanted(), after: [] }));
    const summary = html("p", { class: "help", "aria-live": "polite" });
    const lookup = html("div", { class: "lookup", "aria-live": "polite" });
    const table = new Table("Routes", /** @type {import("../table.js").Column<Route>[]} */ ([
      { title: "Prefix", kind: "name", text: (row) => row.prefix },
      { title: "Way", kind: "wide", text: (row) => row.paths.map(way).join("; ") || row.type },
      { title: "Type", text: (row) => row.type },
      { title: "Source", text: (row) => row.source },
      { title: "Metric", kind: "number", text: (row) => count(row.metric) },
      { title: "State", make: (row) => badge(row.active ? "in use" : row.inactive ?? "unused") },
    ]), "Reading…");
    const back = html("button", { type: "button", click: () => go({ ...at, after: at.after.slice(0, -1) }) }, "‹ Previous");
    const forth = html("button", { type: "button", click: () => next !== null && go({ ...at, after: [...at.after, next] }) }, "Next ›");
    const where = html("span", { class: "where" });
    const pager = html("div", { class: "pager", role: "group", "aria-label": "Pages" }, back, where, forth);
    /** @type {string | null} */
    let next = null;
    let turn = 0;

    /** @returns {Place} */
    const wanted = () => ({ vrf: vrf.value, q: search.value.trim(), unused: unused.checked, after: at.after });

    /**
     * Shows another place, which the address has as well.
     * @param {Place} place
     */
    function go(place) {
      const query = new URLSearchParams();
      if (place.vrf) query.set("vrf", place.vrf);
      if (place.q) query.set("q", place.q);
      if (place.unused) query.set("unused", "1");
      place.after.forEach((after) => query.append("after", after));
      const text = String(query) ? `#/routes?${query}` : "#/routes";
      if (location.hash === text) void context.now(ask);
      else location.hash = text;
    }

    function fill() {
      [vrf.value, search.value, unused.checked] = [at.vrf, at.q, at.unused];
    }

    async function ask() {
      try {
        await find();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        lookup.replaceChildren();
        table.empty = "No routes: see the message above.";
        table.update([]);
        throw new Refused(error.status, at.q ? `${at.q}: ${error.message}` : error.message);
      }
    }

    async function find() {
      const mine = (turn += 1);
      const isAddress = at.q !== "" && !at.q.includes("/");
      const inVrf = at.vrf || undefined;
      /** @type {RouteAnswer | null} */
      let answer = null;
      if (isAddress) answer = await get("v1/lookup", context.signal, { address: at.q, vrf: inVrf });
      const prefix = isAddress ? answer?.prefix ?? undefined : at.q || undefined;
      /** @type {RoutePage} */
      let page = { routes: answer?.candidates ?? [], next: null };
      if (!isAddress) {
        page = await get("v1/routes", context.signal, {
          limit: LIMIT, after: at.after[at.after.length - 1], vrf: inVrf, prefix, longer: prefix ? true : undefined, all: at.unused || undefined,
        });
      }
      // A later question has been asked meanwhile.
      if (mine !== turn) return;
      next = page.next;
      showAnswer(answer);
      table.empty = at.q ? `No route to ${at.q}${at.vrf ? ` in VRF ${at.vrf}` : ""}. Search for a shorter prefix, or tick "Also unused routes".` : "There is no route in this VRF.";
      table.update(page.routes.map((route, place) => [`${turn} ${place} ${route.prefix} ${route.source} ${route.metric} ${route.active} ${route.inactive}`, route]));
      back.disabled = at.after.length === 0;
      forth.disabled = next === null;
      pager.hidden = at.after.length === 0 && next === null;
      setText(where, `page ${at.after.length + 1}`);
    }

    /** @param {RouteAnswer | null} answer */
    function showAnswer(answer) {
      if (!answer) {
        lookup.replaceChildren();
        return;
      }
      const paths = answer.paths.map((path) => html(
        "li", {}, `${path.via ? `via ${path.via} ` : ""}on ${path.port}, ${path.mac ?? "MAC unknown"} `, badge(path.state),
      ));
      const verdict = answer.prefix === null ? `${answer.address}: no route` : `${answer.address}: ${answer.type} by ${answer.prefix} of ${answer.source}`;
      lookup.replaceChildren(html("p", {}, html("strong", {}, verdict)), html("ul", {}, ...paths));
    }

    async function askVrfs() {
      const vrfs = /** @type {Vrf[]} */ (await get("v1/vrfs", context.signal));
      const options = vrfs.map((one, number) => html("option", { value: number === 0 ? "" : one.name }, one.name));
      const names = (/** @type {Iterable<Element>} */ all) => [...all].map((one) => one.textContent).join("\n");
      if (names(options) !== names(vrf.children)) {
        vrf.replaceChildren(...options);
        vrf.value = at.vrf;
      }
      const own = vrfs.find((one, number) => (number === 0 ? at.vrf === "" : one.name === at.vrf));
      if (own) setText(summary, `${count(own.routes.ipv4)} routes of IPv4 and ${count(own.routes.ipv6)} of IPv6; forwarders use ${count(own.fib.ipv4 + own.fib.ipv6)} prefixes.`);
    }

    fill();
    context.every(REFRESH_S, askVrfs);
    context.every(REFRESH_S, ask);
    return {
      element: html("div", { class: "page" }, section("", form, summary, lookup, table.element, pager)),
      query(changed) {
        at = read(changed);
        fill();
        void context.now(ask);
        void context.now(askVrfs);
      },
    };
  },
};

/** @param {URLSearchParams} query @returns {Place} */
function read(query) {
  return { vrf: query.get("vrf") ?? "", q: query.get("q") ?? "", unused: query.has("unused"), after: query.getAll("after") };
}
