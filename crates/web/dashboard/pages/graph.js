// The graph of steps as it runs: packets a second on its edges.
//
// Edges between steps are drawn. Drops and the slow path, to which most steps lead, are numbers within the step; the table
// below has every output.

import { get } from "../client.js";
import { html, section, setAttribute, setText, svg } from "../elements.js";
import { NODE, curve, layout } from "../layout.js";
import { Rates } from "../rates.js";
import { Table } from "../table.js";
import { count, rate } from "../text.js";

const ASIDE = ["drop", "slow-path"];
const LABEL = 22;

/** @typedef {{ step: string, output: Output }} Row */

/**
 * Edges between steps, several outputs to one step together.
 * @param {Graph} graph
 */
export function edgesOf(graph) {
  /** @type {Map<string, { from: string, to: string, outputs: Output[] }>} */
  const edges = new Map();
  for (const step of graph.steps) {
    for (const output of step.outputs) {
      if (ASIDE.includes(output.to)) continue;
      const key = `${step.name} ${output.to}`;
      const edge = edges.get(key) ?? { from: step.name, to: output.to, outputs: [] };
      edge.outputs.push(output);
      edges.set(key, edge);
    }
  }
  return [...edges.values()];
}

/** @param {Step} step @param {string} to */
function aside(step, to) {
  return step.outputs.filter((output) => output.to === to).reduce((sum, output) => sum + output.packets, 0);
}

/** @param {string} text @param {number} most */
function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/**
 * A drawing, and a function that brings it up to date.
 * @param {Graph} graph
 */
function drawing(graph) {
  const edges = edgesOf(graph);
  const steps = graph.steps.map((step) => step.name);
  const ends = [...new Set(edges.map((edge) => edge.to))].filter((name) => !steps.includes(name));
  const { nodes, ways, width, height } = layout([...steps, ...ends], edges);
  const margin = 24;
  const lines = ways.map((way) => {
    const line = svg("path", { class: "edge", d: curve(way.points) });
    const flow = svg("path", { class: "flow", d: curve(way.points) });
    // Beside the end where no other edge is, on the side to which the edge does not bend.
    const isOnly = ways.filter((other) => other.from === way.from).length === 1;
    const points = isOnly ? way.points : [...way.points].reverse();
    const [x, y] = [points[0]?.x ?? 0, points[0]?.y ?? 0];
    const side = (points[1]?.x ?? 0) > x + 4 ? -1 : 1;
    const label = svg("text", { class: "rate", x: x + 7 * side, y: y + (isOnly ? 18 : -9), "text-anchor": side < 0 ? "end" : "start" });
    return { key: `edge ${way.from} ${way.to}`, line, flow, label };
  });
  const boxes = nodes.map((node) => {
    const box = svg("rect", { class: "box", x: node.x - NODE.width / 2, y: node.y, width: NODE.width, height: NODE.height, rx: 8 });
    const text = (/** @type {number} */ line, /** @type {string} */ kind) => svg("text", { class: kind, x: node.x, y: node.y + 18 + 18 * line, "text-anchor": "middle" });
    const [title, packets, others] = [text(0, "title"), text(1, "packets"), text(2, "others")];
    title.append(cut(node.name, LABEL));
    const group = svg("g", { class: "node" }, svg("title", {}, node.name), box, title, packets, others);
    return { name: node.name, group, box, packets, others };
  });
  const element = svg(
    "svg", {
      class: "graph",
      viewBox: `${-margin} ${-margin} ${width + 2 * margin} ${height + 2 * margin}`, role: "img", "aria-label": "The graph; the table below has the same numbers",
    },
    ...lines.map(({ line }) => line), ...lines.map(({ flow }) => flow), ...boxes.map(({ group }) => group), ...lines.map(({ label }) => label),
  );
  element.style.maxWidth = `${width + 2 * margin}px`;
  return {
    element,
    /** @param {Rates} rates @param {Graph} now */
    update(rates, now) {
      for (const { key, line, flow, label } of lines) {
        const of = rates.of(key);
        const width = of ? 1.6 + Math.log10(1 + of) * 0.8 : 1.2;
        setAttribute(line, "class", of ? "edge busy" : "edge");
        setAttribute(flow, "class", of ? "flow busy" : "flow");
        setAttribute(line, "stroke-width", width.toFixed(1));
        setAttribute(flow, "stroke-width", width.toFixed(1));
        setText(label, of === null ? "" : `${rate(of)}/s`);
        setAttribute(label, "class", of ? "rate busy" : "rate");
      }
      const steps = new Map(now.steps.map((step) => [step.name, step]));
      for (const { name, box, packets, others } of boxes) {
        const of = rates.of(`step ${name}`);
        setAttribute(box, "class", of ? "box busy" : "box");
        const step = steps.get(name);
        setText(packets, of === null ? "–" : `${rate(of)}/s`);
        const [drops, slow] = [rates.of(`${name} drop`), rates.of(`${name} slow-path`)];
        const said = [drops ? `drops ${rate(drops)}/s` : "", slow ? `slow path ${rate(slow)}/s` : ""].filter(Boolean);
        const total = step ? aside(step, "drop") : 0;
        setText(others, said.length ? said.join(" · ") : total ? `${count(total)} dropped` : "");
        setAttribute(others, "class", drops ? "others bad" : "others");
      }
    },
  };
}

/** @param {Graph} graph */
function counts(graph) {
  /** @type {Map<string, number>} */
  const all = new Map();
  for (const step of graph.steps) {
    all.set(`step ${step.name}`, step.packets);
    for (const to of ASIDE) all.set(`${step.name} ${to}`, aside(step, to));
    for (const output of step.outputs) all.set(`output ${step.name} ${output.name}`, output.packets);
  }
  for (const edge of edgesOf(graph)) {
    const packets = edge.outputs.reduce((sum, output) => sum + output.packets, 0);
    all.set(`edge ${edge.from} ${edge.to}`, packets);
    // Ends of the graph, such as `transmit`, have no count of their own.
    if (!graph.steps.some((step) => step.name === edge.to)) all.set(`step ${edge.to}`, (all.get(`step ${edge.to}`) ?? 0) + packets);
  }
  return all;
}

/** @type {Page} */
export const graph = {
  title: "Graph",
  show(context) {
    const rates = new Rates();
    const place = html("div", { class: "scroll drawing", tabindex: 0, role: "region", "aria-label": "Drawing of the graph" });
    /** @type {{ shape: string, drawn: ReturnType<typeof drawing> } | null} */
    let now = null;
    const idle = html("input", { type: "checkbox", change: () => last && show(last) });
    /** @type {Graph | null} */
    let last = null;
    const table = new Table("Outputs of steps", /** @type {import("../table.js").Column<Row>[]} */ ([
      { title: "Step", kind: "name", text: (row) => row.step },
      { title: "Output", text: (row) => row.output.name },
      { title: "To", text: (row) => row.output.to },
      { title: "Packets/s", kind: "number", text: (row) => rate(rates.of(`output ${row.step} ${row.output.name}`)) },
      { title: "Packets", kind: "number", text: (row) => count(row.output.packets) },
    ]), "No packet has passed the graph yet. Tick the box to see all outputs.");

    /** @param {Graph} next */
    function show(next) {
      last = next;
      const shape = JSON.stringify(next.steps.map((step) => [step.name, step.outputs.map(({ name, to }) => [name, to])]));
      if (now?.shape !== shape) {
        now = { shape, drawn: drawing(next) };
        place.replaceChildren(now.drawn.element);
        place.scrollLeft = (place.scrollWidth - place.clientWidth) / 2;
      }
      now.drawn.update(rates, next);
      const rows = next.steps.flatMap((step) => step.outputs.map((output) => ({ step: step.name, output })));
      const kept = rows.filter(({ output }) => idle.checked || output.packets > 0);
      table.update(kept.map((row) => [`${row.step} ${row.output.name}`, row]));
    }

    context.every(1, async () => {
      const next = /** @type {Graph} */ (await get("v1/graph", context.signal));
      rates.sample(performance.now() / 1000, counts(next));
      show(next);
    });
    const element = html(
      "div", { class: "page" },
      section("", place),
      section("Outputs", html("label", { class: "tick" }, idle, "Also those without packets"), table.element),
    );
    return { element };
  },
};
