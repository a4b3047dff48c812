// Numbers and times as texts.

const WHOLE = new Intl.NumberFormat("en");
const UNITS = ["", " k", " M", " G", " T"];

/**
 * A count, in full.
 * @param {number} value
 */
export function count(value) {
  return WHOLE.format(value);
}

/**
 * Three digits and a unit: 12.3 k.
 * @param {number} value
 */
export function short(value) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : value >= 99.95 ? 0 : value >= 9.995 ? 1 : unit === 0 ? 1 : 2;
  return `${value.toFixed(digits)}${UNITS[unit]}`;
}

/**
 * A rate; none before there are two samples.
 * @param {number | null} value
 */
export function rate(value) {
  return value === null ? "–" : short(Math.round(value));
}

/**
 * Bits a second of bytes a second.
 * @param {number | null} bytes
 */
export function bits(bytes) {
  if (bytes === null) return "–";
  const text = short(Math.round(8 * bytes));
  return /[kMGT]$/.test(text) ? `${text}b/s` : `${text} b/s`;
}

/**
 * A number of bytes.
 * @param {number} value
 */
export function bytes(value) {
  const text = short(value);
  return /[kMGT]$/.test(text) ? `${text}B` : `${text} B`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds)} s`;
}

/** @param {number} seconds since 1970 */
export function time(seconds) {
  const date = new Date(seconds * 1000);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** @param {number | null} seconds */
export function ago(seconds) {
  return seconds === null ? "never" : seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/**
 * A way of a route: `via 10.0.2.2 on right`.
 * @param {Path} path
 */
export function way(path) {
  const parts = [];
  if (path.via) parts.push(`via ${path.via}`);
  if (path.port) parts.push(path.via ? `on ${path.port}` : path.port);
  if (path.vrf) parts.push(`in ${path.vrf}`);
  if (path.weight && path.weight !== 1) parts.push(`× ${path.weight}`);
  return parts.join(" ");
}
