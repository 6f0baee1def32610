"use strict";
// Draws the plots of every source in #data: columns by micro-batch, times in microseconds since the epoch.
const COLORS = ["#3b7dd8", "#d9673b", "#2f9e6e", "#a05fc9", "#c9a227", "#d14a8b", "#3aa5b8", "#8a6d4f", "#6f7bf0", "#74913a"];
const STATUS = { a: "active", p: "paused", i: "idle" };
const data = JSON.parse(document.getElementById("data").textContent);
const theme = new Map();
const css = (name) => {
  if (!theme.has(name)) theme.set(name, resolved(name));
  return theme.get(name);
};
// A canvas knows no `light-dark()`.
const resolved = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
};
const seconds = (column) => column.map((us) => (us === null ? null : us / 1e6));
const iso = (s) => new Date(s * 1e3).toISOString();
const moment = (s) => (s == null ? "none" : iso(s).slice(0, 19).replace("T", " ") + " UTC");
const count = (n) => (n == null ? "not known" : Math.round(n).toLocaleString("en-US"));
const span = (s) => {
  if (s == null) return "not known";
  const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([unit]) => s >= unit) ?? [1, "s"];
  return `${+(s / unit).toFixed(1)} ${name}`;
};
const tick = (incr, s) => {
  const text = iso(s);
  if (incr >= 86400) return text.slice(0, 10);
  return s % 86400 === 0 ? text.slice(5, 10) : text.slice(11, incr < 60 ? 19 : 16);
};

function draw(source, section) {
  const x = source.batches;
  const plots = [];
  const all = x.length > 1 ? [x[0], x.at(-1)] : [x[0] - 0.5, x[0] + 0.5];
  let shown = all;
  const show = (min, max) => {
    const width = Math.min(Math.max(max - min, Math.min(2, all[1] - all[0])), all[1] - all[0]);
    const from = Math.min(Math.max(min, all[0]), all[1] - width);
    shown = [from, from + width];
    for (const plot of plots) plot.setScale("x", { min: shown[0], max: shown[1] });
  };
  const zoom = (by) => {
    const middle = (shown[0] + shown[1]) / 2, half = ((shown[1] - shown[0]) * by) / 2;
    show(middle - half, middle + half);
  };
  const move = (by) => show(shown[0] + by * (shown[1] - shown[0]), shown[1] + by * (shown[1] - shown[0]));
  const output = section.querySelector("output");
  let at = x.length - 1;
  const tell = (index) => {
    at = index;
    const held = source.heldBy[at].length ? ` held by ${source.heldBy[at].join(", ")}` : "";
    output.textContent =
      `Micro-batch ${x[at]}, ${moment(source.at[at] / 1e6)}: watermark ` +
      `${source.cause[at] === "ended" ? "at the end" : moment(source.watermark[at] && source.watermark[at] / 1e6)}${held}; drift ` +
      `${span(source.drift[at] === null ? null : source.drift[at] / 1e6)}, ${count(source.behind[at])} rows behind, ${count(source.late[at])} late.`;
  };
  const point = (index) => {
    tell(Math.min(Math.max(index, 0), x.length - 1));
    if (x[at] < shown[0]) show(x[at], x[at] + shown[1] - shown[0]);
    if (x[at] > shown[1]) show(x[at] - shown[1] + shown[0], x[at]);
    // A scale is set behind this task.
    setTimeout(() => plots.forEach((plot) => plot.setCursor({ left: plot.valToPos(x[at], "x"), top: 10 })));
  };
  const keys = {
    ArrowLeft: () => point(at - 1), ArrowRight: () => point(at + 1), Home: () => point(0), End: () => point(x.length - 1),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(...all), Escape: () => show(...all),
    PageUp: () => move(-0.5), PageDown: () => move(0.5),
  };
  section.querySelectorAll("button[data-key]").forEach((button) => button.addEventListener("click", () => keys[button.dataset.key]()));

  const plot = (name, height, series, columns, y, hooks = {}) => {
    const place = section.querySelector(`[data-plot=${name}]`);
    if (!place) return;
    const axis = { stroke: () => css("faint"), grid: { stroke: () => css("grid"), width: 1 }, ticks: { show: false } };
    const made = new uPlot({
      width: place.clientWidth, height, series: [{ label: "micro-batch" }, ...series],
      tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
      scales: { x: { time: false, range: () => shown }, y: { time: !!y.time, range: y.range, dir: y.dir ?? 1 } },
      axes: [{ ...axis, size: 32, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: y.size ?? 84, splits: y.splits, values: y.values }],
      cursor: { sync: { key: section.id, scales: ["x", null] }, drag: { x: true, y: false, setScale: false }, y: false, bind: { dblclick: () => () => (show(...all), null) } },
      legend: { show: y.legend ?? true },
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          show(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        setCursor: [(u) => u.cursor.idx != null && u.cursor.left >= 0 && tell(u.cursor.idx)],
        ...hooks,
      },
    }, [x, ...columns], place);
    place.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key] && event.target === place) {
        event.preventDefault();
        keys[event.key]();
      }
    });
    place.querySelectorAll(".u-series:not(:first-child) th").forEach((label) => {
      label.tabIndex = 0;
      label.addEventListener("keydown", (event) => event.key === "Enter" && label.click());
    });
    plots.push(made);
  };

  const stepped = uPlot.paths.stepped({ align: 1 });
  const line = (label, stroke, value, more = {}) => ({ label, stroke, width: 2, points: { show: x.length < 3 }, value: (u, v, i, index) => (index == null ? "" : value(v)), ...more });
  const clipped = (u, paint) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint(ctx, uPlot.pxRatio);
    ctx.restore();
  };
  // What a split is after a micro-batch it is until the next one.
  const shade = (u) => clipped(u, (ctx, ratio) => {
    ctx.lineWidth = 9 * ratio;
    ctx.globalAlpha = 0.45;
    source.splits.forEach((split, i) => {
      if (!u.series[i + 1].show) return;
      for (let k = 0; k + 1 < x.length; k++) {
        const [a, b] = [split.watermark[k], split.watermark[k + 1]];
        if ("pi".includes(split.status[k]) && a !== null && b !== null) {
          ctx.strokeStyle = css(STATUS[split.status[k]]);
          ctx.beginPath();
          ctx.moveTo(u.valToPos(x[k], "x", true), u.valToPos(a / 1e6, "y", true));
          ctx.lineTo(u.valToPos(x[k + 1], "x", true), u.valToPos(b / 1e6, "y", true));
          ctx.stroke();
        }
      }
    });
  });
  const strips = (u) => clipped(u, (ctx) => {
    source.splits.forEach((split, i) => {
      const top = u.valToPos(i - 0.4, "y", true), height = u.valToPos(i + 0.4, "y", true) - top;
      for (let k = 0, end; k < x.length; k = end) {
        for (end = k + 1; end < x.length && split.status[end] === split.status[k]; ) end++;
        if (!STATUS[split.status[k]]) continue;
        const left = u.valToPos(x[k], "x", true);
        const right = end < x.length ? u.valToPos(x[end], "x", true) : u.bbox.left + u.bbox.width;
        ctx.fillStyle = css(STATUS[split.status[k]]);
        ctx.fillRect(left, top, Math.max(right - left, 2), height);
      }
    });
  });

  const ids = source.splits.map((split) => split.id);
  plot("times", 380, [
    ...ids.map((id, i) => line(id, COLORS[i % COLORS.length], moment, { width: 1.5, dash: i < COLORS.length ? undefined : [6, 3] })),
    line("limit", () => css("bound"), moment, { dash: [3, 4], paths: stepped }),
    line("exact watermark", () => css("text"), moment, { width: 3, paths: stepped }),
  ], [...source.splits.map((split) => seconds(split.watermark)), seconds(source.limit), seconds(source.watermark)], {
    time: true, values: (u, splits, a, b, incr) => splits.map((s) => tick(incr, s)),
  }, { drawAxes: [shade] });
  // The one series is not drawn: without it there is no scale.
  plot("status", 44 + 18 * ids.length, [{ paths: () => null, points: { show: false } }], [x.map(() => 0)], {
    legend: false, dir: -1, range: () => [-0.5, ids.length - 0.5], splits: () => ids.map((_, i) => i),
    values: () => ids.map((id) => (id.length > 12 ? "…" + id.slice(-11) : id)),
  }, { draw: [strips] });
  plot("drift", 200, [
    line("drift", COLORS[0], span, { paths: stepped, fill: COLORS[0] + "33" }),
    line("maxDrift", () => css("bound"), span, { dash: [3, 4], paths: stepped }),
  ], [seconds(source.drift), seconds(source.maxDrift)], { values: (u, splits) => splits.map(span), range: (u, low, high) => [0, (high || 1) * 1.1] });
  const whole = { range: (u, low, high) => [0, (high || 1) * 1.1], values: (u, splits) => splits.map((n) => (n % 1 ? "" : n.toLocaleString("en-US", { notation: "compact" }))) };
  const counted = (name, ...lines) =>
    plot(name, 180, lines.map(([label], i) => line(label, COLORS[i], count, { paths: stepped })), lines.map(([, column]) => column), whole);
  counted("rows", ["rows", source.rows], ["rows behind", source.behind]);
  counted("behind", ["rows behind", source.behind]);
  counted("state", ["rows in state", source.state]);
  counted("late", ["late", source.late]);
  tell(at);
  // A plot is drawn behind this task.
  setTimeout(() => plots.forEach((made) => made.setLegend({ idx: at })));

  new ResizeObserver(() => plots.forEach((made) => {
    const width = made.root.parentElement.clientWidth;
    if (width !== made.width) made.setSize({ width, height: made.height });
  })).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    theme.clear();
    plots.forEach((made) => made.redraw());
  });
}

data.sources.forEach((source, place) => draw(source, document.getElementById(`source-${place}`)));
document.documentElement.dataset.drawn = "true";
