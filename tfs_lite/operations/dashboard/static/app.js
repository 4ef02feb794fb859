// The page: what it knows, where it comes from, and when it is drawn. The hash keeps the model and the range.
import { dialog, emptyForm, loadButton, modelButtons, rollbackButtons } from "./actions.js";
import { h, pill, render } from "./dom.js";
import { ask, follow, hasToken } from "./feed.js";
import { RANGES, band, links, list, page, tiles, troubled } from "./views.js";
import { append, clock, span } from "./words.js";

const SPARK_TICKS = 5;
const COARSE_REFRESH = 60000;
const MOST_OFTEN = 2000;

const app = {
	server: null,
	models: new Map(),
	may: new Set(),
	line: { state: "connecting", since: Date.now(), why: "" },
	total: null,
	sparks: new Map(),
	open: null,
	range: "10m",
	details: null,
	problem: null,
	config: null,
	form: emptyForm(),
	search: "",
	troubled: false,
	sort: { by: "rank", down: false },
	page: 0,
	cursor: null,
	tables: new Set(),
	dialog: null,
	skew: 0,
	draw,
	link: (to) => "#" + hash({ model: app.open, range: app.range, ...to }),
	go: (to) => (location.hash = hash({ model: app.open, range: app.range, ...to })),
	change(to) {
		Object.assign(app, to);
		draw();
	},
	now: () => Date.now() / 1000 + app.skew,
	restart,
	readConfig,
	modelButtons: (model) => modelButtons(app, model),
	rollbackButtons: (model) => rollbackButtons(app, model),
	loadButton: () => loadButton(app),
};

function hash({ model, range }) {
	const found = new URLSearchParams();
	if (model !== null) found.set("model", model);
	if (range !== "10m") found.set("range", range);
	return found.toString();
}

// Drawing: at most once for each picture of the screen.

let drawing = false;

function draw() {
	if (drawing) return;
	drawing = true;
	requestAnimationFrame(() => {
		drawing = false;
		const root = document.getElementById("app");
		if (!root.vdom) {
			root.textContent = "";
			root.vdom = true;
		}
		render(root, header(), h("main", band(app), app.open === null ? [tiles(app), list(app)] : page(app)), links(), dialog(app));
		document.querySelector("dialog:not([open])")?.showModal();
		document.title = title();
	});
}

function title() {
	const count = troubled(app);
	return (count ? `(${count}) ` : "") + (app.open === null ? "" : `${app.open.slice(0, 60)} · `) + `tfs_lite ${location.host}`;
}

const LINES = { connecting: ["busy", "Connecting"], live: ["good", "Live"], lost: ["bad", "No connection"], denied: ["warn", "A token is needed"], paused: ["calm", "Paused"] };

function header() {
	const { server, line } = app;
	const [tone, words] = LINES[line.state];
	const told = line.why ? `${words} since ${clock(line.since / 1000)}: ${line.why}` : words;
	return h("header", h("div.brand", h("h1", h("a", { href: "#" }, "tfs_lite"), " ", h("small", location.host)), server && h("small", `${server.version} · up ${span(app.now() - server.started)}`)),
		server && pill(server.ready && !server.why ? "good" : "warn", (server.ready ? "Ready" : "Not ready") + (server.why && ", " + server.why)),
		h("span.grow"),
		h("span", { class: "line " + tone, role: "status" }, h("i", { "aria-hidden": true }), told),
		h("button.quiet", { onclick: () => app.change({ dialog: { kind: "token" } }) }, hasToken() ? "Token in use" : "Token"),
	);
}

let stop = null;

function restart() {
	stop?.();
	app.line = { state: "connecting", since: Date.now(), why: "" };
	stop = follow("/dashboard/feed", { event: take, lost });
	draw();
}

function lost(error) {
	const denied = error.status === 401 || error.status === 403;
	const state = denied ? "denied" : "lost";
	app.line = { state, since: app.line.state === state ? app.line.since : Date.now(), why: error.message };
	draw();
}

function take(value) {
	if (value.may) {
		app.may = new Set(value.may);
		readTotal();
		if (app.open !== null) readDetails();
		return draw();
	}
	const before = app.server;
	app.server = value.server;
	app.skew = value.server.time - Date.now() / 1000;
	if (app.line.state !== "live") app.line = { state: "live", since: Date.now(), why: "" };
	if (before && before.started !== value.server.started) {
		app.models.clear();
		app.total = null;
		app.sparks.clear();
		if (app.open !== null) readDetails();
	}
	if (value.whole) app.models.clear();
	for (const name of value.gone) app.models.delete(name);
	for (const model of value.models) app.models.set(model.name, model);
	if (before && before.tick >= 0 && value.server.tick > before.tick) ticked(value.server.tick - before.tick);
	const open = app.models.get(app.open);
	if (open && app.details && (open.event !== app.details.event || refusedAt(app.server) !== app.details.refused)) again();
	draw();
}

const refusedAt = (server) => server.config_refused?.since;

// Numbers of the next tick, for whatever is drawn.
function ticked(ticks) {
	if (app.total) append(app.total, ticks, [{ key: "", now: app.server.now }]);
	if (app.server.tick % SPARK_TICKS === 0) {
		for (const [name, points] of app.sparks) {
			points.push(app.models.get(name)?.now.requests ?? 0);
			points.shift();
		}
		for (const { name, now } of app.models.values()) {
			if (now.requests && !app.sparks.has(name)) app.sparks.set(name, [...Array(29).fill(0), now.requests]);
		}
	}
	const model = app.models.get(app.open);
	if (model && app.details && app.range !== "4h") {
		const versions = model.versions.map(({ version, now }) => ({ key: String(version), now }));
		append(app.details.series, ticks, [...versions, { key: "", now: model.unanswered }].filter(({ now }) => Object.keys(now).length));
	}
}

async function read(path, into) {
	try {
		into(await ask(path));
		app.problem = null;
	} catch (error) {
		app.problem = error.message;
		if (error.status === 401 || error.status === 403) lost(error);
	}
	draw();
}

function readTotal() {
	read("/v1/overview", ({ series: { step, end, ...points }, sparks }) => {
		app.total = { step, end, length: 300, versions: { "": points }, points };
		app.sparks = new Map(sparks.map(({ name, requests }) => [name, requests]));
	});
}

let lastDetails = 0;
let waiting = 0;

function readDetails() {
	const { open, range } = app;
	lastDetails = Date.now();
	clearTimeout(waiting);
	waiting = 0;
	const coarse = range === "4h";
	return read(`/v1/overview?${new URLSearchParams({ model: open, range: coarse ? range : "10m" })}`, ({ server, models, details }) => {
		if (app.open !== open || app.range !== range) return;
		details.series.length = coarse ? 240 : 300;
		details.event = models[0]?.event;
		details.refused = refusedAt(server);
		if (models[0]) app.models.set(open, models[0]);
		app.details = details;
	});
}

// Soon, but not more often than the page can be read.
function again() {
	if (!waiting) waiting = setTimeout(readDetails, Math.max(0, lastDetails + MOST_OFTEN - Date.now()));
}

async function readConfig() {
	const name = app.open;
	try {
		const text = JSON.stringify(await ask(`/v2/models/${encodeURIComponent(name)}/config`), null, 2);
		if (app.open === name) app.config = text;
	} catch (error) {
		app.config = error.message;
	}
	draw();
}

function route() {
	const found = new URLSearchParams(location.hash.slice(1));
	const open = found.get("model");
	const range = RANGES[found.get("range")] ? found.get("range") : "10m";
	const moved = open !== app.open;
	if (moved) Object.assign(app, { problem: null, details: null, config: null, form: emptyForm(), cursor: null, tables: new Set() });
	app.open = open;
	app.range = range;
	if (open !== null && app.line.state === "live") readDetails();
	if (moved) scrollTo(0, 0);
	draw();
}

addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
	if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
	if (event.key === "/" && app.open === null) {
		event.preventDefault();
		document.getElementById("search").focus();
	} else if (event.key === "Escape" && app.open !== null) app.go({ model: null });
});
document.addEventListener("visibilitychange", () => {
	if (document.hidden) {
		stop?.();
		stop = null;
		app.line = { state: "paused", since: Date.now(), why: "" };
	} else if (!stop) restart();
});
setInterval(() => app.open !== null && app.range === "4h" && !document.hidden && readDetails(), COARSE_REFRESH);

route();
restart();
