// Draws what an audit found: columns by micro-batch, times in milliseconds since the epoch.
const data = JSON.parse(document.getElementById("data").textContent);
const get = (part) => document.querySelector(`[data-part=${part}]`);
const last = data.batches.length - 1;
const select = get("split");
let cursors = [];

function point(i) {
  for (const [move, output, value] of cursors) {
    move(i ?? last);
    output.textContent = value(i ?? last);
  }
}

function draw() {
  cursors = [];
  if (last < 0) return;
  const chosen = data.splits[select.value], common = { numbers: data.batches, onPoint: point, onPick: () => {} };
  const chart = (name, options) => {
    const move = drawChart(get(name).querySelector(".plot"), { ...common, ...options });
    cursors.push([move, get(name).querySelector(".value"), options.value]);
  };
  // What was at or below the watermark is drawn as lost.
  const parts = (latest, isLost) => latest.map((ms, i) => (ms != null && (data.watermark[i] != null && ms <= data.watermark[i]) === isLost ? ms : null));
  const times = [...data.splits.flatMap(({ latest }) => latest), ...data.watermark].filter((ms) => ms != null);
  const low = Math.min(...times), high = Math.max(...times), margin = Math.max((high - low) / 20, SECOND);
  if (times.length) {
    chart("reach", {
      height: 360, low: low - margin, high: high + margin, ticks: timeTicks(low - margin, high + margin, 6),
      lines: [
        ...data.splits.flatMap(({ latest }) => [{ values: parts(latest, false), kind: "read", apart: true }, { values: parts(latest, true), kind: "lost", apart: true }]),
        ...(chosen ? [{ values: chosen.latest, kind: "picked", apart: true }] : []),
        { values: data.watermark, kind: "watermark" },
      ],
      label: `Latest rows and Spark's watermark by micro-batch: the watermark ends at ${moment(data.watermark[last])}.`,
      value: (i) => `micro-batch ${whole(data.batches[i])}, watermark ${moment(data.watermark[i])}`,
    });
  }
  for (const [name, values, kind] of [["read", data.read, "rows"], ["dropped", data.dropped, "late"]]) {
    const most = Math.max(...values, 1) * 1.08;
    chart(name, {
      height: 190, high: most, ticks: countTicks(most, 5), lines: [{ values, kind, area: true }],
      label: `Rows ${name} by micro-batch: ${whole(values.reduce((a, b) => a + b, 0))} in all, at most ${whole(Math.max(...values))}.`,
      value: (i) => whole(values[i]),
    });
  }
  point(null);
}

select.append(html("option", { value: "" }, "none"), ...data.splits.map(({ id }, i) => html("option", { value: i }, id)));
select.addEventListener("change", draw);
let width = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth !== width) {
    width = document.body.clientWidth;
    draw();
  }
}).observe(document.body);
draw();
document.documentElement.dataset.drawn = "true";
