"use strict";
// Round ticks, and values as people read them. Times and durations are milliseconds; nothing here needs a document.
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const DECIMAL = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const SIXTIETHS = [1, 2, 5, 10, 15, 20, 30];
const CLOCK_STEPS = [
  ...DECIMAL, ...SIXTIETHS.map((n) => n * SECOND), ...SIXTIETHS.map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR), DAY, 2 * DAY, 7 * DAY,
];
const MONTH_STEPS = [1, 3, 6, ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].map((years) => 12 * years)];
// 1970-01-05: weeks begin on a Monday.
const MONDAY = 4 * DAY;
const FAR = 8.64e15;

const iso = (ms) => (Math.abs(ms) > FAR ? "beyond the calendar" : new Date(ms).toISOString());
const dateEnd = (text) => (/^[+-]/.test(text) ? 13 : 10);
/** A time to the second, in UTC: as in the sentences of `explain`. */
const moment = (ms) => {
  if (ms == null) return "none yet";
  const text = iso(ms);
  return text.includes("T") ? `${text.slice(0, dateEnd(text))} ${clock(ms)} UTC` : text;
};
const clock = (ms) => iso(ms).split("T").pop().slice(0, 8);
const whole = (n) => (n == null ? "not known" : n.toLocaleString("en-US"));

/** Ticks of an axis of event time, at most so many: `at`, `text` of one, and whether they need a `date` beside it. */
function timeTicks(low, high, most) {
  const step = CLOCK_STEPS.find((ms) => (high - low) / ms <= most);
  if (step) {
    const origin = step === 7 * DAY ? MONDAY : 0, at = [];
    for (let ms = origin + Math.ceil((low - origin) / step) * step; ms <= high; ms += step) at.push(ms);
    const [from, to] = step < SECOND ? [11, 23] : step < MINUTE ? [11, 19] : step < DAY ? [11, 16] : [0, 10];
    return { at, step, text: (ms) => iso(ms).slice(from, to), date: step < DAY };
  }
  const months = MONTH_STEPS.find((n) => (high - low) / (n * 30.4 * DAY) <= most) ?? MONTH_STEPS.at(-1);
  const first = new Date(low), at = [];
  const begin = Math.floor((first.getUTCFullYear() * 12 + first.getUTCMonth()) / months) * months;
  for (let month = begin, ms; (ms = Date.UTC(2000, month - 24000, 1)) <= high; month += months) if (ms >= low) at.push(ms);
  const years = months % 12 === 0;
  return { at, step: months * 30.4 * DAY, text: (ms) => iso(ms).split(years ? /-\d\d-/ : /-\d\dT/)[0], date: false };
}

const DAYS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((k) => [k, 2 * k, 5 * k]);
const UNITS = [[DAY, "d", DAYS], [HOUR, "h", [1, 2, 3, 6, 12]], [MINUTE, "min", SIXTIETHS], [SECOND, "s", SIXTIETHS], [1, "ms", DECIMAL]];
/** Ticks of an axis of durations from 0 on: all in one unit. */
function durationTicks(high, most) {
  const [unit, name, numbers] = UNITS.find(([ms]) => high >= 2 * ms) ?? UNITS.at(-1);
  const step = unit * (numbers.find((n) => high / (n * unit) <= most) ?? numbers.at(-1));
  return { at: multiples(high, step), step, text: (ms) => `${(ms / unit).toLocaleString("en-US")} ${name}` };
}

/** Ticks of an axis of counts from 0 on: whole numbers, all with as many digits. */
function countTicks(high, most) {
  let step = 1;
  for (let k = 1; high / step > most; k *= 10) step = [k, 2 * k, 5 * k, 10 * k].find((n) => high / n <= most) ?? 10 * k;
  const [unit, name] = step >= 1e9 ? [1e9, " G"] : step >= 1e6 ? [1e6, " M"] : step >= 1e3 && high >= 1e5 ? [1e3, " k"] : [1, ""];
  return { at: multiples(high, step), step, text: (n) => `${(n / unit).toLocaleString("en-US")}${n ? name : ""}` };
}

const multiples = (high, step) => Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => i * step);

/** A duration to two parts or so. */
function span(ms) {
  if (ms == null) return "not known";
  const s = ms / SECOND;
  if (s < 60) return s >= 10 ? `${Math.floor(s)} s` : `${Math.round(s * 10) / 10} s`;
  const parts = [[365 * 86400, "y"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([unit]) => s >= unit);
  const rest = Math.floor((s % parts[at][0]) / (parts[at + 1]?.[0] ?? 1));
  return `${Math.floor(s / parts[at][0])} ${parts[at][1]}` + (rest && parts[at + 1] ? ` ${rest} ${parts[at + 1][1]}` : "");
}
