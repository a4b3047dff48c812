// Tables whose rows stay while their numbers change.

import { html, setText } from "./elements.js";

/**
 * A column. `text` gives what a cell says; `make`, once for each row, an element that `update` keeps up to date.
 * @template T
 * @typedef {{
 *   title: string,
 *   kind?: "number" | "name" | "text" | "wide",
 *   hidden?: boolean,
 *   text?: (row: T) => string,
 *   make?: (row: T) => HTMLElement,
 *   update?: (element: any, row: T) => void,
 * }} Column
 */

/** @template T */
export class Table {
  /** @type {Map<string, { row: HTMLTableRowElement, cells: HTMLElement[] }>} */
  #rows = new Map();
  #body = html("tbody");
  /** @type {Column<T>[]} */
  #columns;
  #empty;

  /**
   * @param {string} caption read out, and not shown: a heading shows it
   * @param {Column<T>[]} columns
   * @param {string} empty shown while there is no row
   */
  constructor(caption, columns, empty) {
    this.#columns = columns;
    this.#empty = html("tr", { class: "empty" }, html("td", { colspan: columns.length }, empty));
    const heads = columns.map((column) => html(
      "th", { scope: "col", class: column.kind ?? "text" },
      column.hidden ? html("span", { class: "unseen" }, column.title) : column.title,
    ));
    const table = html(
      "table", {}, html("caption", { class: "unseen" }, caption), html("thead", {}, html("tr", {}, ...heads)), this.#body,
    );
    this.element = html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
  }

  /**
   * Says something else while there is no row.
   * @param {string} text
   */
  set empty(text) {
    setText(/** @type {Node} */ (this.#empty.firstChild), text);
  }

  /**
   * Shows these rows, each with the key that it keeps.
   * @param {[string, T][]} rows
   */
  update(rows) {
    const gone = new Set(this.#rows.keys());
    let place = this.#body.firstChild;
    for (const [key, value] of rows) {
      gone.delete(key);
      const { row, cells } = this.#row(key, value);
      this.#columns.forEach((column, at) => {
        const cell = /** @type {HTMLElement} */ (cells[at]);
        if (column.update) column.update(cell, value);
        else if (column.text) setText(cell, column.text(value));
      });
      if (row === place) place = row.nextSibling;
      else this.#body.insertBefore(row, place);
    }
    for (const key of gone) {
      this.#rows.get(key)?.row.remove();
      this.#rows.delete(key);
    }
    if (rows.length) this.#empty.remove();
    else this.#body.append(this.#empty);
  }

  /** @param {string} key @param {T} value */
  #row(key, value) {
    const known = this.#rows.get(key);
    if (known) return known;
    const cells = this.#columns.map((column) => column.make?.(value) ?? html("span"));
    const parts = this.#columns.map((column, at) => {
      const kind = column.kind ?? "text";
      const cell = /** @type {HTMLElement} */ (cells[at]);
      return kind === "name" ? html("th", { scope: "row", class: kind }, cell) : html("td", { class: kind }, cell);
    });
    const made = { row: html("tr", {}, ...parts), cells };
    this.#rows.set(key, made);
    return made;
  }
}
