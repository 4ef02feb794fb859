// Everything about one model.
import { tryIt } from "./actions.js";
import { h, scroll } from "./dom.js";
import { badge, chip, split } from "./models.js";
import { plot, timeline } from "./plot.js";
import { cut } from "./series.js";
import { DASH, bytes, clock, moment, number, plural, seconds, share, span, state } from "./words.js";

export const RANGES = { "2m": ["2 minutes", 120], "10m": ["10 minutes", 600], "4h": ["4 hours", 14400] };
const MOST_ROWS = 50;
const MOST_VERSIONS = 6;
const MOST_PAIRS = 3;
const NO_VERSION = "none";

export function page(app) {
	const { open, details } = app;
	const model = app.models.get(open);
	const back = h("nav", { "aria-label": "Back" }, h("a", { href: app.link({ model: null }) }, "← All models"));
	if (!model && !details) return [back, h("p.empty", app.server ? "Reading…" : "")];
	const found = details?.explanation;
	return [
		back,
		h("div.title", h("h2", h("bdi", open)), badge((model || found).verdict), model && app.modelButtons(model)),
		why(model, found),
		model && versions(app, model),
		details && [
			lanes(app, model, details),
			plots(app, details),
			model && app.may.has("predict") && tryIt(app, model),
			failures(details),
			events(details),
			replicas(details),
			memory(details),
			h("details.card", { key: "config", ontoggle: (event) => event.target.open && app.readConfig() }, h("summary", h("h3", "Config")), h("pre", { tabindex: "0" }, app.config ?? "Reading…")),
		],
	];
}

const card = (id, title, more, ...kids) => h("section.card", { key: id, "aria-labelledby": id }, h("div.head", h("h3", { id }, title), more), kids);

// A card with a table; `columns`: [heading, from a row to what the cell shows, class]. Without rows there is no card.
const records = (id, title, more, rows, key, columns, last) =>
	(rows.length || last) &&
	card(
		id,
		title,
		more,
		scroll(
			title,
			h(
				"table",
				h("thead", h("tr", columns.map(([heading, , kind]) => h("th", { scope: "col", class: kind === "n" ? kind : null }, heading)))),
				h("tbody", rows.slice(0, MOST_ROWS).map((row) => h("tr", { key: key(row) }, columns.map(([, print, kind]) => h("td", { class: kind }, print(row))))), last),
			),
		),
	);

// The verdict's sentence, the chain from the nearest cause to the root, what to do, what happens next, who answers.
function why(model, found) {
	const chain = found?.because || [];
	const answers = found?.answers_now || [];
	const calm = (model || found).verdict === "SERVING" && !chain.length;
	if (calm && answers.length < 2) return null;
	const next = found?.next;
	const whom = (name) => (name === "unversioned" ? "requests without a version" : `the label ${name}`);
	return h(
		"section.card.why",
		{ class: calm ? "card why" : "card why trouble", "aria-label": "Why" },
		!calm && h("p.sentence", (model || found).sentence),
		chain.length > 0 &&
			h(
				"ol",
				chain.map(({ text, since, fix }) => h("li", h("p", text, since && h("small", ` since ${clock(moment(since))}`)), fix && h("p.fix", h("b", "Do: "), fix))),
			),
		next?.what && h("p", h("b", "Next: "), next.what, next.at && ` (${clock(moment(next.at))})`),
		answers.length > 0 &&
			h(
				"p",
				h("b", calm ? "Answers: " : "Meanwhile: "),
				answers.map(({ reference, version, weight }) => `version ${version} answers ${whom(reference)}${weight < 1 ? ` (${share(weight)})` : ""}`).join(", "),
			),
	);
}

const alarm = (value, text) => h("span", { class: value ? "alarm" : null }, text);

function versions(app, model) {
	const lost = model.unanswered;
	const last =
		lost.requests > 0 &&
		h("tr", { key: NO_VERSION }, h("td", NO_VERSION), h("td.state", "requests that no version answered"), h("td.n", number(lost.requests)), h("td"), h("td"), h("td.n.alarm", number(lost.errors)), h("td"), h("td"), h("td"));
	return records("versions", "Versions", split(model), model.versions, ({ version }) => version, [
		["Version", chip],
		["State", (one) => [state(one)[0], one.since && h("small", ` ${span(app.now() - one.since)}`), one.progress ? progress(one.progress) : one.message && h("p.why", one.message)], "state"],
		["Requests/s", ({ now }) => number(now.requests ?? 0), "n"],
		["p50", ({ now }) => seconds(now.p50), "n"],
		["p99", ({ now }) => seconds(now.p99), "n"],
		["Errors/s", ({ now }) => alarm(now.errors, number(now.errors ?? 0)), "n"],
		["Waiting", ({ now }) => number(now.waiting ?? 0), "n"],
		["Inside", ({ now }) => number(now.in_flight ?? 0), "n"],
		["Memory", ({ memory }) => bytes(memory), "n"],
	], last);
}

const progress = ({ read_bytes: read, expected_bytes: expected, text }) =>
	h("p.progress", expected && h("progress", { max: expected, value: read ?? 0, "aria-label": "Loaded" }), h("small", text));

function lanes(app, model, { events }) {
	const ranges = Object.entries(RANGES).map(([range, [words]]) => h("button", { "aria-pressed": String(app.range === range), onclick: () => app.go({ range }) }, words));
	const drawn = timeline(events, model?.versions || [], app.now(), RANGES[app.range][1]);
	return card("timeline", "Time line", h("div.filters", ranges), drawn || h("p.empty", "Nothing happened."));
}

function plots(app, details) {
	const series = cut(details.series, RANGES[app.range][1]);
	const kept = Object.keys(series.versions).sort((a, b) => b - a).slice(0, MOST_VERSIONS);
	const tone = (key) => "c" + kept.indexOf(key);
	const name = (key) => (key === "" ? NO_VERSION : "v" + key);
	const busy = (signal) => kept.filter((key) => series.versions[key][signal]?.some(Boolean));
	const by = (title, signal, print) => plot(app, series, title, print, busy(signal).map((key) => ({ name: name(key), tone: tone(key), points: series.versions[key][signal] })));
	// Two signals of each version: the second one is dashed.
	const pair = (title, signals, names, print) =>
		plot(
			app,
			series,
			title,
			print,
			busy(signals[0])
				.slice(0, MOST_PAIRS)
				.flatMap((key) => signals.map((signal, place) => ({ name: `${name(key)} ${names[place]}`, tone: tone(key) + (place ? " light" : ""), points: series.versions[key][signal] })))
				.filter(({ points }) => points),
		);
	const drawn = [
		by("Requests/s", "requests", number),
		pair("Latency", ["p99", "p50"], ["p99", "p50"], seconds),
		by("Errors/s", "errors", number),
		by("Tokens/s", "tokens", number),
		pair("Texts", ["texts", "texts_waiting"], ["running", "waiting"], number),
		by("Cache in use", "cache", share),
		pair("Run and queue", ["run", "queue"], ["run", "queue"], seconds),
		pair("Rows of a batch", ["rows", "padding"], ["rows", "padding"], number),
		by("Waiting", "waiting", number),
		by("Inside", "in_flight", number),
		by("Memory", "memory", bytes),
	].filter(Boolean);
	return card("numbers", "Numbers", h("small", app.range === "4h" ? "every minute" : "every 2 s"), drawn.length ? h("div.plots", drawn) : h("p.empty", "Nobody asked it in this time."));
}

const replicas = ({ replicas: rows }) =>
	records("replicas", "Replicas", h("small", plural(rows.length, "place")), rows, ({ version, name }) => version + name, [
		["Version", ({ version }) => version],
		["Replica", ({ name }) => name],
		["State", ({ state, since }) => [state, since && h("small", ` since ${clock(since)}`)]],
		["Node", ({ node }) => node || DASH],
		["Batches", ({ ongoing }) => ongoing ?? DASH, "n"],
		["Lost", ({ restarts }) => alarm(restarts, restarts), "n"],
		["Reason", ({ reason }) => reason, "text"],
	]);

function failures({ failures: rows, codes }) {
	const totals = Object.entries(codes).flatMap(([version, counts]) => Object.entries(counts).map(([code, count]) => `${code}${version && ` (v${version})`} ${number(count)}`));
	if (!rows.length && !totals.length) return null;
	const more = h("small", totals.join(" · "));
	return (
		records("failures", "Failed requests", more, rows, ({ request_id: id, time }) => id + time, [
			["Time", ({ time }) => clock(moment(time))],
			["Version", ({ version }) => version ?? DASH],
			["Code", ({ code }) => code],
			["Stage", ({ stage }) => stage],
			["Message", ({ message }) => message, "text"],
			["Request", ({ request_id: id }) => h("code", id)],
		]) || card("failures", "Failed requests", more)
	);
}

const words = (name) => (name || "").toLowerCase().replaceAll("_", " ");
const told = (details) => Object.entries(details).filter(([, value]) => typeof value !== "object").map(([name, value]) => (name === "seconds" ? seconds(value) : name === "why" ? value : `${name} ${value}`));

const events = ({ events: rows }) =>
	records("events", "Events", h("small", plural(rows.length, "event")), rows.toReversed(), ({ seq }) => seq, [
		["Time", ({ time, last, count }) => [clock(moment(last || time)), count > 1 && h("small", ` ×${number(count)}`)], "time"],
		["Version", ({ version }) => version ?? DASH],
		["What", ({ kind }) => words(kind)],
		["Wanted by", ({ cause, by }) => words(cause) + (by ? ` (${by})` : "")],
		["Details", ({ status, details }) => status?.message || told(details).join(", "), "text"],
	]);

const memory = ({ memory: rows }) =>
	records("memory", "Memory", h("small", "of each load and unload"), rows, ({ version }) => version, [
		["Version", ({ version }) => version],
		["State", ({ resident, disturbed }) => (resident ? "in memory" : "unloaded") + (disturbed ? ", beside others" : "")],
		["Files", ({ files }) => bytes(files), "n"],
		["Set aside", ({ reserved }) => bytes(reserved), "n"],
		["Tensors", ({ measured }) => bytes(measured), "n"],
		["Given back", ({ given_back: back }) => bytes(back), "n"],
		["Left behind", ({ leaked, disturbed }) => (disturbed ? DASH : bytes(leaked)), "n"],
	]);
