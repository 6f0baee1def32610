// Elements, and charts over micro-batches. All text is set as text: nothing of the data is ever markup.
const SVG = "http://www.w3.org/2000/svg";
const put = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) if (value != null && value !== false) element.setAttribute(name, value);
  element.append(...children.filter((child) => child != null));
  return element;
};
const html = (name, attributes = {}, ...children) => put(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => put(document.createElementNS(SVG, name), attributes, children);
/** The signs of the states: each has a shape of its own, whatever the colours are. */
const SIGNS = {
  active: () => svg("path", { d: "M2 1 L11 6 L2 11 Z", class: "sign active" }),
  paused: () => svg("path", { d: "M2 1 H5 V11 H2 Z M7 1 H10 V11 H7 Z", class: "sign paused" }),
  idle: () => svg("circle", { cx: 6, cy: 6, r: 4, class: "sign idle" }),
  finished: () => svg("path", { d: "M1.5 6.5 L5 10 L10.5 2", class: "sign finished" }),
};
const sign = (status) => svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, SIGNS[status]?.());

const GUTTER = 82, RIGHT = 4, NOW = 10, AXIS = 50;
/** The left edge of each of `count` columns, and the right edge of the last, which is wide enough to be seen. */
function columns(count, left, right) {
  const now = Math.max((right - left) / count, Math.min(NOW, right - left));
  const each = count > 1 ? (right - left - now) / (count - 1) : 0;
  return (i) => (i >= count ? right : left + i * each);
}

/**
 * One chart: steps over micro-batches, each as wide as its column. `lines` are drawn in their order: `values`, a class,
 * and whether the area below is filled or each value stands `apart`; `at` is when the micro-batches were planned, if that
 * is known. Returns what moves its cursor.
 */
function drawChart(holder, { numbers, at, height, low = 0, high, ticks, lines, label, onPoint, onPick }) {
  const width = Math.max(holder.clientWidth, 200), bottom = height - AXIS, top = 8;
  const x = columns(numbers.length, GUTTER, width - RIGHT);
  const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const cursor = svg("rect", { class: "cursor", y: top, height: bottom - top });
  picture.append(cursor);
  let dated;
  for (const tick of ticks.at) {
    picture.append(svg("line", { class: "grid", x1: GUTTER, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    const date = ticks.date && iso(tick).slice(0, 10);
    const text = svg("text", { class: "tick", x: GUTTER - 8, y: y(tick) + 4, "text-anchor": "end" }, ticks.text(tick));
    if (date && date !== dated && y(tick) < bottom - 10) {
      text.append(svg("tspan", { x: GUTTER - 8, dy: 13 }, date));
      dated = date;
    }
    picture.append(text);
  }
  for (const { values, kind, area, apart } of lines) {
    if (area) picture.append(svg("path", { class: `area ${kind}`, d: areaOf(values, x, y, bottom) }));
    picture.append(svg("path", { class: `line ${kind}`, d: apart ? marksOf(values, x, y) : stepsOf(values, x, y) }));
  }
  drawBatches(picture, numbers, at, x, bottom, width);
  picture.append(svg("line", { class: "base", x1: GUTTER, x2: width - RIGHT, y1: bottom, y2: bottom }));
  const index = (event) => {
    const box = picture.getBoundingClientRect(), px = ((event.clientX - box.left) / box.width) * width;
    let i = 0;
    while (i + 1 < numbers.length && x(i + 1) <= px) i++;
    return i;
  };
  picture.addEventListener("pointermove", (event) => onPoint(index(event)));
  picture.addEventListener("pointerleave", () => onPoint(null));
  picture.addEventListener("click", (event) => onPick(index(event)));
  holder.replaceChildren(picture);
  return (i) => put(cursor, { x: x(i), width: Math.max(x(i + 1) - x(i), 1) }, []);
}

/** The numbers of the micro-batches below a chart, and when they were planned. */
function drawBatches(picture, numbers, at, x, bottom, width) {
  const most = Math.max(Math.floor((width - GUTTER) / 66), 1);
  const spread = numbers.at(-1) - numbers[0], { step } = countTicks(spread, most);
  let dated;
  numbers.forEach((number, i) => {
    const before = numbers[i - 1] ?? number - 1;
    // Where micro-batches are missing, or one point is several, the first one at or after a round number.
    if (Math.floor(number / step) === Math.floor(before / step) && number % step !== 0) return;
    const middle = x(i);
    if (middle > width - RIGHT - 58 && i > 0) return;
    picture.append(svg("line", { class: "grid", x1: middle, x2: middle, y1: bottom, y2: bottom + 5 }));
    const day = at && iso(at[i]).slice(0, 10);
    const lines = [whole(number), ...(at ? [clock(at[i])] : []), ...(day === dated ? [] : [day])];
    lines.forEach((text, line) => picture.append(svg("text", { class: "tick", x: middle, y: bottom + 17 + 14 * line }, text)));
    dated = day;
  });
}

function stepsOf(values, x, y) {
  let d = "", open = false;
  values.forEach((value, i) => {
    if (value != null) d += `${open ? "V" : `M${x(i).toFixed(1)} `}${y(value).toFixed(1)}H${x(i + 1).toFixed(1)}`;
    open = value != null;
  });
  return d;
}

/** Each value by itself, wide enough to be seen. */
const marksOf = (values, x, y) =>
  values.map((value, i) => (value == null ? "" : `M${x(i).toFixed(1)} ${y(value).toFixed(1)}h${Math.max(x(i + 1) - x(i), 3).toFixed(1)}`)).join("");

function areaOf(values, x, y, bottom) {
  return values.map((value, i) => (value == null ? "" : `M${x(i).toFixed(1)} ${bottom}V${y(value).toFixed(1)}H${x(i + 1).toFixed(1)}V${bottom}Z`)).join("");
}
