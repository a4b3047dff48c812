// Rates: differences of counts between two samples, per second.

export class Rates {
  /** @type {{ at: number, counts: Map<string, number> } | null} */
  #now = null;
  /** @type {{ at: number, counts: Map<string, number> } | null} */
  #before = null;

  /**
   * Takes the next sample. One whose time is earlier is another router's, or that of one started again.
   * @param {number} at seconds
   * @param {Map<string, number>} counts
   */
  sample(at, counts) {
    if (this.#now && at === this.#now.at) return;
    this.#before = this.#now && at > this.#now.at ? this.#now : null;
    this.#now = { at, counts };
  }

  /**
   * The rate of a count; null before there are two samples of it.
   * @param {string} name
   * @returns {number | null}
   */
  of(name) {
    const [now, before] = [this.#now?.counts.get(name), this.#before?.counts.get(name)];
    if (now === undefined || before === undefined || !this.#now || !this.#before) return null;
    // A count that is smaller than before belongs to something new of the same name.
    if (now < before) return null;
    return (now - before) / (this.#now.at - this.#before.at);
  }
}

/** The last values of something. */
export class Past {
  /** @type {Map<string, number[]>} */
  #values = new Map();

  /** @param {number} places */
  constructor(places) {
    this.places = places;
  }

  /** @param {string} name @param {number} value @returns {number[]} */
  add(name, value) {
    const values = this.#values.get(name) ?? [];
    values.push(value);
    if (values.length > this.places) values.shift();
    this.#values.set(name, values);
    return values;
  }

  /** @param {string} name @returns {number[]} */
  of(name) {
    return this.#values.get(name) ?? [];
  }

  clear() {
    this.#values.clear();
  }
}
