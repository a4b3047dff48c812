// A layered drawing of a graph, from the top to the bottom (Sugiyama): layers by the longest way, an order in each layer
// that has few crossings, and places that keep ways straight.
//
// An edge over several layers has an empty place in each of them, so that it passes between steps. An edge back, which only
// deferred outputs have, counts for no layer.

export const NODE = { width: 168, height: 62 };
const GAP = { x: 26, y: 46, pass: 22 };
const SWEEPS = 12;

/**
 * @typedef {{ name: string, layer: number, x: number, y: number, width: number, isPass: boolean }} Place
 * @typedef {{ from: string, to: string, points: { x: number, y: number }[] }} Way
 */

/**
 * @param {string[]} names in the order in which packets come to them
 * @param {{ from: string, to: string }[]} edges each once
 */
export function layout(names, edges) {
  if (!names.length) return { nodes: [], ways: [], width: 0, height: 0 };
  const order = new Map(names.map((name, at) => [name, at]));
  const place = (/** @type {string} */ name) => order.get(name) ?? -1;
  const isForward = (/** @type {{ from: string, to: string }} */ edge) => place(edge.from) < place(edge.to);
  const layers = layersOf(names, edges.filter(isForward));
  /** @type {Place[][]} */
  const rows = [];
  /** @type {Map<string, Place>} */
  const places = new Map();
  const put = (/** @type {string} */ name, /** @type {number} */ layer, /** @type {boolean} */ isPass) => {
    const made = { name, layer, x: 0, y: layer * (NODE.height + GAP.y), width: isPass ? GAP.pass : NODE.width, isPass };
    (rows[layer] ??= []).push(made);
    places.set(name, made);
    return made;
  };
  names.forEach((name) => put(name, layers.get(name) ?? 0, false));
  /** @type {Map<Place, Place[]>} */
  const above = new Map();
  /** @type {Map<Place, Place[]>} */
  const below = new Map();
  const join = (/** @type {Place} */ upper, /** @type {Place} */ lower) => {
    below.set(upper, [...(below.get(upper) ?? []), lower]);
    above.set(lower, [...(above.get(lower) ?? []), upper]);
  };
  const chains = edges.map((edge) => {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    if (!from || !to) return { edge, chain: [] };
    const chain = [from];
    if (isForward(edge)) {
      for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
        chain.push(put(`${edge.from} ${edge.to} ${layer}`, layer, true));
      }
      chain.push(to);
      chain.slice(1).forEach((lower, at) => join(/** @type {Place} */ (chain[at]), lower));
    } else {
      chain.push(to);
    }
    return { edge, chain };
  });
  arrange(rows, above, below);
  settle(rows, above, below);
  const left = Math.min(...[...places.values()].map((one) => one.x - one.width / 2));
  places.forEach((one) => { one.x -= left; });
  const ways = chains.filter(({ chain }) => chain.length).map(({ edge, chain }) => ({ ...edge, points: points(chain) }));
  const width = Math.max(...[...places.values()].map((one) => one.x + one.width / 2));
  return { nodes: [...places.values()].filter((one) => !one.isPass), ways, width, height: rows.length * (NODE.height + GAP.y) - GAP.y };
}

/** @param {string[]} names @param {{ from: string, to: string }[]} edges */
function layersOf(names, edges) {
  /** @type {Map<string, number>} */
  const layers = new Map(names.map((name) => [name, 0]));
  // Names are in the order of the edges, so each is final when its turn comes.
  for (const name of names) {
    for (const edge of edges) {
      if (edge.from === name) layers.set(edge.to, Math.max(layers.get(edge.to) ?? 0, (layers.get(name) ?? 0) + 1));
    }
  }
  return layers;
}

/**
 * Orders each layer by the mean place of its neighbours, down and up in turns.
 * @param {Place[][]} rows
 * @param {Map<Place, Place[]>} above
 * @param {Map<Place, Place[]>} below
 */
function arrange(rows, above, below) {
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) {
      const places = new Map(rows.flatMap((one) => one.map((place, at) => [place, at / one.length])));
      const mean = (/** @type {Place} */ place) => {
        const near = (isDown ? above : below).get(place) ?? [];
        const all = near.map((other) => places.get(other) ?? 0);
        return all.length ? all.reduce((sum, one) => sum + one, 0) / all.length : places.get(place) ?? 0;
      };
      const means = new Map(row.map((place) => [place, mean(place)]));
      row.sort((one, other) => (means.get(one) ?? 0) - (means.get(other) ?? 0));
    }
  }
}

/**
 * Moves places towards their neighbours as far as those beside them permit.
 * @param {Place[][]} rows
 * @param {Map<Place, Place[]>} above
 * @param {Map<Place, Place[]>} below
 */
function settle(rows, above, below) {
  for (const row of rows) spread(row, row.map(() => 0));
  for (let sweep = 0; sweep < 2 * SWEEPS; sweep += 1) {
    const isDown = sweep % 2 === 0;
    for (const row of isDown ? rows : [...rows].reverse()) {
      const wanted = row.map((place) => {
        const near = (isDown ? above : below).get(place) ?? [];
        return near.length ? near.reduce((sum, other) => sum + other.x, 0) / near.length : place.x;
      });
      spread(row, wanted);
    }
  }
}

/**
 * Puts a row at places near the wanted ones, in its order and without overlaps: groups of those that would overlap take the
 * mean of their wishes.
 * @param {Place[]} row
 * @param {number[]} wanted
 */
function spread(row, wanted) {
  /** @type {{ start: number, width: number, sum: number, count: number, members: Place[] }[]} */
  const groups = [];
  row.forEach((place, at) => {
    const width = place.width + GAP.x;
    let group = { start: (wanted[at] ?? 0) - width / 2, width, sum: (wanted[at] ?? 0) - width / 2, count: 1, members: [place] };
    for (let last = groups[groups.length - 1]; last && last.start + last.width > group.start; last = groups[groups.length - 1]) {
      groups.pop();
      const sum = last.sum + group.sum - group.count * last.width;
      const count = last.count + group.count;
      group = { start: sum / count, width: last.width + group.width, sum, count, members: [...last.members, ...group.members] };
    }
    groups.push(group);
  });
  for (const group of groups) {
    let x = group.start;
    for (const place of group.members) {
      place.x = x + (place.width + GAP.x) / 2;
      x += place.width + GAP.x;
    }
  }
}

/**
 * The corners of a way: from the lower edge of a step to the upper one of the next.
 * @param {Place[]} chain
 */
function points(chain) {
  const [first, last] = [/** @type {Place} */ (chain[0]), /** @type {Place} */ (chain[chain.length - 1])];
  const passes = chain.slice(1, -1).flatMap(({ x, y }) => [{ x, y }, { x, y: y + NODE.height }]);
  return [{ x: first.x, y: first.y + NODE.height }, ...passes, { x: last.x, y: last.y }];
}

/**
 * A path with soft bends.
 * @param {{ x: number, y: number }[]} points
 */
export function curve(points) {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x.toFixed(1)} ${first.y.toFixed(1)}`;
  let { x, y } = first;
  for (const next of rest) {
    const bend = Math.max(14, Math.abs(next.y - y) / 2);
    path += ` C${x.toFixed(1)} ${(y + bend).toFixed(1)} ${next.x.toFixed(1)} ${(next.y - bend).toFixed(1)} ${next.x.toFixed(1)} ${next.y.toFixed(1)}`;
    ({ x, y } = next);
  }
  return path;
}
