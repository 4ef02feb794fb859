// What the page does, by the routes that every client has: predictions, and the repository calls of V2.
import { h, pill } from "./dom.js";
import { ask, hasToken, post, setToken } from "./feed.js";
import { example, seconds } from "./words.js";

const MOST_SHOWN = 20000;
const name = encodeURIComponent;

// A form for one request, filled with an example that fits the signature.
export function tryIt(app, model) {
	const form = app.form;
	const toggle = (event) => event.target.open && !form.read && prepare(app, model.name);
	const answering = model.versions.filter((version) => version.state === "AVAILABLE");
	return h("details.card", { key: "try", ontoggle: toggle },
		h("summary", h("h3", "Try a prediction")),
		h("div.form",
			h("label", "Version ",
				h("select", { onchange: (event) => (form.version = event.target.value) }, h("option", { value: "" }, "the one that answers"), answering.map(({ version }) => h("option", { value: version, key: version }, version))),
			),
			h("label", { for: "body" }, form.path === "generate" ? "Request of the generate extension (JSON)" : "Request (JSON)"),
			h("textarea", { id: "body", rows: 8, spellcheck: "false", value: form.text, oninput: (event) => (form.typed = event.target.value) }),
			h("div", h("button.main", { disabled: form.busy, onclick: () => send(app, model.name) }, form.busy ? "Running…" : "Predict")),
			form.result && result(form.result),
		),
	);
}

const result = ({ ok, status, text, seconds: took, timing }) =>
	h(
		"div",
		{ role: "status" },
		h("p", pill(ok ? "good" : "bad", ok ? "Answered" : `Failed${status ? ": " + status : ""}`), took ? ` in ${seconds(took)}` : "", timing && h("small", ` ${timing}`)),
		h("pre", { tabindex: 0 }, text.length > MOST_SHOWN ? text.slice(0, MOST_SHOWN) + "…" : text),
	);

export const emptyForm = () => ({ read: false, path: "predict", text: "", typed: null, version: "", busy: false, result: null });

async function prepare(app, model) {
	const { form } = app;
	form.read = true;
	try {
		const { inputs } = await ask(`/v2/models/${name(model)}`);
		const generates = inputs.some((input) => input.name === "text_input");
		const values = !generates && example(inputs);
		form.path = generates ? "generate" : "predict";
		form.text = generates ? JSON.stringify({ text_input: "Hello", parameters: { max_tokens: 20 } }, null, 1) : values ? JSON.stringify({ inputs: values }) : '{"inputs": {}}';
	} catch (error) {
		form.result = { ok: false, text: error.message };
	}
	app.draw();
}

async function send(app, model) {
	const { form } = app;
	form.busy = true;
	form.result = null;
	app.draw();
	const which = form.version === "" ? "" : `/versions/${form.version}`;
	const path = form.path === "generate" ? `/v2/models/${name(model)}${which}/generate` : `/v1/models/${name(model)}${which}:predict`;
	form.result = await tried(() => post(path, form.typed ?? form.text));
	form.busy = false;
	app.draw();
}

async function tried(work) {
	try {
		return await work();
	} catch (error) {
		return { ok: false, text: error.message };
	}
}

// The way back to an older version, and its undoing: asked once, with what will happen.
export function rollbackButtons(app, model) {
	const rollout = app.details?.explanation?.rollout;
	if (!rollout || !app.may.has("manage")) return null;
	const { answers, back_to: to, going_back: going, rejected, forgets } = rollout;
	const undone = rejected.filter((one) => one.rolled_back).map(({ version }) => version);
	const order = (verb, words, body, button) => h("button", { onclick: () => confirm(app, verb, model.name, words, `/v1/models/${name(model.name)}:guard`, body, button) }, button);
	const back = `Version ${to} answers once it has loaded, and no newer version does, until the next push or until this is undone.${forgets && ` A restart of the server forgets it, because ${forgets}.`}`;
	return h("div.buttons",
		to !== null && going === null && order(`Go back to version ${to} of`, back, { action: "rollback", version: to }, `Go back to version ${to}`),
		(undone.length > 0 || going !== null) && order("Undo the way back of", undone.length ? `Version ${undone.join(", ")} may answer again.` : `Version ${answers} stays.`, { action: "undo_rollback" }, "Undo the way back"),
	);
}

// Loading and unloading: asked once, with what will happen.
export function modelButtons(app, model) {
	if (!explicit(app)) return null;
	const serving = model.versions.filter((version) => version.state === "AVAILABLE").map(({ version }) => version);
	const words = serving.length ? `version ${serving.join(", ")}` : "no version";
	return h("div.buttons",
		h("button", { onclick: () => confirm(app, "Load", model.name, "Its directory is read, and what is new there is loaded.", repository(model.name, "load")) }, serving.length ? "Reload" : "Load"),
		serving.length > 0 && h("button", { onclick: () => confirm(app, "Unload", model.name, `${words} finishes its requests and is unloaded. Then nothing answers for this model.`, repository(model.name, "unload")) }, "Unload"),
	);
}

export function loadButton(app) {
	if (explicit(app)) return h("button", { onclick: () => app.change({ dialog: { kind: "name" } }) }, "Load a model…");
	return app.may.has("manage") && app.server?.control === "poll" && h("button", { onclick: () => confirm(app, "Look", "for changes now", "The config and the directories of models are read now; what has changed is loaded and unloaded.", "/v1/config:reload") }, "Look for changes");
}

const explicit = (app) => app.server?.control === "explicit" && app.may.has("manage");
const repository = (model, action) => `/v2/repository/models/${name(model)}/${action}`;
const confirm = (app, verb, what, words, path, body = {}, press = verb) => app.change({ dialog: { kind: "confirm", verb, what, words, path, body, press } });

async function act(app, path, body = {}) {
	app.change({ dialog: { ...app.dialog, busy: true, error: null } });
	const found = await tried(() => post(path, JSON.stringify(body)));
	if (found.ok) return app.change({ dialog: null });
	let error = found.text;
	try {
		error = JSON.parse(found.text).error || error;
	} catch {}
	app.change({ dialog: { ...app.dialog, busy: false, error } });
}

export function dialog(app) {
	const shown = app.dialog;
	if (!shown) return null;
	const close = () => app.change({ dialog: null });
	const body = { confirm: confirmation, name: naming, token: tokens }[shown.kind](app, shown);
	return h(
		"dialog",
		{ key: shown.kind, "aria-labelledby": "dialog", onclose: close },
		h("div.form", { onkeydown: enter }, body, shown.error && h("p.alarm", { role: "alert" }, shown.error)),
	);
}

// Enter in a field is the first button.
const enter = ({ key, target, currentTarget }) => key === "Enter" && target.tagName === "INPUT" && currentTarget.querySelector("button.main").click();

const cancel = (app) => h("button", { onclick: () => app.change({ dialog: null }) }, "Cancel");

const buttons = (app, words, go) =>
	h("div.buttons", h("button.main", { disabled: app.dialog.busy, onclick: go }, words), cancel(app));

const confirmation = (app, { verb, what, words, path, body, press }) => [
	h("h2", { id: "dialog" }, verb, " ", h("bdi", what), "?"),
	h("p", words),
	buttons(app, press, () => act(app, path, body)),
];

const naming = (app, shown) => [
	h("h2", { id: "dialog" }, "Load a model"),
	h("label", { for: "model" }, "Its name, which is that of its directory in the repository"),
	h("input", { id: "model", autocomplete: "off", oninput: (event) => (shown.typed = event.target.value) }),
	buttons(app, "Load", () => shown.typed && act(app, repository(shown.typed, "load"))),
];

// A token lives in a variable of this page, is sent as Authorization, and is gone with the tab.
const tokens = (app, shown) => [
	h("h2", { id: "dialog" }, "Token"),
	h("p", "It is kept in this page only, and gone when the page is closed."),
	h("label", { for: "token" }, "Token of the access file"),
	h("input", { id: "token", type: "password", autocomplete: "off", oninput: (event) => (shown.typed = event.target.value) }),
	h("div.buttons",
		h("button.main", { onclick: () => keep(app, shown.typed || "") }, "Use"),
		hasToken() && h("button", { onclick: () => keep(app, "") }, "Forget"),
		cancel(app),
	),
];

function keep(app, text) {
	setToken(text);
	app.change({ dialog: null });
	app.restart();
}
