// What comes from the server: the feed, read with fetch so that a token can go along, and single answers.

const SILENCE = 20000;
const LONGEST_WAIT = 8000;

let token = "";
export const setToken = (text) => (token = text.trim());
export const hasToken = () => token !== "";

const headers = (more) => (token ? { ...more, authorization: "Bearer " + token } : more);

export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

async function problem(answer) {
	let message = `the server answered ${answer.status}`;
	try {
		const { error } = await answer.json();
		message = typeof error === "string" ? error : error?.message || message;
	} catch {}
	return new Refused(answer.status, message);
}

export async function ask(path, signal) {
	const answer = await fetch(path, { headers: headers({}), signal, cache: "no-store" });
	if (!answer.ok) throw await problem(answer);
	return answer.json();
}

// The answer to a POST as it came: {status, text, seconds, timing}.
export async function post(path, body) {
	const began = performance.now();
	const answer = await fetch(path, { method: "POST", headers: headers({ "content-type": "application/json" }), body });
	const text = await answer.text();
	const seconds = (performance.now() - began) / 1000;
	return { ok: answer.ok, status: answer.status, text, seconds, timing: answer.headers.get("server-timing") };
}

// Follows the feed until `stop` is called. `on.event(value)`, `on.lost(error)`; after a loss it tries again.
export function follow(path, on) {
	let stopped = false;
	let abort = null;
	let wake = null;
	(async () => {
		for (let wait = 500; !stopped; ) {
			abort = new AbortController();
			try {
				await read(path, abort, (value) => {
					wait = 500;
					on.event(value);
				});
				throw new Error("the server has ended the connection");
			} catch (error) {
				if (!stopped) on.lost(error);
			}
			if (stopped) return;
			await new Promise((done) => {
				wake = done;
				setTimeout(done, wait);
			});
			wait = Math.min(wait * 2, LONGEST_WAIT);
		}
	})();
	return () => {
		stopped = true;
		abort?.abort();
		wake?.();
	};
}

async function read(path, abort, event) {
	let watch = 0;
	const heard = () => {
		clearTimeout(watch);
		watch = setTimeout(() => abort.abort(), SILENCE);
	};
	try {
		heard();
		const answer = await fetch(path, { headers: headers({}), signal: abort.signal, cache: "no-store" });
		if (!answer.ok) throw await problem(answer);
		const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
		for (let held = ""; ; ) {
			const { done, value } = await reader.read();
			if (done) return;
			heard();
			const parts = (held + value).split("\n\n");
			held = parts.pop();
			for (const part of parts) if (part.startsWith("data: ")) event(JSON.parse(part.slice(6)));
		}
	} finally {
		clearTimeout(watch);
	}
}
