// Plots, small lines beside numbers, and the time line of versions.
import { h } from "./dom.js";
import { ceiling, highest, lanes, last, path } from "./series.js";
import { DASH, clock, span, stateOf } from "./words.js";

const WIDTH = 600;
const HEIGHT = 100;
const TABLE_ROWS = 12;

export const spark = (points, tone = "c0") => {
  const top = ceiling(highest([{ points }]));
  const line = path(points, top, WIDTH, HEIGHT);
  return h(
    "svg",
    { class: "spark", viewBox: `0 -4 ${WIDTH} ${HEIGHT + 8}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { class: "line " + tone, d: line }),
  );
};

// `lines`: [{name, tone, points}]; `print` puts a value into words; `app.cursor` is the share of the range pointed at.
export function plot(app, series, { title, lines, print }) {
  const shownLines = lines.filter(({ points }) => points);
  if (!shownLines.length) return null;
  const top = ceiling(highest(shownLines));
  const { length, step, end } = series;
  const place = app.cursor === null ? null : Math.round(app.cursor * (length - 1));
  const valueOf = ({ points }) => (place === null ? last(points.slice(-3)) : points[place]);
  const label = shownLines.map((line) => `${line.name} ${print(last(line.points))}`).join(", ");
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    app.cursor = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    app.draw();
  };
  const leave = () => {
    app.cursor = null;
    app.draw();
  };
  const open = app.tables.has(title);
  const toggle = () => {
    if (!app.tables.delete(title)) app.tables.add(title);
    app.draw();
  };
  return h(
    "figure",
    { class: "plot", key: title },
    h(
      "figcaption",
      null,
      h("span", { class: "name" }, title),
      h("button", { class: "quiet", type: "button", "aria-expanded": String(open), "aria-label": `${title} as a table`, onclick: toggle }, open ? "Plot" : "Table"),
      h(
        "span",
        { class: "legend" },
        shownLines.map((line) => h("span", null, h("i", { class: line.tone }), line.name, " ", h("b", null, print(valueOf(line))))),
      ),
    ),
    open
      ? table(shownLines, series, print)
      : h(
          "div",
          { class: "box", onpointermove: point, onpointerleave: leave },
          h("span", { class: "top" }, print(top)),
          h(
            "svg",
            { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${label}` },
            [0.5, 100 / 2, 99.5].map((y) => h("path", { class: "grid", d: `M0 ${y}H${WIDTH}` })),
            shownLines.map((line) => h("path", { class: "line " + line.tone, d: path(line.points, top, WIDTH, HEIGHT) })),
            place === null ? null : h("path", { class: "cursor", d: `M${(place / (length - 1)) * WIDTH} 0V${HEIGHT}` }),
          ),
          h("span", { class: "from" }, "−" + span(step * length)),
          h("span", { class: "to" }, place === null ? "now" : clock(end - (length - 1 - place) * step)),
        ),
  );
}

function table(lines, { length, step, end }, print) {
  const jump = Math.max(1, Math.floor(length / TABLE_ROWS));
  const places = [];
  for (let place = length - 1; place >= 0 && places.length < TABLE_ROWS; place -= jump) places.push(place);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": "Values" },
    h(
      "table",
      { class: "small" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), lines.map((line) => h("th", { scope: "col", class: "n" }, line.name)))),
      h(
        "tbody",
        null,
        places.map((place) =>
          h(
            "tr",
            null,
            h("td", null, clock(end - (length - 1 - place) * step)),
            lines.map(({ points }) => h("td", { class: "n" }, points[place] === null ? DASH : print(points[place]))),
          ),
        ),
      ),
    ),
  );
}

// One lane for each version, newest first; a state is a colour and a letter.
export function timeline(events, versions, to, seconds) {
  const from = to - seconds;
  const found = lanes(events, versions, from, to).slice(0, 12);
  if (!found.length) return null;
  const words = ({ state, from: begun }) => `${stateOf(state)[0]} since ${clock(begun)}`;
  return h(
    "div",
    { class: "lanes" },
    found.map(({ version, parts }) =>
      h(
        "div",
        { class: "lane", key: version },
        h("span", { class: "label" }, "v" + version),
        h(
          "div",
          { class: "track", role: "img", "aria-label": `Version ${version}: ${parts.map(words).join(", ")}` },
          parts.map((part) => {
            const [word, tone, letter] = stateOf(part.state);
            const width = ((part.to - part.from) / seconds) * 100;
            const css = { left: `${((part.from - from) / seconds) * 100}%`, width: `${width}%` };
            const title = `${word}, ${clock(part.from)} to ${clock(part.to)} (${span(part.to - part.from)})`;
            return h("span", { class: "part " + tone, css, title }, width > 12 ? word : width > 1.5 ? letter : "");
          }),
        ),
      ),
    ),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", null, clock(from)), h("span", null, clock(from + seconds / 2)), h("span", null, "now")),
  );
}
