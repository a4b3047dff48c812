// Elements are made here only, and texts become text: whatever a name contains, it is no element.

/** @typedef {string | number | boolean | null | undefined | ((event: any) => void)} Attribute */
/** @typedef {Node | string | number | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element
 * @param {Record<string, Attribute>} attributes
 * @param {Child[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
}

/**
 * Makes an element of HTML; functions among the attributes are called by events of their name.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {Record<string, Attribute>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  fill(element, attributes, children);
  return element;
}

/**
 * Makes an element of SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} name
 * @param {Record<string, Attribute>} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  fill(element, attributes, children);
  return element;
}

/**
 * Sets a text, if it is another one.
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Sets an attribute, if it has another value.
 * @param {Element} element
 * @param {string} name
 * @param {string} value
 */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * A section, with a heading if it has a title.
 * @param {string} title
 * @param {...Child} children
 */
export function section(title, ...children) {
  return html("section", { class: "card" }, title ? html("h2", {}, title) : null, ...children);
}

/**
 * A field of a form with its label.
 * @param {string} label
 * @param {HTMLElement} input
 * @param {string} [help]
 */
export function field(label, input, help) {
  return html("label", { class: "field" }, html("span", {}, label), input, help ? html("small", {}, help) : null);
}

/**
 * The state of a link or the like, by colour and by its word.
 * @param {string} state
 */
export function badge(state) {
  const element = html("span");
  setBadge(element, state);
  return element;
}

const GOOD = new Set(["up", "reachable", "current", "configured", "permanent", "accept", "in use"]);
const BAD = new Set(["down", "gone", "failed", "drop", "no carrier"]);

/** @param {HTMLElement} element @param {string} state */
export function setBadge(element, state) {
  const word = state.split(" ")[0] ?? "";
  const kind = GOOD.has(state) || GOOD.has(word) ? "good" : BAD.has(state) || BAD.has(word) ? "bad" : "other";
  setAttribute(element, "class", `badge ${kind}`);
  setText(element, state);
}

/**
 * A bar for a share, whose value is also a text.
 * @param {string} label
 */
export function meter(label) {
  const fill = html("span", { class: "fill" });
  const bar = html("span", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const text = html("span", { class: "value" }, "–");
  return {
    element: html("span", { class: "load" }, bar, text),
    /** @param {number} percent */
    set(percent) {
      const value = Math.min(100, Math.max(0, percent));
      fill.style.width = `${value.toFixed(1)}%`;
      setAttribute(fill, "class", value >= 90 ? "fill high" : value >= 70 ? "fill middle" : "fill");
      setAttribute(bar, "aria-valuenow", value.toFixed(0));
      setText(text, `${value.toFixed(value < 10 ? 1 : 0)} %`);
    },
  };
}

/**
 * A line of the last values.
 * @param {string} label
 */
export function sparkline(label) {
  const [width, height] = [120, 28];
  const line = svg("polyline", { class: "line" });
  const area = svg("polygon", { class: "area" });
  const element = svg("svg", {
    class: "sparkline", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label,
  }, area, line);
  return {
    element,
    /** @param {number[]} values @param {number} most @param {number} places */
    set(values, most, places) {
      const highest = Math.max(most, ...values, 1e-9);
      const x = (/** @type {number} */ at) => width - ((values.length - 1 - at) * width) / Math.max(1, places - 1);
      const points = values.map((value, at) => `${x(at).toFixed(1)},${(height - 2 - (value / highest) * (height - 4)).toFixed(1)}`);
      line.setAttribute("points", points.join(" "));
      const ends = points.length ? [`${x(0).toFixed(1)},${height}`, ...points, `${width},${height}`] : [];
      area.setAttribute("points", ends.join(" "));
    },
  };
}
