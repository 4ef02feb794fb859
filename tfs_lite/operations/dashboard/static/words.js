// How numbers, times in seconds, states and foreign texts are put into words, and points into plots. Pure.

// Characters that cannot be seen or that turn the text around are written out; half a pair is replaced.
export const shown = (text) =>
	text
		.toWellFormed()
		.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (char) =>
			"\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"),
		);

export const DASH = "–";

export function number(value) {
	if (value === null || value === undefined) return DASH;
	if (value === 0) return "0";
	const size = Math.abs(value);
	if (size >= 1e6) return trim(value / 1e6, 3) + " M";
	if (size >= 1e4) return trim(value / 1e3, 3) + " k";
	if (size >= 100) return Math.round(value).toLocaleString("en-US");
	return trim(value, size < 1 ? 2 : 3);
}

const trim = (value, digits) => String(Number(value.toPrecision(digits)));

export function seconds(value) {
	if (value === null || value === undefined) return DASH;
	if (value === 0) return "0";
	if (value < 0.001) return trim(value * 1e6, 3) + " µs";
	if (value < 1) return trim(value * 1e3, 3) + " ms";
	return trim(value, 3) + " s";
}

export function bytes(value) {
	if (value === null || value === undefined) return DASH;
	let unit = 0;
	while (value >= 1000 && unit < 5) {
		value /= 1024;
		unit++;
	}
	return trim(value, 3) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}

export const share = (value) => (value === null || value === undefined ? DASH : trim(value * 100, 3) + " %");

export function span(value) {
	const whole = Math.max(0, Math.round(value));
	if (whole < 60) return whole + " s";
	if (whole < 3600) return Math.floor(whole / 60) + " min";
	if (whole < 86400) return parts(whole, 3600, " h", 60, " min");
	return parts(whole, 86400, " d", 3600, " h");
}

const parts = (whole, unit, name, less, its) => {
	const rest = Math.floor((whole % unit) / less);
	return Math.floor(whole / unit) + name + (rest ? ` ${rest}${its}` : "");
};

const two = (value) => String(value).padStart(2, "0");

// The time of day of this browser; of another day with its date. `at`: seconds since 1970.
export function clock(at, now = Date.now() / 1000) {
	const date = new Date(at * 1000);
	const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
	const today = new Date(now * 1000).toDateString() === date.toDateString();
	return today ? time : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export const moment = (text) => (text ? Date.parse(text) / 1000 : null);

// Of a verdict: a word, and a tone that picks colour and mark.
const TONES = {
	SERVING: "good",
	SERVING_OTHER: "warn",
	HELD_BACK: "warn",
	LOADING: "busy",
	WAITING: "busy",
	LEAVING: "calm",
	NOT_WANTED: "calm",
	ENDED: "calm",
};
export const MARKS = { good: "✓", warn: "!", busy: "…", bad: "✕", calm: "·" };

export const verdict = (name) => [TONES[name] ?? "bad", name === "SERVING_OTHER" ? "Other version serves" : name[0] + plain(name.slice(1))];
export const plain = (name) => name.toLowerCase().replaceAll("_", " ");

// States of a version: a word, a tone and a letter. Whatever ended with a message has failed.
const STATES = {
	START: ["waiting", "busy", "W"],
	LOADING: ["loading", "busy", "L"],
	AVAILABLE: ["serving", "good", "S"],
	UNLOADING: ["leaving", "warn", "U"],
	END: ["ended", "calm", "E"],
	FAILED: ["failed", "bad", "F"],
};
export const state = (version) => STATES[version.state === "END" && version.message ? "FAILED" : version.state] || STATES.END;
export const stateOf = (name) => STATES[name];

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

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

// The last `seconds` of a series.
export function cut({ step, end, length, versions }, seconds) {
	const kept = Math.min(length, Math.round(seconds / step));
	const short = (points) => Object.fromEntries(Object.entries(points).map(([signal, values]) => [signal, values.slice(-kept)]));
	return { step, end, length: kept, versions: Object.fromEntries(Object.entries(versions).map(([key, points]) => [key, short(points)])) };
}

// The least of 1, 2, 5 times a power of ten that is not below.
export function ceiling(value) {
	if (!(value > 0)) return 1;
	const power = 10 ** Math.floor(Math.log10(value));
	return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999);
}

// The same of bytes: the least power of two.
export const binary = (value) => 2 ** Math.ceil(Math.log2(value || 1));

// A sentence without the causes that are told one by one below it.
export const without = (sentence, causes) => causes.reduce((left, { text }) => [": ", "; ", ", but "].reduce((kept, mark) => kept.replace(mark + text, ""), left), sentence);

// Of texts below each other, each once.
export function once() {
	const told = new Set();
	return (text) => (!told.has(text) || !text ? (told.add(text), text) : "as above");
}

export const highest = (lines) => lines.reduce((most, { points }) => points.reduce((a, b) => (b > a ? b : a), most), 0);

export const last = (points) => points.findLast((value) => value !== null && value !== undefined) ?? null;

const short = (value) => Math.round(value * 10) / 10;

// The path of a line in a box; it breaks where there is no number.
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

export function area(points, top, width, height) {
	const step = width / Math.max(points.length - 1, 1);
	const first = points.findIndex((value) => value !== null);
	const places = points.slice(first).map((value, place) => `L${short((first + place) * step)} ${short(height - (Math.min(value ?? 0, top) / top) * height)}`);
	return `M${short(first * step)} ${height}${places.join("")}V${height}Z`;
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
