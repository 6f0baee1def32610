"use strict";
// Draws what an audit found: columns by micro-batch, times in microseconds since the epoch.
const COLORS = ["#3b7dd8", "#d9673b", "#2f9e6e", "#a05fc9", "#c9a227", "#d14a8b", "#3aa5b8", "#8a6d4f", "#6f7bf0", "#74913a"];
const data = JSON.parse(document.getElementById("data").textContent);
const color = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};
const seconds = (column) => column.map((us) => (us === null ? null : us / 1e6));
const moment = (s) => (s == null ? "none" : new Date(s * 1e3).toISOString().slice(0, 19).replace("T", " ") + " UTC");
const count = (n) => (n == null ? "" : n.toLocaleString("en-US"));
const stepped = uPlot.paths.stepped({ align: 1 });
const plots = [];
const plot = (name, height, series, columns, y) => {
  const place = document.querySelector(`[data-plot=${name}]`);
  if (!place) return;
  const axis = { stroke: () => color("faint"), grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false } };
  plots.push(new uPlot({
    width: place.clientWidth, height, series: [{ label: "micro-batch" }, ...series],
    tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
    scales: { x: { time: false }, y: { time: !!y.time, range: y.range } },
    axes: [{ ...axis, size: 32 }, { ...axis, size: 128, values: y.values }],
    cursor: { sync: { key: "audit" } },
  }, [data.batches, ...columns], place));
};
const line = (label, stroke, value, more = {}) => ({ label, stroke, width: 2, points: { show: data.batches.length < 3 }, value: (u, v) => value(v), ...more });
plot("reach", 380, [
  ...data.splits.map(({ id }, i) => line(id, COLORS[i % COLORS.length], moment, { width: 1.5, spanGaps: true, points: { show: true, size: 4 }, dash: i < COLORS.length ? undefined : [6, 3] })),
  line("Spark's watermark", () => color("text"), moment, { width: 3, paths: stepped }),
], [...data.splits.map(({ latest }) => seconds(latest)), seconds(data.watermark)], {
  time: true, values: (u, splits) => splits.map((s) => moment(s).slice(0, 16)),
});
plot("rows", 220, [
  line("read", COLORS[0], count, { paths: stepped }),
  line("dropped", COLORS[1], count, { paths: stepped, fill: COLORS[1] + "55" }),
], [data.read, data.dropped], { values: (u, splits) => splits.map((n) => (n % 1 ? "" : count(n))), range: (u, low, high) => [0, (high || 1) * 1.1] });
new ResizeObserver(() => plots.forEach((made) => {
  const width = made.root.parentElement.clientWidth;
  if (width !== made.width) made.setSize({ width, height: made.height });
})).observe(document.querySelector("main"));
document.documentElement.dataset.drawn = "true";
