// The list of all models, the worst first.
import { h } from "./dom.js";
import { ceiling, highest } from "./series.js";
import { spark } from "./plot.js";
import { DASH, MARKS, bytes, number, plural, seconds, share, state, verdict } from "./words.js";

const PAGE = 100;

export const badge = (name) => {
  const [word, tone] = verdict(name);
  return h("span", { class: "badge " + tone }, h("i", { "aria-hidden": "true" }, MARKS[tone]), word);
};

// One version as a small label: its number, its state unless it serves, its labels.
export const chip = (version) => {
  const [word, tone] = state(version);
  const part = version.progress?.text;
  return h(
    "span",
    { class: "chip " + tone, key: version.version, title: version.message || part || null },
    h("b", null, version.version),
    word === "serving" ? null : " " + word,
    version.replicas ? ` ${version.replicas.ready}/${version.replicas.of}` : null,
    (version.labels || []).map((label) => h("span", { class: "tag" }, label)),
  );
};

const alive = (version) => version.state !== "END" || version.message;

// Where requests go, as one bar by version; only where more than one version answers.
export function split(model) {
  const busy = model.versions.filter(({ now }) => now.requests);
  const total = busy.reduce((sum, { now }) => sum + now.requests, 0);
  if (busy.length < 2) return null;
  const words = busy.map(({ version, now }) => `version ${version} ${share(now.requests / total)}`).join(", ");
  return h(
    "div",
    { class: "split", role: "img", "aria-label": words, title: words },
    busy.map(({ version, now }, place) => h("span", { class: "c" + (place % 6), key: version, css: { width: `${(now.requests / total) * 100}%` } }, version)),
  );
}

const COLUMNS = [
  ["Status", "rank", null],
  ["Model", "name", null],
  ["Versions", null, null],
  ["Requests/s", "requests", (now) => number(now.requests ?? 0)],
  ["p50", "p50", (now) => seconds(now.p50)],
  ["p99", "p99", (now) => seconds(now.p99)],
  ["Errors/s", "errors", (now) => number(now.errors ?? 0)],
  ["Waiting", "waiting", (now) => number(now.waiting ?? 0)],
];

const byStatus = (a, b) => a.rank - b.rank || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

export function chosen(app) {
  const wanted = app.search.trim().toLowerCase();
  const found = [...app.models.values()].filter(
    (model) => (!wanted || model.name.toLowerCase().includes(wanted)) && (!app.troubled || model.verdict !== "SERVING"),
  );
  const { by, down } = app.sort;
  if (by === "rank" || by === "name") found.sort(by === "rank" ? byStatus : (a, b) => (a.name < b.name ? -1 : 1));
  else found.sort((a, b) => (b.now[by] ?? 0) - (a.now[by] ?? 0) || byStatus(a, b));
  if (down) found.reverse();
  return found;
}

export function list(app) {
  const found = chosen(app);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  app.page = Math.min(app.page, pages - 1);
  const rows = found.slice(app.page * PAGE, (app.page + 1) * PAGE);
  const troubled = [...app.models.values()].filter((model) => model.verdict !== "SERVING").length;
  return h(
    "section",
    { class: "card", "aria-labelledby": "models" },
    h(
      "div",
      { class: "head" },
      h("h2", { id: "models" }, "Models"),
      h(
        "div",
        { class: "filters" },
        h("button", { type: "button", "aria-pressed": String(!app.troubled), onclick: () => app.change({ troubled: false, page: 0 }) }, `All ${app.models.size}`),
        h("button", { type: "button", "aria-pressed": String(app.troubled), onclick: () => app.change({ troubled: true, page: 0 }) }, `Need a look ${troubled}`),
        h("input", {
          type: "search",
          id: "search",
          placeholder: "Search  /",
          "aria-label": "Search models by name",
          autocomplete: "off",
          oninput: (event) => app.change({ search: event.target.value, page: 0 }),
        }),
        app.loadButton(),
      ),
    ),
    rows.length
      ? h(
          "div",
          { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "models" },
          h("table", { class: "models" }, h("thead", null, h("tr", null, COLUMNS.map((column) => heading(app, column)))), h("tbody", null, rows.map((model) => row(app, model)))),
        )
      : h("p", { class: "empty" }, app.models.size ? "No model fits." : app.server ? "No model is served." : "Reading…"),
    pages > 1
      ? h(
          "nav",
          { class: "pages", "aria-label": "Pages" },
          h("button", { type: "button", disabled: app.page === 0, onclick: () => app.change({ page: app.page - 1 }) }, "Previous"),
          h("span", null, `${app.page * PAGE + 1} to ${app.page * PAGE + rows.length} of ${found.length}`),
          h("button", { type: "button", disabled: app.page === pages - 1, onclick: () => app.change({ page: app.page + 1 }) }, "Next"),
        )
      : null,
  );
}

function heading(app, [title, by, print]) {
  const sorted = by && app.sort.by === by;
  const order = sorted ? (app.sort.down ? "other" : print ? "descending" : "ascending") : null;
  const sort = () => app.change({ sort: { by, down: sorted && !app.sort.down } });
  return h(
    "th",
    { scope: "col", class: print ? "n" : null, "aria-sort": order },
    by ? h("button", { class: "quiet", type: "button", onclick: sort }, title, sorted ? h("span", { "aria-hidden": "true" }, print === null ? (app.sort.down ? " ↓" : " ↑") : app.sort.down ? " ↑" : " ↓") : null) : title,
  );
}

function row(app, model) {
  const versions = model.versions.filter(alive);
  const points = app.sparks.get(model.name);
  return h(
    "tr",
    { key: model.name },
    h("td", null, badge(model.verdict)),
    h(
      "td",
      { class: "name" },
      h("a", { href: app.link({ model: model.name }), title: model.name.length > 40 ? model.name : null }, h("bdi", null, model.name)),
      model.verdict === "SERVING" ? null : h("p", { class: "why" }, model.sentence, model.fix ? h("span", { class: "fix" }, model.fix) : null),
    ),
    h("td", null, h("div", { class: "chips" }, versions.slice(0, 6).map(chip), versions.length > 6 ? h("span", { class: "more" }, `+${versions.length - 6}`) : null), split(model)),
    COLUMNS.slice(3).map(([title, by, print]) =>
      h(
        "td",
        { class: "n" + (by === "errors" && model.now.errors ? " alarm" : ""), "data-name": title },
        by === "requests" && points ? spark(points) : null,
        h("span", null, print(model.now)),
      ),
    ),
  );
}

// The server as a whole, above the list.
export function tiles(app) {
  const { server, total } = app;
  if (!server) return null;
  const now = server.now;
  const of = (signal) => total?.points[signal];
  const line = (points, tone) => (points && highest([{ points }]) ? spark(points, tone) : null);
  return h(
    "section",
    { class: "tiles", "aria-label": "The server" },
    tile("Requests/s", number(now.requests ?? 0), plural(now.in_flight ?? 0, "request") + " inside", line(of("requests"))),
    tile("Latency p99", seconds(now.p99), `p50 ${seconds(now.p50)}`, line(of("p99"), "c1")),
    tile("Errors/s", number(now.errors ?? 0), now.errors ? share(now.errors / now.requests) + " of requests" : "none", line(of("errors"), "c3"), now.errors ? "alarm" : ""),
    tile("Waiting", number(now.waiting ?? 0), now.queue ? `queue ${seconds(now.queue)}, run ${seconds(now.run)}` : now.run ? `run ${seconds(now.run)}` : "no runs", line(of("waiting"), "c2")),
    "tokens" in now || of("tokens") ? tile("Tokens/s", number(now.tokens ?? 0), `${number(now.texts ?? 0)} texts run, ${number(now.texts_waiting ?? 0)} wait`, line(of("tokens"), "c4")) : null,
    h(
      "div",
      { class: "tile memory" },
      h("span", { class: "name" }, "Memory"),
      server.memory.map(({ device, instance, used, total: most }) =>
        h(
          "div",
          { class: "device", key: device + instance },
          h("span", null, device === "main" ? "Main" : `${device.toUpperCase()} ${instance}`),
          h("meter", { min: 0, max: Math.max(most, 1), value: used, high: most * 0.9, "aria-label": `Memory set aside for models on ${device} ${instance}` }),
          h("b", null, bytes(used)),
          h("small", null, "of " + bytes(most)),
        ),
      ),
      server.resident ? h("small", null, `the process holds ${bytes(server.resident)}`) : null,
    ),
  );
}

const tile = (name, value, more, line, tone = "") =>
  h("div", { class: "tile " + tone, key: name }, h("span", { class: "name" }, name), h("b", { class: "value" }, value), h("small", null, more), line);
