// Plots, small lines beside numbers, and the time line of versions.
import { h, scroll } from "./dom.js";
import { area, ceiling, highest, lanes, last, path } from "./series.js";
import { DASH, clock, span, stateOf } from "./words.js";

const WIDTH = 600;
const HEIGHT = 100;
const TABLE_ROWS = 12;
const MOST_LANES = 12;

export function spark(points, tone = "c0") {
	const top = ceiling(highest([{ points }]));
	const box = { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", "aria-hidden": "true" };
	return h("svg.spark", box, curve({ points, tone }, top, true));
}

const curve = ({ points, tone }, top, filled) => [
	filled && h("path", { class: "area " + tone, d: area(points, top, WIDTH, HEIGHT) }),
	h("path", { class: "line " + tone, d: path(points, top, WIDTH, HEIGHT) }),
];

// `lines`: [{name, tone, points}]; `print` puts a value into words; `app.cursor` is the share of the range pointed at.
export function plot(app, series, title, print, lines) {
	if (!lines.length) return null;
	const { length, step, end } = series;
	const top = ceiling(highest(lines));
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
			h("button.quiet", { "aria-expanded": String(open), "aria-label": `${title} as a table`, onclick: toggle }, open ? "Plot" : "Table"),
			h("span.legend", lines.map((line) => h("span", h("i", { class: line.tone }), line.name, " ", h("b", valueOf(line))))),
		),
		open
			? table(title, lines, length, at, print)
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

function table(title, lines, length, at, print) {
	const places = Array.from({ length: TABLE_ROWS }, (_, row) => length - 1 - row * Math.max(1, Math.floor(length / TABLE_ROWS))).filter((place) => place >= 0);
	return scroll(
		title,
		h(
			"table.small",
			h("thead", h("tr", h("th", { scope: "col" }, "Time"), lines.map(({ name }) => h("th.n", { scope: "col" }, name)))),
			h("tbody", places.map((place) => h("tr", h("td", at(place)), lines.map(({ points }) => h("td.n", points[place] === null ? DASH : print(points[place])))))),
		),
	);
}

// One lane for each version, newest first; a state is a colour and a letter.
export function timeline(events, versions, to, seconds) {
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
		h("div.axis", { "aria-hidden": "true" }, h("span", clock(from)), h("span", clock(from + seconds / 2)), h("span", "now")),
	);
}
