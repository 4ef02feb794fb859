// Everything about one model.
import { h } from "./dom.js";
import { plot, timeline } from "./plot.js";
import { badge, chip, split } from "./models.js";
import { DASH, bytes, clock, moment, number, plural, seconds, share, span, state } from "./words.js";
import { tryIt } from "./actions.js";

const RANGES = { "10m": ["10 minutes", 600], "4h": ["4 hours", 14400] };
const MOST_EVENTS = 50;
const NO_VERSION = "none";

export function page(app) {
  const { open, details } = app;
  const model = app.models.get(open);
  if (!model && !details) return [back(app), h("p", { class: "empty" }, app.server ? "Reading…" : "")];
  const explanation = details?.explanation;
  return [
    back(app),
    h(
      "div",
      { class: "title" },
      h("h2", null, h("bdi", null, open)),
      model ? badge(model.verdict) : explanation ? badge(explanation.verdict) : null,
      model ? app.modelButtons(model) : null,
    ),
    why(app, model, explanation),
    model ? versions(app, model) : null,
    details ? [lanes(app, model, details), plots(app, details), app.may.has("predict") && model ? tryIt(app, model) : null, replicas(details), failures(details), events(app, details), memory(details), config(app)] : null,
  ];
}

const back = (app) => h("nav", { class: "back", "aria-label": "Back" }, h("a", { href: app.link({ model: null }) }, "← All models"));

const card = (id, title, more, ...kids) =>
  h("section", { class: "card", key: id, "aria-labelledby": id }, h("div", { class: "head" }, h("h3", { id }, title), more), kids);

function scroll(label, head, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("thead", null, h("tr", null, head.map(([title, right]) => h("th", { scope: "col", class: right ? "n" : null }, title)))), h("tbody", null, rows)),
  );
}

const n = (text, alarm) => h("td", { class: alarm ? "n alarm" : "n" }, text);

// The verdict's sentence, the chain from the nearest cause to the root, what to do, what happens next, who answers.
function why(app, model, found) {
  const sentence = found?.sentence || model?.sentence;
  const chain = found?.because || [];
  const answers = found?.answers_now || [];
  const calm = (found?.verdict || model?.verdict) === "SERVING" && !chain.length;
  if (calm && answers.length < 2) return null;
  const since = (at) => (at ? h("small", null, ` since ${clock(moment(at))}`) : null);
  return h(
    "section",
    { class: "card why " + (calm ? "" : "trouble"), "aria-label": "Why" },
    calm ? null : h("p", { class: "sentence" }, sentence),
    chain.length
      ? h(
          "ol",
          { class: "chain" },
          chain.map((link) =>
            h("li", null, h("p", null, link.text, since(link.since)), link.fix ? h("p", { class: "fix" }, h("b", null, "Do: "), link.fix) : null),
          ),
        )
      : null,
    found?.next?.what ? h("p", null, h("b", null, "Next: "), found.next.what, found.next.at ? ` (${clock(moment(found.next.at))})` : "") : null,
    answers.length
      ? h(
          "p",
          null,
          h("b", null, calm ? "Answers: " : "Meanwhile: "),
          answers.map(({ reference, version, weight }, place) => [place ? ", " : "", `version ${version} answers ${reference === "unversioned" ? "requests without a version" : `the label ${reference}`}`, weight < 1 ? ` (${share(weight)})` : ""]),
        )
      : null,
  );
}

function versions(app, model) {
  const lost = model.unanswered;
  const row = (version) => {
    const { now } = version;
    return h(
      "tr",
      { key: version.version },
      h("td", null, chip(version)),
      h(
        "td",
        { class: "state" },
        state(version)[0],
        version.since ? h("small", null, ` ${span(app.now() - version.since)}`) : null,
        version.progress ? progress(version.progress) : version.message ? h("p", { class: "why" }, version.message) : null,
      ),
      n(number(now.requests ?? 0)),
      n(seconds(now.p50)),
      n(seconds(now.p99)),
      n(number(now.errors ?? 0), now.errors),
      n(number(now.waiting ?? 0)),
      n(number(now.in_flight ?? 0)),
      n(bytes(version.memory)),
    );
  };
  return card(
    "versions",
    "Versions",
    split(model),
    scroll(
      "Versions",
      [["Version"], ["State"], ["Requests/s", 1], ["p50", 1], ["p99", 1], ["Errors/s", 1], ["Waiting", 1], ["Inside", 1], ["Memory", 1]],
      [
        model.versions.map(row),
        lost.requests ? h("tr", { key: NO_VERSION }, h("td", null, NO_VERSION), h("td", { class: "state" }, "requests that no version answered"), n(number(lost.requests)), n(DASH), n(DASH), n(number(lost.errors ?? 0), lost.errors), n(DASH), n(DASH), n(DASH)) : null,
      ],
    ),
  );
}

function progress({ read_bytes: read, expected_bytes: expected, text }) {
  return h("p", { class: "progress" }, expected ? h("progress", { max: expected, value: read ?? 0, "aria-label": "Loaded" }) : null, h("small", null, text));
}

const rangeSwitch = (app) =>
  h(
    "div",
    { class: "filters" },
    Object.entries(RANGES).map(([range, [words]]) => h("button", { type: "button", "aria-pressed": String(app.range === range), onclick: () => app.go({ range }) }, words)),
  );

function lanes(app, model, details) {
  const drawn = timeline(details.events, model?.versions || [], app.now(), RANGES[app.range][1]);
  return card("timeline", "Time line", rangeSwitch(app), drawn || h("p", { class: "empty" }, "Nothing happened."));
}

const LAST = 3;

function plots(app, { series }) {
  const kept = Object.keys(series.versions).sort((a, b) => Number(b) - Number(a)).slice(0, 6);
  const tone = (key) => "c" + (kept.indexOf(key) % 6);
  const name = (key) => (key === "" ? NO_VERSION : "v" + key);
  const busy = (points) => points?.some((value) => value);
  const by = (title, signal, print) => {
    const lines = kept.filter((key) => busy(series.versions[key][signal])).map((key) => ({ name: name(key), tone: tone(key), points: series.versions[key][signal] }));
    return plot(app, series, { title, print, lines });
  };
  // Two signals of each version: the second one is drawn lighter.
  const pair = (title, [first, second], [a, b], print) => {
    const lines = kept
      .filter((key) => busy(series.versions[key][first]))
      .slice(0, LAST)
      .flatMap((key) => [
        { name: `${name(key)} ${a}`, tone: tone(key), points: series.versions[key][first] },
        { name: `${name(key)} ${b}`, tone: tone(key) + " light", points: series.versions[key][second] },
      ]);
    return plot(app, series, { title, print, lines });
  };
  const drawn = [
    by("Requests/s", "requests", number),
    pair("Latency", ["p99", "p50"], ["p99", "p50"], seconds),
    by("Errors/s", "errors", number),
    pair("Queue and run", ["run", "queue"], ["run", "queue"], seconds),
    pair("Batch", ["rows", "padding"], ["rows", "padding"], number),
    by("Waiting", "waiting", number),
    by("Inside", "in_flight", number),
    by("Tokens/s", "tokens", number),
    pair("Texts", ["texts", "texts_waiting"], ["running", "waiting"], number),
    by("Cache in use", "cache", share),
    by("Memory", "memory", bytes),
  ].filter(Boolean);
  return card("numbers", "Numbers", h("small", null, app.range === "10m" ? "every 2 s" : "every minute"), drawn.length ? h("div", { class: "plots" }, drawn) : h("p", { class: "empty" }, "Nobody asked it in this time."));
}

function replicas({ replicas: found }) {
  if (!found.length) return null;
  const row = (one) =>
    h("tr", { key: one.version + one.name }, h("td", null, one.version), h("td", null, one.name), h("td", null, one.state), h("td", null, one.node || DASH), n(one.ongoing ?? DASH), n(one.restarts, one.restarts), h("td", null, one.reason));
  return card("replicas", "Replicas", h("small", null, plural(found.length, "place")), scroll("Replicas", [["Version"], ["Replica"], ["State"], ["Node"], ["Batches", 1], ["Lost", 1], ["Reason"]], found.map(row)));
}

function failures({ failures: found, codes }) {
  const totals = Object.entries(codes).flatMap(([version, counts]) => Object.entries(counts).map(([code, count]) => [version, code, count]));
  if (!found.length && !totals.length) return null;
  const row = (one) =>
    h(
      "tr",
      { key: one.id || one.request_id },
      h("td", null, clock(moment(one.time))),
      h("td", null, one.version ?? DASH),
      h("td", null, one.code),
      h("td", null, one.stage),
      h("td", { class: "text" }, one.message),
      h("td", null, h("code", null, one.request_id)),
    );
  return card(
    "failures",
    "Failed requests",
    h("small", null, totals.map(([version, code, count]) => `${code}${version ? ` (v${version})` : ""} ${number(count)}`).join(" · ")),
    found.length ? scroll("Failed requests", [["Time"], ["Version"], ["Code"], ["Stage"], ["Message"], ["Request"]], found.slice(0, MOST_EVENTS).map(row)) : null,
  );
}

function events(app, { events: found }) {
  if (!found.length) return null;
  const row = (event) =>
    h(
      "tr",
      { key: event.seq },
      h("td", null, clock(moment(event.last || event.time)), event.count > 1 ? h("small", null, ` ×${number(event.count)}`) : null),
      h("td", null, event.version ?? DASH),
      h("td", null, event.kind.toLowerCase().replaceAll("_", " ")),
      h("td", null, event.cause ? event.cause.toLowerCase().replaceAll("_", " ") : "", event.by ? ` (${event.by})` : ""),
      h("td", { class: "text" }, event.status?.message || Object.entries(event.details).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")),
    );
  return card("events", "Events", h("small", null, plural(found.length, "event")), scroll("Events", [["Time"], ["Version"], ["What"], ["Wanted by"], ["Details"]], found.slice(-MOST_EVENTS).reverse().map(row)));
}

function memory({ memory: found }) {
  if (!found.length) return null;
  const row = (one) =>
    h("tr", { key: one.version }, h("td", null, one.version), h("td", null, one.resident ? "in memory" : "unloaded"), n(bytes(one.files)), n(bytes(one.reserved)), n(bytes(one.measured)), n(bytes(one.given_back)), n(one.disturbed ? "disturbed" : bytes(one.leaked), one.leaked > 1e8 && !one.disturbed));
  return card("memory", "Memory", h("small", null, "of each load and unload"), scroll("Memory", [["Version"], ["State"], ["Files", 1], ["Set aside", 1], ["Tensors", 1], ["Given back", 1], ["Left behind", 1]], found.map(row)));
}

function config(app) {
  const toggle = (event) => event.target.open && app.readConfig();
  return h("details", { class: "card", key: "config", ontoggle: toggle }, h("summary", null, h("h3", null, "Config")), h("pre", { tabindex: "0" }, app.config ?? "Reading…"));
}
