// How numbers, times, states and foreign texts are put into words. Pure.

// Characters that cannot be seen or that turn the text around are written out; half a pair is replaced.
export const shown = (text) =>
  text
    .toWellFormed()
    .replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (char) =>
      "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"),
    );

export const DASH = "–";

export function number(value) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return trim(value / 1e6, 3) + " M";
  if (size >= 1e4) return trim(value / 1e3, 3) + " k";
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return trim(value, size < 1 ? 2 : 3);
}

const trim = (value, digits) => String(Number(value.toPrecision(digits)));

export function seconds(value) {
  if (value === null || value === undefined) return DASH;
  if (value === 0) return "0";
  if (value < 0.001) return trim(value * 1e6, 3) + " µs";
  if (value < 1) return trim(value * 1e3, 3) + " ms";
  return trim(value, 3) + " s";
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  let unit = 0;
  while (value >= 1000 && unit < 5) {
    value /= 1024;
    unit++;
  }
  return trim(value, 3) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}

export const share = (value) => (value === null || value === undefined ? DASH : trim(value * 100, 3) + " %");

// A stretch of time, in seconds.
export function span(value) {
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return whole + " s";
  if (whole < 3600) return Math.floor(whole / 60) + " min";
  if (whole < 86400) return Math.floor(whole / 3600) + " h " + Math.floor((whole % 3600) / 60) + " min";
  return Math.floor(whole / 86400) + " d " + Math.floor((whole % 86400) / 3600) + " h";
}

const two = (value) => String(value).padStart(2, "0");

// The time of day of this browser; of another day with its date. `at`: seconds since 1970.
export function clock(at, now = Date.now() / 1000) {
  const date = new Date(at * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const today = new Date(now * 1000).toDateString() === date.toDateString();
  return today ? time : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

// Seconds since 1970 of an RFC 3339 time.
export const moment = (text) => (text ? Date.parse(text) / 1000 : null);

// Verdicts: a word, and a tone that picks colour and mark.
const VERDICTS = {
  SERVING: ["Serving", "good"],
  SERVING_OTHER: ["Another version serves", "warn"],
  LOADING: ["Loading", "busy"],
  WAITING: ["Waiting", "busy"],
  LEAVING: ["Leaving", "calm"],
  FAILED: ["Failed", "bad"],
  REFUSED: ["Refused", "bad"],
  NOT_CONFIGURED: ["Not configured", "bad"],
  NOT_ON_DISK: ["Not on disk", "bad"],
  NOT_WANTED: ["Not wanted", "calm"],
  ENDED: ["Ended", "calm"],
  HELD_BACK: ["Held back", "warn"],
  REJECTED: ["Rejected", "bad"],
};
export const MARKS = { good: "✓", warn: "!", busy: "…", bad: "✕", calm: "·" };

export const verdict = (name) => VERDICTS[name] || [name, "calm"];

// States of a version: a word, a tone and a letter. Whatever ended with a message has failed.
const STATES = {
  START: ["waiting", "busy", "W"],
  LOADING: ["loading", "busy", "L"],
  AVAILABLE: ["serving", "good", "S"],
  UNLOADING: ["leaving", "warn", "U"],
  END: ["ended", "calm", "E"],
  FAILED: ["failed", "bad", "F"],
};
export const state = (version) => STATES[version.state === "END" && version.message ? "FAILED" : version.state] || STATES.END;
export const stateOf = (name) => STATES[name];

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
