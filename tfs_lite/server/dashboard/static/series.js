// Points of plots and lanes of time lines. Pure.

// Of what nothing was counted there is no mean; of what nothing came there were none.
const MEANS = new Set(["p50", "p99", "queue", "run", "rows", "padding", "memory"]);

export const pointOf = (now, signal) => now[signal] ?? (MEANS.has(signal) ? null : 0);

// Adds the numbers of a new tick to the points of every version; those that were missed have none.
export function append(series, ticks, versions) {
  const length = series.length;
  for (const { key, now } of versions) {
    const points = (series.versions[key] ??= {});
    for (const signal of Object.keys(now)) points[signal] ??= Array(length).fill(MEANS.has(signal) ? null : 0);
  }
  const nowOf = new Map(versions.map(({ key, now }) => [key, now]));
  for (const [key, points] of Object.entries(series.versions)) {
    const now = nowOf.get(key) ?? {};
    for (const [signal, values] of Object.entries(points)) {
      for (let missed = 1; missed < Math.min(ticks, length); missed++) values.push(null);
      values.push(pointOf(now, signal));
      values.splice(0, values.length - length);
    }
  }
  series.end += series.step * ticks;
}

// The least of 1, 2, 5 times a power of ten that is not below.
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999);
}

export const highest = (lines) => lines.reduce((most, { points }) => points.reduce((a, b) => (b > a ? b : a), most), 0);

export const last = (points) => points.findLast((value) => value !== null && value !== undefined) ?? null;

const short = (value) => Math.round(value * 10) / 10;

// The path of a line in a box; it breaks where there is no number. A number alone between two gaps is a short stroke.
export function path(points, top, width, height) {
  const step = width / Math.max(points.length - 1, 1);
  let out = "";
  points.forEach((value, place) => {
    if (value === null || value === undefined) return;
    const before = place > 0 && points[place - 1] !== null && points[place - 1] !== undefined;
    const x = short(place * step);
    const y = short(height - (Math.min(value, top) / top) * height);
    out += before ? `L${x} ${y}` : `M${x} ${y}h0.5`;
  });
  return out;
}

// The states that each version was in, from its events: [{version, parts: [{state, from, to}]}], newest version first.
const ENTERS = {
  SEEN: "START",
  COMPLETE: "START",
  ASPIRED: "START",
  PARKED: "START",
  LOAD_BEGUN: "LOADING",
  AVAILABLE: "AVAILABLE",
  UNLOAD_BEGUN: "UNLOADING",
};

export function lanes(events, versions, from, to) {
  const found = new Map();
  const enter = (version, state, at) => {
    const parts = found.get(version) ?? found.set(version, []).get(version);
    const before = parts.at(-1);
    if (before?.state === state) return;
    if (before) before.to = at;
    parts.push({ state, from: at, to });
  };
  for (const { version, kind, time, status } of events) {
    if (version === null) continue;
    const at = Date.parse(time) / 1000;
    if (kind === "ENDED") enter(version, status ? "FAILED" : "END", at);
    else if (ENTERS[kind] && !(ENTERS[kind] === "START" && ["LOADING", "AVAILABLE"].includes(found.get(version)?.at(-1)?.state)))
      enter(version, ENTERS[kind], at);
  }
  for (const version of versions) {
    if (!found.has(version.version) && version.since) {
      const failed = version.state === "END" && version.message;
      enter(version.version, failed ? "FAILED" : version.state, version.since);
    }
  }
  return [...found]
    .map(([version, parts]) => ({
      version,
      parts: parts.filter((part) => part.to > from).map((part) => ({ ...part, from: Math.max(part.from, from) })),
    }))
    .filter(({ parts }) => parts.some(({ state }) => state !== "END"))
    .sort((a, b) => b.version - a.version);
}

// Values that a model may be asked with, from the metadata of its inputs. null: too many for a text field.
const MOST_VALUES = 4000;
const ELEMENTS = { BOOL: true, BYTES: "text", FP16: 0.5, FP32: 0.5, FP64: 0.5, BF16: 0.5 };

export function example(inputs) {
  const found = {};
  for (const { name, datatype, shape } of inputs) {
    const sizes = shape.map((size) => (size < 0 ? 1 : size));
    if (sizes.reduce((a, b) => a * b, 1) > MOST_VALUES) return null;
    found[name] = filled(sizes, ELEMENTS[datatype] ?? 1);
  }
  return found;
}

const filled = ([size, ...rest], value) =>
  size === undefined ? value : Array.from({ length: size }, () => filled(rest, value));
