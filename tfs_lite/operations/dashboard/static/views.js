// What the page shows: the list of all models, the worst first, and everything about one of them.
import { tryIt } from "./actions.js";
import { h, pill, scroll } from "./dom.js";
import { DASH, area, binary, bytes, ceiling, clock, cut, highest, lanes, last, moment, number, once, path, plain, plural, seconds, share, span, state, stateOf, verdict, without } from "./words.js";

const PAGE = 100;
const MOST_CHIPS = 6;

// One version as a small label: its number, its state unless it serves, its labels.
const chip = (version) => {
	const [word, tone] = state(version);
	return h(
		"span",
		{ class: "chip " + tone, key: version.version, title: version.message },
		h("b", version.version),
		tone !== "good" && " " + word,
		version.replicas && ` ${version.replicas.ready}/${version.replicas.of}`,
		(version.labels || []).map((label) => h("span.tag", label)),
	);
};

const alive = (version) => version.state !== "END" || version.message;

// Where requests go, as one bar by version; only where more than one version answers.
function split(model) {
	const busy = model.versions.filter(({ now }) => now.requests);
	const total = busy.reduce((sum, { now }) => sum + now.requests, 0);
	if (busy.length < 2) return null;
	const words = busy.map(({ version, now }) => `version ${version} ${share(now.requests / total)}`).join(", ");
	return h(
		"div.split",
		{ role: "img", "aria-label": words, title: words },
		busy.map(({ version, now }, place) => h("span", { class: "c" + (place % 6), key: version, css: { width: `${(now.requests / total) * 100}%` } }, version)),
	);
}

const count = (signal) => ({ now }) => number(now[signal] ?? 0);
const time = (signal) => ({ now }) => seconds(now[signal]);
const alarm = (value, bad = value) => h("span", { class: bad ? "alarm" : null }, number(value ?? 0));
// Red if some are not the callers' own.
const errors = ({ now }) => alarm(now.errors, now.faults ?? 0);

const COLUMNS = [
	["Status", "rank"],
	["Model", "name"],
	["Versions"],
	["Requests/s", "requests", count("requests")],
	["p50", "p50", time("p50")],
	["p99", "p99", time("p99")],
	["Errors/s", "errors", errors],
	["Waiting", "waiting", count("waiting")],
];

export const troubled = (app) => [...app.models.values()].filter(({ verdict }) => verdict !== "SERVING").length;

function chosen(app) {
	const wanted = app.search.trim().toLowerCase();
	const found = [...app.models.values()].filter(
		(model) => (!wanted || model.name.toLowerCase().includes(wanted)) && (!app.troubled || model.verdict !== "SERVING"),
	);
	const { by, down } = app.sort;
	const byName = (a, b) => (a.name < b.name ? -1 : 1);
	const byStatus = (a, b) => a.rank - b.rank || byName(a, b);
	found.sort({ rank: byStatus, name: byName }[by] || ((a, b) => (b.now[by] ?? 0) - (a.now[by] ?? 0) || byStatus(a, b)));
	if (down) found.reverse();
	return found;
}

// Why nothing is shown yet.
const nothing = ({ line, problem }) => ({ denied: "This server shows nothing without a token. The button Token takes one.", lost: "There is no connection to the server." })[line.state] || problem || "Reading…";

const empty = ({ control }) =>
	"No model is served. " + (control === "explicit" ? "Load one by its name: here, or by POST /v2/repository/models/NAME/load." : "Put a version into the model repository (tfs-lite publish FILE --base REPOSITORY/NAME), or name a model in the config file.");

export function list(app) {
	const found = chosen(app);
	const pages = Math.max(1, Math.ceil(found.length / PAGE));
	app.page = Math.min(app.page, pages - 1);
	const rows = found.slice(app.page * PAGE, (app.page + 1) * PAGE);
	return h("section.card", { "aria-labelledby": "models" },
		h("div.head",
			h("h2", { id: "models" }, "Models"),
			h("div.filters",
				h("button", { "aria-pressed": !app.troubled, onclick: () => app.change({ troubled: false, page: 0 }) }, `All ${app.models.size}`),
				h("button", { "aria-pressed": app.troubled, onclick: () => app.change({ troubled: true, page: 0 }) }, `Need a look ${troubled(app)}`),
				h("input", {
					type: "search",
					id: "search",
					placeholder: "Search  /",
					"aria-label": "Search models",
					autocomplete: "off",
					oninput: (event) => app.change({ search: event.target.value, page: 0 }),
				}),
				app.loadButton(),
			),
		),
		rows.length
			? scroll("All models", h("table.models", h("thead", h("tr", COLUMNS.map((column) => heading(app, column)))), h("tbody", rows.map((model) => row(app, model)))))
			: h("p.empty", app.models.size ? "No model fits." : app.server ? empty(app.server) : nothing(app)),
		pages > 1 &&
			h(
				"nav.pages",
				{ "aria-label": "Pages" },
				turn(app, -1, "Previous", app.page === 0),
				h("span", `${app.page * PAGE + 1} to ${app.page * PAGE + rows.length} of ${found.length}`),
				turn(app, 1, "Next", app.page === pages - 1),
			),
	);
}

const turn = (app, by, word, disabled) => h("button", { disabled, onclick: () => app.change({ page: app.page + by }) }, word);

function heading(app, [title, by, print]) {
	const { sort } = app;
	const sorted = by && sort.by === by;
	const up = !print !== sort.down;
	const press = () => app.change({ sort: { by, down: sorted && !sort.down } });
	return h(
		"th",
		{ scope: "col", class: print ? "n" : null, "aria-sort": sorted ? (up ? "ascending" : "descending") : null },
		by ? h("button.quiet", { onclick: press }, title, sorted && h("span", { "aria-hidden": true }, up ? " ↑" : " ↓")) : title,
	);
}

function row(app, model) {
	const versions = model.versions.filter(alive);
	const points = app.sparks.get(model.name);
	const { name, sentence, fix, cause } = model;
	// The band tells of a refused config.
	const told = model.verdict !== "SERVING" || (cause && !app.server.config_refused);
	return h(
		"tr",
		{ key: name },
		h("td", pill(...verdict(model.verdict))),
		h(
			"td.name",
			h("a", { href: app.link({ model: name }), title: name.length > 40 ? name : null }, h("bdi", name)),
			told && h("p.why", sentence, fix && h("span.fix", fix)),
		),
		h("td", h("div.chips", versions.slice(0, MOST_CHIPS).map(chip), versions.length > MOST_CHIPS && h("small", `+${versions.length - MOST_CHIPS}`)), split(model)),
		COLUMNS.slice(3).map(([title, by, print]) =>
			h("td.n", { "data-name": title }, by === "requests" && points && spark(points), h("span", print(model))),
		),
	);
}

// The server as a whole, above the list.
export function tiles(app) {
	const { server, total } = app;
	if (!server) return null;
	const now = server.now;
	const tile = (name, value, more, signal, tone) => {
		const points = total?.points[signal];
		return h("div.tile", { key: name }, h("span.name", name), h("b.value", value), h("small", more), points && spark(points, tone));
	};
	return h(
		"section.tiles",
		{ "aria-label": "The server" },
		tile("Requests/s", count("requests")(server), plural(now.in_flight ?? 0, "request") + " in progress", "requests"),
		tile("Latency p99", seconds(now.p99), `p50 ${seconds(now.p50)}`, "p99", "c1"),
		tile("Errors/s", errors(server), now.errors ? share(now.errors / now.requests) + " of requests" + (now.faults ? "" : ", by mistakes of callers") : "none", "errors", "c3"),
		tile("Waiting", count("waiting")(server), `queue ${seconds(now.queue)}, run ${seconds(now.run)}`, "waiting", "c2"),
		(now.tokens ?? total?.points.tokens) && tile("Tokens/s", count("tokens")(server), `${plural(now.texts ?? 0, "text")} run, ${number(now.texts_waiting ?? 0)} wait`, "tokens", "c4"),
		h("div.tile.memory",
			h("span.name", "Memory"),
			server.memory.map(({ device, instance, used, total: most }) =>
				h("div.device", { key: device + instance },
					h("span", device === "main" ? "CPU, main memory" : `${device.toUpperCase()} ${instance}`),
					h("meter", { min: 0, max: Math.max(most, 1), value: used, high: most * 0.9, "aria-label": `Memory reserved for models on ${device} ${instance}` }),
					h("b", bytes(used)),
					h("small", "of " + bytes(most)),
				),
			),
			server.resident && h("small", `the process holds ${bytes(server.resident)}`),
		),
	);
}

// One model.

export const RANGES = { "2m": ["2 minutes", 120], "10m": ["10 minutes", 600], "4h": ["4 hours", 14400] };
const MOST_ROWS = 50;
const MOST_VERSIONS = 6;
const MOST_PAIRS = 3;
const NO_VERSION = "none";

export function page(app) {
	const { open, details } = app;
	const model = app.models.get(open);
	const back = h("nav", { "aria-label": "Back" }, h("a", { href: app.link({ model: null }) }, "← All models"));
	if (!model && !details) return [back, h("p.empty", nothing(app))];
	const found = details?.explanation;
	return [
		back,
		h("div.title", h("h2", h("bdi", open)), pill(...verdict((model || found).verdict)), model && app.modelButtons(model), model && app.rollbackButtons(model)),
		why(model, found),
		model && versions(app, model, found?.because || []),
		details && [
			states(app, model, details),
			plots(app, details),
			model && app.may.has("predict") && tryIt(app, model),
			failures(details),
			events(details),
			workers(details),
			memory(details),
			h("details.card", { key: "config", ontoggle: (event) => event.target.open && app.readConfig() }, h("summary", h("h3", "Config")), h("pre", { tabindex: 0 }, app.config ?? "Reading…")),
		],
	];
}

const card = (id, title, more, ...kids) => h("section.card", { key: id, "aria-labelledby": id }, h("div.head", h("h3", { id }, title), more), kids);

// `columns`: [heading, from a row to what the cell shows, class].
const table = (title, rows, key, columns, last, kind) =>
	scroll(
		title,
		h(
			"table",
			{ class: kind || "rows" },
			h("thead", h("tr", columns.map(([heading, , kind]) => h("th", { scope: "col", class: kind === "n" ? kind : null }, heading)))),
			h("tbody", rows.map((row) => h("tr", { key: key(row) }, columns.map(([heading, print, kind]) => h("td", { class: kind, "data-name": heading }, print(row))))), last),
		),
	);

// A card with a table. Without rows there is none.
const records = (id, title, more, rows, key, columns, last) =>
	(rows.length || last) && card(id, title, more, table(title, rows.slice(0, MOST_ROWS), key, columns, last));

// A refused config concerns every model.
const LINKS = { "/metrics": "Metrics", "/openapi.json": "API description", "/v1/overview": "This page as JSON" };

export const links = () => h("footer.pages", Object.entries(LINKS).map(([href, words]) => h("a", { href }, words)));

export const band = ({ server }) =>
	server?.config_refused && h("section.card.why.trouble", { key: "refused", role: "alert" }, cause(server.config_refused));

const cause = ({ text, since, fix }) => [h("p", text, since && h("small", ` since ${clock(moment(since))}`)), fix && h("p.fix", h("b", "Do: "), fix)];

// The sentence, the causes, what to do, what happens next, who answers.
function why(model, found) {
	const chain = found?.because || [];
	const answers = found?.answers_now || [];
	const calm = (model || found).verdict === "SERVING" && !chain.length;
	if (calm && answers.length < 2) return null;
	const next = found?.next;
	const whom = (name) => (name === "unversioned" ? "requests without a version" : `the label ${name}`);
	return h(
		"section",
		{ class: calm ? "card why" : "card why trouble", "aria-label": "Why" },
		!calm && h("p.sentence", without((found || model).sentence, chain)),
		chain.length > 0 &&
			h(
				"ol",
				chain.map((link) => h("li", cause(link))),
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

function versions(app, model, causes) {
	const told = new Set(causes.map(({ text }) => text));
	const lost = model.unanswered;
	const last =
		lost.requests > 0 &&
		h("tr", { key: NO_VERSION }, h("td", NO_VERSION), h("td.state", "requests that no version answered"), h("td.n", { "data-name": "Requests/s" }, number(lost.requests)), h("td"), h("td"), h("td.n", { "data-name": "Errors/s" }, errors({ now: lost })), h("td"), h("td"), h("td"));
	return records("versions", "Versions", split(model), model.versions, ({ version }) => version, [
		["Version", chip],
		["State", (one) => [state(one)[0], one.since && h("small", ` ${span(app.now() - one.since)}`), one.progress ? progress(one.progress) : one.message && !told.has(one.message) && h("p.why", one.message)], "state"],
		["Requests/s", count("requests"), "n"],
		["p50", time("p50"), "n"],
		["p99", time("p99"), "n"],
		["Errors/s", errors, "n"],
		["Waiting", count("waiting"), "n"],
		["In progress", count("in_flight"), "n"],
		["Memory", ({ memory }) => bytes(memory), "n"],
	], last);
}

const progress = ({ read_bytes: read, expected_bytes: expected, text }) =>
	h("p.progress", expected && h("progress", { max: expected, value: read ?? 0, "aria-label": "Loaded" }), h("small", text));

function states(app, model, { events }) {
	const ranges = Object.entries(RANGES).map(([range, [words]]) => h("button", { "aria-pressed": app.range === range, onclick: () => app.go({ range }) }, words));
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
		by("In progress", "in_flight", number),
		by("Memory", "memory", bytes),
	].filter(Boolean);
	return card("numbers", "Numbers", h("small", app.range === "4h" ? "every minute" : "every 2 s"), drawn.length ? h("div.plots", drawn) : h("p.empty", "Nobody asked it in this time."));
}

const workers = ({ workers: rows }) =>
	records("workers", "Workers", null, rows, ({ version, name }) => version + name, [
		["Version", ({ version }) => version],
		["Worker", ({ name }) => name],
		["State", ({ state, since }) => [state, since && h("small", ` since ${clock(since)}`)]],
		["Node", ({ node }) => node || DASH],
		["Process", ({ pid }) => pid ?? DASH, "n"],
		["Batches", ({ ongoing }) => ongoing ?? DASH, "n"],
		["Lost", ({ restarts }) => alarm(restarts), "n"],
		["Sandbox", ({ sandbox }) => sandbox?.holds.join(", ") || "none", "text"],
		["Reason", ({ reason }) => reason, "text"],
	]);

function failures({ failures: rows, codes }) {
	const totals = Object.entries(codes).flatMap(([version, counts]) => Object.entries(counts).map(([code, count]) => `${code}${version && ` (v${version})`} ${number(count)}`));
	if (!rows.length && !totals.length) return null;
	const more = h("small", totals.join(" · "));
	const message = once();
	return (
		records("failures", "Failed requests", more, rows, ({ request_id: id, time }) => id + time, [
			["Time", ({ time }) => clock(moment(time))],
			["Version", ({ version }) => version ?? DASH],
			["Code", ({ code }) => code],
			["Stage", ({ stage }) => stage],
			["Message", (one) => message(one.message), "text"],
			["Request", ({ request_id: id }) => h("code", id)],
		]) || card("failures", "Failed requests", more)
	);
}

const told = (details) => Object.entries(details).filter(([, value]) => typeof value !== "object").map(([name, value]) => (name === "seconds" ? seconds(value) : name === "why" ? value : `${name} ${value}`));

function events({ events: rows }) {
	const text = once();
	return records("events", "Events", h("small", plural(rows.length, "event")), rows.toReversed(), ({ seq }) => seq, [
		["Time", ({ time, last, count }) => [clock(moment(last || time)), count > 1 && h("small", ` ×${number(count)}`)], "time"],
		["Version", ({ version }) => version ?? DASH],
		["What", ({ kind }) => plain(kind)],
		["Wanted by", ({ cause, by }) => plain(cause || "") + (by ? ` (${by})` : "")],
		["Details", ({ status, details }) => (status?.message ? text(status.message) : told(details).join(", ")), "text"],
	]);
}

const memory = ({ memory: rows }) =>
	records("memory", "Memory", h("small", "of each load and unload"), rows, ({ version }) => version, [
		["Version", ({ version }) => version],
		["State", ({ resident, disturbed }) => (resident ? "in memory" : "unloaded") + (disturbed ? ", inexact: others loaded at the time" : "")],
		["Files", ({ files }) => bytes(files), "n"],
		["Reserved", ({ reserved }) => bytes(reserved), "n"],
		["Tensors", ({ measured }) => bytes(measured), "n"],
		["Processes", ({ workers }) => bytes(workers.reduce((sum, held) => sum + held, 0) || null), "n"],
		["Freed", ({ given_back: back }) => bytes(back), "n"],
		["Not freed", ({ leaked, disturbed }) => (disturbed ? DASH : bytes(leaked)), "n"],
	]);

// Plots, small lines beside numbers, and the time line of versions.

const WIDTH = 600;
const HEIGHT = 100;
const TABLE_ROWS = 12;
const MOST_LANES = 12;

function spark(points, tone = "c0") {
	const top = ceiling(highest([{ points }]));
	const box = { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", "aria-hidden": true };
	return h("svg.spark", box, curve({ points, tone }, top, true));
}

const curve = ({ points, tone }, top, filled) => [
	filled && h("path", { class: "area " + tone, d: area(points, top, WIDTH, HEIGHT) }),
	h("path", { class: "line " + tone, d: path(points, top, WIDTH, HEIGHT) }),
];

// `lines`: [{name, tone, points}]; `print` puts a value into words; `app.cursor` is the share of the range pointed at.
function plot(app, series, title, print, lines) {
	if (!lines.length) return null;
	const { length, step, end } = series;
	const top = (print === bytes ? binary : ceiling)(highest(lines));
	const place = app.cursor === null ? null : Math.round(app.cursor * (length - 1));
	const valueOf = ({ points }) => print(place === null ? last(points.slice(-3)) : points[place]);
	const label = lines.map((line) => `${line.name} ${print(last(line.points))}`).join(", ");
	const point = ({ currentTarget, clientX }) => {
		const { left, width } = currentTarget.getBoundingClientRect();
		app.change({ cursor: Math.min(1, Math.max(0, (clientX - left) / width)) });
	};
	const open = app.tables.has(title);
	const toggle = () => {
		if (!app.tables.delete(title)) app.tables.add(title);
		app.draw();
	};
	const at = (place) => clock(end - (length - 1 - place) * step);
	return h(
		"figure.plot",
		{ key: title },
		h(
			"figcaption",
			h("span.name", title),
			h("button.quiet", { "aria-expanded": open, "aria-label": `${title} as a table`, onclick: toggle }, open ? "Plot" : "Table"),
			h("span.legend", lines.map((line) => h("span", h("i", { class: line.tone }), line.name, " ", h("b", valueOf(line))))),
		),
		open
			? table(title, places(length), (place) => place, [["Time", at], ...lines.map(({ name, points }) => [name, (place) => print(points[place]), "n"])], null, "small")
			: h(
					"div.box",
					{ onpointermove: point, onpointerleave: () => app.change({ cursor: null }) },
					h("span.top", print(top)),
					h(
						"svg",
						{ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${label}` },
						[0, 50, 100].map((y) => h("path.grid", { d: `M0 ${y}H${WIDTH}` })),
						lines.map((line) => curve(line, top, lines.length === 1)),
						place !== null && h("path.cursor", { d: `M${(place / (length - 1)) * WIDTH} 0V${HEIGHT}` }),
					),
					h("span.from", "−" + span(step * length)),
					h("span.to", place === null ? "now" : at(place)),
				),
	);
}

const places = (length) => Array.from({ length: TABLE_ROWS }, (_, row) => length - 1 - row * Math.floor(length / TABLE_ROWS));

// One lane for each version, newest first; a state is a colour and a letter.
function timeline(events, versions, to, seconds) {
	const from = to - seconds;
	const found = lanes(events, versions, from, to).slice(0, MOST_LANES);
	if (!found.length) return null;
	const part = ({ state, from: begun, to: ended }) => {
		const [word, tone, letter] = stateOf(state);
		const width = ((ended - begun) / seconds) * 100;
		const css = { left: `${((begun - from) / seconds) * 100}%`, width: `${width}%` };
		const title = `${word}, ${clock(begun)} to ${clock(ended)} (${span(ended - begun)})`;
		return h("span", { class: "part " + tone, css, title }, width > 12 ? word : width > 1.5 ? letter : "");
	};
	return h(
		"div.lanes",
		found.map(({ version, parts }) => {
			const words = parts.map(({ state, from: begun }) => `${stateOf(state)[0]} since ${clock(begun)}`).join(", ");
			return h("div.lane", { key: version }, h("span.label", "v" + version), h("div.track", { role: "img", "aria-label": `Version ${version}: ${words}` }, parts.map(part)));
		}),
		h("div.axis", { "aria-hidden": true }, h("span", "−" + span(seconds)), h("span", "−" + span(seconds / 2)), h("span", "now")),
	);
}
