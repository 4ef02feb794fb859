// The pure part of the page: run by node, which playwright brings along.
import assert from "node:assert/strict";
import test from "node:test";
import * as words from "../../tfs_lite/operations/dashboard/static/words.js";

test("what cannot be seen or turns a text around is written out", () => {
	assert.equal(words.shown("a\u202eb\0c"), "a\\u202eb\\u0000c");
	assert.equal(words.shown("half \ud800 a pair"), "half \ufffd a pair");
	assert.equal(words.shown("line\nline\ttab 漢字 😀"), "line\nline\ttab 漢字 😀");
});

test("numbers have three digits that count", () => {
	assert.deepEqual([0, 0.123, 3.14159, 99.96, 1234.5, 25600, 3.2e6].map(words.number), ["0", "0.12", "3.14", "100", "1,235", "25.6 k", "3.2 M"]);
	assert.deepEqual([undefined, null].map(words.number), ["–", "–"]);
});

test("times and sizes have their unit", () => {
	assert.deepEqual([0, 0.0000213, 0.0123, 2.5].map(words.seconds), ["0", "21.3 µs", "12.3 ms", "2.5 s"]);
	assert.deepEqual([512, 2048, 5 * 2 ** 30].map(words.bytes), ["512 B", "2 KiB", "5 GiB"]);
	assert.deepEqual([5, 90, 7200, 3700, 90000].map(words.span), ["5 s", "1 min", "2 h", "1 h 1 min", "1 d 1 h"]);
});

test("a verdict that nobody knows is bad news in its own words", () => {
	assert.deepEqual(words.verdict("NOT_ON_DISK"), ["bad", "Not on disk"]);
	assert.deepEqual(words.verdict("SERVING"), ["good", "Serving"]);
});

test("the top of a plot is 1, 2 or 5 times a power of ten", () => {
	assert.deepEqual([0, 0.3, 1, 7, 12, 480, 501].map(words.ceiling), [1, 0.5, 1, 10, 20, 500, 1000]);
	assert.deepEqual([0, 1000, 600 * 2 ** 20, 7.6 * 2 ** 20].map(words.binary).map(words.bytes), ["1 B", "1 KiB", "1 GiB", "8 MiB"]);
});

test("a sentence leaves out the causes that are told below it, and a text is told once", () => {
	const causes = [{ text: "no $& archive" }, { text: "slow" }];
	assert.equal(words.without("version 3 is refused: no $& archive; version 2 answers instead", causes), "version 3 is refused; version 2 answers instead");
	assert.equal(words.without("version 1 answers, but slow", causes), "version 1 answers");
	assert.deepEqual(["a", "", "b", "a", ""].map(words.once()), ["a", "", "b", "as above", ""]);
});

test("a line breaks where there is no number", () => {
	assert.equal(words.path([0, 10, null, 5], 10, 30, 100), "M0 100h0.5L10 0M30 50h0.5");
	assert.equal(words.area([null, 10, 5], 10, 20, 100), "M10 100L10 0L20 50V100Z");
});

test("a tick adds the numbers of every version, and none for ticks that were missed", () => {
	const series = { step: 2, end: 10, length: 3, versions: { 1: { requests: [1, 2, 3], p99: [1, 2, 3] } } };
	words.append(series, 1, [{ key: "2", now: { requests: 5 } }]);
	assert.deepEqual(series.versions, { 1: { requests: [2, 3, 0], p99: [2, 3, null] }, 2: { requests: [0, 0, 5] } });
	words.append(series, 2, [{ key: "2", now: { requests: 6 } }]);
	assert.deepEqual(series.versions[2].requests, [5, null, 6]);
	assert.equal(series.end, 16);
	words.append(series, 1000, []);
	assert.equal(series.versions[1].requests.length, 3);
});

test("events become lanes, and a version without events has its state", () => {
	const at = (second) => new Date(second * 1000).toISOString();
	const event = (second, kind, version, status = null) => ({ time: at(second), kind, version, status });
	const events = [event(0, "SEEN", 1), event(1, "LOAD_BEGUN", 1), event(2, "AVAILABLE", 1), event(3, "UNASPIRED", 1), event(5, "ENDED", 1), event(4, "LOAD_BEGUN", 2), event(6, "ENDED", 2, {})];
	const found = words.lanes(events, [{ version: 7, state: "AVAILABLE", since: 3 }], 0, 10);
	assert.deepEqual(found.map(({ version }) => version), [7, 2, 1]);
	assert.deepEqual(found[1].parts.map(({ state }) => state), ["LOADING", "FAILED"]);
	assert.deepEqual(found[2].parts.map(({ state, from, to }) => [state, from, to]), [["START", 0, 1], ["LOADING", 1, 2], ["AVAILABLE", 2, 5], ["END", 5, 10]]);
});

test("an example has the shape of the inputs", () => {
	assert.deepEqual(words.example([{ name: "x", datatype: "FP32", shape: [-1, 2] }, { name: "n", datatype: "INT64", shape: [1] }]), { x: [[0.5, 0.5]], n: [1] });
	assert.equal(words.example([{ name: "x", datatype: "FP32", shape: [1, 3, 224, 224] }]), null);
});
