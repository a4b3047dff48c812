// The difference of two texts by lines.

/** More lines than this on both sides of a change are shown as replaced, without a search. */
const MOST = 1500;

/**
 * @typedef {{ kind: "same" | "old" | "new", text: string }} Line
 */

/**
 * Returns the lines of both texts in order, by the longest common subsequence.
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function difference(before, after) {
  const [old, young] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < old.length && start < young.length && old[start] === young[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < young.length - start && old[old.length - 1 - end] === young[young.length - 1 - end]) end += 1;
  const same = (/** @type {string} */ text) => ({ kind: /** @type {const} */ ("same"), text });
  return [
    ...old.slice(0, start).map(same),
    ...middle(old.slice(start, old.length - end), young.slice(start, young.length - end)),
    ...old.slice(old.length - end).map(same),
  ];
}

/** @param {string[]} old @param {string[]} young @returns {Line[]} */
function middle(old, young) {
  if (old.length > MOST || young.length > MOST) {
    return [
      ...old.map((text) => ({ kind: /** @type {const} */ ("old"), text })),
      ...young.map((text) => ({ kind: /** @type {const} */ ("new"), text })),
    ];
  }
  const width = young.length + 1;
  const longest = new Uint16Array((old.length + 1) * width);
  const at = (/** @type {number} */ i, /** @type {number} */ j) => longest[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = young.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = old[i] === young[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  /** @type {Line[]} */
  const lines = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < young.length) {
    if (i < old.length && j < young.length && old[i] === young[j]) {
      lines.push({ kind: "same", text: String(old[i]) });
      [i, j] = [i + 1, j + 1];
    } else if (j >= young.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) {
      lines.push({ kind: "old", text: String(old[i]) });
      i += 1;
    } else {
      lines.push({ kind: "new", text: String(young[j]) });
      j += 1;
    }
  }
  return lines;
}

/**
 * Leaves unchanged lines out that are not near a change; null stands for some that are left out.
 * @param {Line[]} lines
 * @param {number} around
 * @returns {(Line | null)[]}
 */
export function shortened(lines, around) {
  const near = new Set();
  lines.forEach((line, at) => {
    if (line.kind === "same") return;
    for (let by = -around; by <= around; by += 1) near.add(at + by);
  });
  /** @type {(Line | null)[]} */
  const kept = [];
  lines.forEach((line, at) => {
    if (near.has(at)) kept.push(line);
    else if (kept.length === 0 || kept[kept.length - 1] !== null) kept.push(null);
  });
  return kept;
}
