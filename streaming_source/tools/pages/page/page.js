// The page of a query: a sentence, lanes, charts. Drawn from #data, and again from each event where the page is live.
let data = JSON.parse(document.getElementById("data").textContent);
const SHOWN = 20, RANGE = (n) => Array.from({ length: n }, (_, i) => i);
const LETTERS = { a: "active", p: "paused", i: "idle" };
const WAITS = {
  nothing: "nothing", records: "records", source: "its source", transaction: "an open transaction", report: "a reader's report",
  drift: "the slowest, at the limit", rows: "its turn: the read limit", minRows: "more rows", group: "its alignment group", horizon: "splits not assigned yet", scan: "the scan of its files",
};
const ORDERS = {
  slowest: ["Slowest first", null],
  ahead: ["Furthest ahead first", (s, i) => -(s.watermark[i] ?? -Infinity)],
  behind: ["Most rows behind first", (s, i) => -s.behind[i]],
  late: ["Most late rows first", (s, i) => -s.late[i]],
  name: ["By name", null],
};
const named = (ids, count) => ids.slice(0, 3).join(", ") + (count > 3 ? ` and ${whole(count - 3)} more` : "");

/** What a split was at each point: decoded when it is drawn first. */
function past(source, k) {
  const cache = (source.cache ??= new Map());
  if (cache.has(k)) return cache.get(k);
  const points = k < source.full ? RANGE(source.batches.length) : source.coarse;
  const letters = [...source.statuses[k].matchAll(/([a-zA-Z-])(\d*)/g)].flatMap(([, letter, times]) => Array(+times || 1).fill(letter));
  const found = { watermarks: source.batches.map(() => null), statuses: source.batches.map(() => "-") };
  let sum = 0;
  points.forEach((from, j) => {
    const step = source.watermarks[k][j], to = points[j + 1] ?? source.batches.length;
    sum += step ?? 0;
    found.watermarks.fill(step == null ? null : sum, from, to);
    found.statuses.fill(letters[j], from, to);
  });
  cache.set(k, found);
  return found;
}

class SourceView {
  constructor(place) {
    this.root = document.getElementById("source").content.cloneNode(true).firstElementChild;
    this.get = (part) => this.root.querySelector(`[data-part=${part}]`);
    Object.assign(this, { at: null, most: SHOWN, query: "", order: "slowest", only: null, open: new Set(), chosen: null, cursors: [] });
    this.root.id = `source-${place}`;
    for (const [key, [text]] of Object.entries(ORDERS)) this.get("order").append(html("option", { value: key }, text));
    const on = (part, event, act) => this.get(part).addEventListener(event, (e) => (act(e.target), this.drawLanes()));
    on("search", "input", (input) => ((this.query = input.value.trim().toLowerCase()), (this.most = SHOWN)));
    on("order", "change", (select) => (this.order = select.value));
    on("more", "click", () => (this.most += 5 * SHOWN));
    this.get("slider").addEventListener("input", (e) => this.pick(+e.target.value));
    this.get("now").addEventListener("click", () => this.pick(null));
    this.get("lanes").addEventListener("keydown", (e) => this.walk(e));
    this.get("batches").addEventListener("toggle", () => this.drawTable());
  }

  update(source, number) {
    this.source = source;
    this.last = source.batches.length - 1;
    const text = (part, value) => {
      if (this.get(part).textContent !== value) this.get(part).textContent = value;
    };
    text("name", source.name);
    text("reads", source.reads ?? "");
    if (this.get("why").textContent !== source.why) {
      // A short name of a split is not broken at its hyphens.
      const parts = source.why.split(/('[^']*')/);
      this.get("why").replaceChildren(...parts.map((part, k) => (k % 2 && part.length <= 26 ? html("span", {}, part) : part)));
    }
    this.root.setAttribute("aria-label", number > 1 ? `${source.name} ${source.reads ?? ""}` : source.name);
    this.get("advice").replaceChildren(...source.advice.map(([option, advice]) => html("li", {}, html("strong", {}, option), `: ${advice}`)));
    this.get("slider").max = this.last;
    this.draw();
  }

  get index() { return this.at == null ? this.last : Math.min(this.at, this.last); }

  pick(i) {
    this.at = i == null || i >= this.last ? null : i;
    this.drawLanes();
    this.point(null);
  }

  draw() {
    this.drawLanes();
    this.drawCharts();
    this.drawTable();
  }

  /** What split `k` was at a point. */
  state(k, i) {
    const { watermarks, statuses } = past(this.source, k), letter = statuses[i];
    return { watermark: watermarks[i], status: LETTERS[letter.toLowerCase()], holds: letter !== letter.toLowerCase() };
  }

  drawLanes() {
    const { source } = this, i = this.index, { splits } = source, watermark = source.watermark[i], limit = source.limit[i];
    const isNow = i === this.last, focused = document.activeElement?.closest?.("[data-split]")?.dataset.split;
    const all = RANGE(splits.id.length), states = new Map(all.map((k) => [k, this.state(k, i)]));
    const inWork = all.filter((k) => states.get(k).status);
    // Of a query that has ended no split is in work: what they came to is worth more than nothing.
    const known = inWork.length ? inWork : all;
    const matches = this.matching(known.length && !this.query ? known : all, states, i);
    const shown = matches.slice(0, this.most);
    const range = stretch(watermark, limit, shown.map((k) => states.get(k).watermark ?? (inWork.length ? null : splits.watermark[k])));
    this.drawCounts(inWork, states);
    const when = `Micro-batch ${whole(source.batches[i])}, planned ${moment(source.at[i])}`;
    this.get("slider").value = i;
    this.get("slider").setAttribute("aria-valuetext", when);
    this.get("when").textContent = when + (isNow ? ", the last one" : "");
    this.get("now").disabled = isNow;
    this.get("found").textContent = this.found(matches.length, shown.length, known.length, inWork.length);
    this.get("found").parentElement.hidden = !this.get("found").textContent;
    this.get("more").hidden = matches.length <= shown.length;
    this.get("more").textContent = `Show ${whole(Math.min(5 * SHOWN, matches.length - shown.length))} more`;
    this.get("table").hidden = !shown.length;
    if (shown.length) this.label = this.labels();
    const head = this.get("track"), strip = this.get("strip");
    if (!shown.length) return this.get("lanes").replaceChildren();
    const scale = laneScale(range ?? { low: 0, high: DAY }, Math.max(head.clientWidth, 120));
    const strips = strip.clientWidth, distances = shown.map((k) => Math.abs((states.get(k).watermark ?? watermark) - watermark));
    // All in one column with as many digits.
    const distance = Math.max(...distances) < 10 * SECOND ? (ms) => `${(ms / SECOND).toFixed(1)} s` : (ms) => span(Math.floor(ms / SECOND) * SECOND);
    if (range) drawHead(head, scale, watermark, limit);
    else head.replaceChildren();
    this.get("span").textContent = `${whole(source.batches[0])} to ${whole(source.batches[this.last])}`;
    this.get("lanes").replaceChildren(...shown.flatMap((k) => this.row(k, states.get(k), { scale, strips, isNow, distance })));
    if (focused != null) this.get("lanes").querySelector(`[data-split="${CSS.escape(focused)}"] button`)?.focus({ preventScroll: true });
  }

  /** What names a split in the table: all of its name where the column can be so wide. */
  labels() {
    const { id } = this.source.splits, table = this.get("table"), wide = table.clientWidth, rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    if (this.labelled?.id === id && this.labelled.wide === wide) return this.label;
    const pen = document.createElement("canvas").getContext("2d"), badge = 5.2 * rem;
    pen.font = `700 ${0.875 * rem}px ${getComputedStyle(table).fontFamily}`;
    const widest = (texts) => texts.reduce((most, text) => Math.max(most, pen.measureText(text).width), 0);
    const whole = widest(id), left = wide < 44 * rem ? 0.6 * wide : Math.min(0.36 * wide, wide - 50 * rem);
    const column = Math.ceil(Math.min(Math.max(whole + badge, 9 * rem), Math.max(left, 15.5 * rem)));
    table.style.setProperty("--names", `${column}px`);
    let most = Math.max(...id.map((name) => name.length)), found = new Map();
    for (let room = column - badge, need = whole; need > room && most > 8; need = widest([...found.values()].filter((label) => label.includes("…")))) {
      most = Math.max(Math.min(most - 1, Math.floor((most * room) / need)), 8);
      found = labelsOf(id, most);
    }
    this.labelled = { id, wide };
    return (name) => found.get(name) ?? name;
  }

  matching(all, states, i) {
    const { id } = this.source.splits, query = this.query;
    let found = all;
    if (this.only) found = found.filter((k) => states.get(k).status === this.only);
    if (query) {
      const rank = (k) => [id[k].toLowerCase() !== query, !id[k].toLowerCase().endsWith(query), !id[k].toLowerCase().startsWith(query)].map(Number).join("");
      found = found.filter((k) => id[k].toLowerCase().includes(query)).sort((a, b) => rank(a).localeCompare(rank(b)) || a - b);
    }
    if (this.order === "name") return [...found].sort((a, b) => id[a].localeCompare(id[b], "en", { numeric: true }));
    const key = ORDERS[this.order][1];
    if (key) return [...found].sort((a, b) => key(this.source.splits, a) - key(this.source.splits, b) || a - b);
    if (query || i === this.last) return found;
    const rank = (k) => {
      const { holds, status, watermark } = states.get(k);
      return [holds ? 0 : status === "idle" ? 2 : status ? 1 : 3, watermark ?? -Infinity];
    };
    return [...found].sort((a, b) => {
      const [x, y] = [rank(a), rank(b)];
      return x[0] - y[0] || (x[1] < y[1] ? -1 : x[1] > y[1] ? 1 : a - b);
    });
  }

  found(matches, shown, known, inWork) {
    if (!this.source.splits.id.length) return "No split is known.";
    const left = this.source.splits.total - this.source.splits.id.length;
    const more = left > 0 ? ` ${whole(left)} others are not on this page: streaming-source explain --json has all.` : "";
    if (this.query || this.only) return `${whole(matches)} of ${whole(this.source.splits.id.length)} splits found, ${whole(shown)} shown.${more}`;
    if (!inWork) return `No split is in work: ${known === 1 ? "the one that was has" : `all ${whole(known)} that were have`} been read to the end.${more}`;
    return shown < matches ? `${whole(shown)} of ${whole(matches)} splits shown.${more}` : more;
  }

  drawCounts(inWork, states) {
    const counts = { active: 0, paused: 0, idle: 0 };
    let held = 0;
    for (const k of inWork) (counts[states.get(k).status]++, (held += states.get(k).holds));
    if (this.index === this.last) Object.assign(counts, this.source.splits.counts);
    for (const status of Object.keys(counts)) {
      const button = this.get(`only-${status}`);
      button.replaceChildren(sign(status), html("span", {}, `${whole(counts[status])} ${status}`));
      button.setAttribute("aria-pressed", String(this.only === status));
      button.onclick = () => ((this.only = this.only === status ? null : status), (this.most = SHOWN), this.drawLanes());
    }
    const ids = this.source.held[this.index];
    this.get("held").textContent = ids[1] ? `held by ${named(ids[0], ids[1])}` : "";
  }

  row(k, state, { scale, strips, isNow, distance }) {
    const { source } = this, { splits } = source, id = splits.id[k], i = this.index, watermark = source.watermark[i];
    const status = state.status ?? "finished", isOpen = this.open.has(id);
    // Of one that is done, where it came to.
    const at = state.watermark ?? (state.status ? null : splits.watermark[k]);
    const drawn = { ...state, watermark: at, status: state.status };
    const ahead = at == null || watermark == null ? null : at - watermark;
    const prefix = ahead > 0 ? "+" : ahead < 0 ? "−" : "";
    const name = html("button", { type: "button", "aria-expanded": String(isOpen), title: id, "aria-label": `${id}: details` }, this.label(id));
    const number = (values) => (isNow && state.status ? whole(values[k]) : "");
    const cells = [
      html("th", { scope: "row", role: "rowheader" }, name, state.holds ? html("span", { class: "badge" }, "holds") : null),
      html("td", { role: "cell", class: "status" }, sign(status), html("span", {}, status)),
      html("td", { role: "cell", class: "track", "aria-label": at == null ? "no watermark yet" : `watermark ${moment(at)}` }, drawLane(scale, drawn, watermark, source.limit[i])),
      html("td", { role: "cell", class: "number ahead" }, ahead == null ? "" : prefix + distance(Math.abs(ahead))),
      html("td", { role: "cell", class: "number behind" }, number(splits.behind)),
      html("td", { role: "cell", class: "number late" }, number(splits.late)),
      html("td", { role: "cell", class: "strip", "aria-label": this.spent(k) }, strips ? drawStrip(past(source, k).statuses, strips) : null),
    ];
    const row = html("tr", { role: "row", "data-split": id, class: `lane ${status}${state.holds ? " holds" : ""}${this.chosen === id ? " chosen" : ""}` }, ...cells);
    name.addEventListener("click", () => {
      if (!this.open.delete(id)) this.open.add(id);
      this.chosen = this.open.has(id) ? id : [...this.open].at(-1) ?? null;
      this.drawLanes();
      this.drawCharts();
    });
    return isOpen ? [row, html("tr", { role: "row", class: "details" }, html("td", { role: "cell", colspan: 7 }, this.details(k, at)))] : [row];
  }

  spent(k) {
    const { splits } = this.source;
    return ["active", "paused", "idle"].map((status) => `${status} ${span(splits[status][k])}`).join(", ");
  }

  details(k, at) {
    const { splits } = this.source, isDone = splits.status[k] === "finished";
    const terms = {
      Split: splits.id[k], Watermark: moment(at), Position: whole(splits.position[k]), "Rows behind": whole(splits.behind[k]), "Late rows": whole(splits.late[k]),
      "Waits for": isDone ? null : WAITS[splits.waitsFor[k]] ?? splits.waitsFor[k], "Silent since": splits.silentSince[k] && moment(splits.silentSince[k]),
      [`${isDone ? "Last" : splits.status[k][0].toUpperCase() + splits.status[k].slice(1)} since`]: moment(splits.since[k]), "Time so far": this.spent(k),
    };
    return html("dl", {}, ...Object.entries(terms).filter(([, value]) => value).map(([term, value]) => html("div", {}, html("dt", {}, term), html("dd", {}, value))));
  }

  /** Arrow keys go from split to split. */
  walk(event) {
    const buttons = [...this.get("lanes").querySelectorAll("th button")], at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    buttons[Math.min(Math.max(to, 0), buttons.length - 1)].focus();
  }

  drawCharts() {
    const { source } = this;
    this.cursors = [];
    const chosen = this.chosen == null ? -1 : source.splits.id.indexOf(this.chosen);
    const line = chosen < 0 ? null : past(source, chosen).watermarks;
    const foremost = source.watermark.map((ms, i) => (ms == null || source.drift[i] == null ? null : ms + source.drift[i]));
    const times = [source.watermark, source.limit, foremost, line ?? []].flat().filter((ms) => ms != null);
    const show = (name, there) => ((this.get(name).hidden = !there), there);
    const common = { numbers: source.batches, at: source.at, onPoint: (i) => this.point(i), onPick: (i) => this.pick(i) };
    const chart = (name, options) => {
      const move = drawChart(this.get(name).querySelector(".plot"), { ...common, ...options });
      this.cursors.push([move, this.get(name).querySelector(".value"), options.value]);
    };
    if (show("times", times.length)) {
      const [low, high] = around(Math.min(...times), Math.max(...times));
      this.get("key-chosen").hidden = !line;
      this.get("key-chosen").lastElementChild.textContent = line ? `split ${this.label(this.chosen)}` : "";
      this.get("key-limit").hidden = source.limit.every((ms) => ms == null);
      chart("times", {
        height: 260, low, high, ticks: timeTicks(low, high, 5),
        lines: [
          { values: foremost, kind: "foremost" }, { values: source.limit, kind: "limit" },
          ...(line ? [{ values: line, kind: "chosen" }] : []), { values: source.watermark, kind: "watermark" },
        ],
        label: `Watermark by micro-batch: ${moment(source.watermark[0])} to ${this.watermarkAt(this.last)}.`,
        value: (i) => this.watermarkAt(i),
      });
    }
    const duration = (values, i) => span(values[i]);
    if (show("drift", source.drift.some((ms) => ms != null))) {
      const most = Math.max(...source.drift, ...source.maxDrift), high = (most || SECOND) * 1.08;
      this.get("key-max").hidden = source.maxDrift.every((ms) => ms == null);
      chart("drift", {
        height: 190, high, ticks: durationTicks(high, 5),
        lines: [{ values: source.drift, kind: "drift", area: true }, { values: source.maxDrift, kind: "limit" }],
        label: `Drift by micro-batch: last ${duration(source.drift, this.last)}, at most ${span(Math.max(...source.drift))}, maxDrift ${span(source.maxDrift[this.last])}.`,
        value: (i) => (source.ended[i] ? "at the end" : duration(source.drift, i)),
      });
    }
    const count = (name, title, values, kind, more = []) => {
      if (!show(name, values != null)) return;
      const high = Math.max(...values, ...more.flatMap((one) => one.values), 1) * 1.08;
      chart(name, {
        height: 190, high, ticks: countTicks(high, 5), lines: [{ values, kind, area: true }, ...more],
        label: `${title} by micro-batch: last ${whole(values[this.last])}, at most ${whole(Math.max(...values))}.`,
        value: (i) => whole(values[i]),
      });
    };
    count("behind", "Rows behind", source.behind, "behind");
    count("rows", "Rows read", source.rows, "rows");
    count("state", "Rows in state", source.state, "state");
    count("late", "Late rows", source.late, "late");
    this.get("step").textContent = source.step > 1 ? `Each point is ${source.step} micro-batches: the largest drift, backlog and state of them, and the last of all else.` : "";
    this.point(null);
  }

  watermarkAt(i) { return this.source.ended[i] ? "at the end" : moment(this.source.watermark[i]); }

  /** Show another micro-batch in the charts while the pointer is there: only cursors and values change. */
  point(i) {
    const at = i ?? this.index;
    for (const [move, output, value] of this.cursors) {
      move(at);
      output.textContent = value(at);
    }
    this.get("charts-at").textContent = `Micro-batch ${whole(this.source.batches[at])}, planned ${moment(this.source.at[at])}`;
  }

  /** All charts as one table, for who cannot see them: filled when it is opened. */
  drawTable() {
    if (!this.get("batches").open) return;
    const { source } = this;
    const columns = [
      ["Micro-batch", (i) => whole(source.batches[i])], ["Planned (UTC)", (i) => moment(source.at[i]).replace(" UTC", "")], ["Watermark (UTC)", (i) => this.watermarkAt(i).replace(" UTC", "")],
      ["Held by", (i) => named(...source.held[i])], ["Drift", (i) => span(source.drift[i])], ["Rows behind", (i) => whole(source.behind[i])],
      ...(source.rows ? [["Rows read", (i) => whole(source.rows[i])]] : []), ...(source.state ? [["Rows in state", (i) => whole(source.state[i])]] : []), ["Late rows", (i) => whole(source.late[i])],
    ];
    const head = html("tr", {}, ...columns.map(([title]) => html("th", { scope: "col" }, title)));
    const rows = RANGE(source.batches.length).reverse().map((i) => html("tr", {}, ...columns.map(([, text]) => html("td", {}, text(i)))));
    this.get("rows-table").replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows));
  }
}

const around = (low, high) => {
  const width = Math.max(high - low, SECOND);
  return [low - 0.05 * width, high + 0.05 * width];
};
const views = [];
const main = document.querySelector("main");

function draw() {
  document.title = data.title;
  document.querySelector("h1").textContent = data.title;
  document.getElementById("note").textContent = data.note ?? "";
  document.getElementById("advice").replaceChildren(...data.advice.map(([option, advice]) => html("li", {}, html("strong", {}, option), `: ${advice}`)));
  while (views.length > data.sources.length) views.pop().root.remove();
  data.sources.forEach((source, place) => {
    if (!views[place]) {
      views.push(new SourceView(place));
      main.append(views[place].root);
    }
    views[place].update(source, data.sources.length);
  });
  document.documentElement.dataset.drawn = String(data.version ?? "static");
  asOf(data.asOf);
}

function asOf(ms) {
  const { batches, at } = data.sources[0] ?? {};
  const range = batches?.length ? `${batches.length > 1 ? `Micro-batches ${whole(batches[0])} to ${whole(batches.at(-1))}, planned ${moment(at[0])} to` : `Micro-batch ${whole(batches[0])}, planned`} ${moment(at.at(-1))}${data.committed ? "" : "; the last is not committed"}. ` : "";
  document.getElementById("as-of").textContent = `${range}As of ${moment(ms)}.`;
}

let width = 0;
new ResizeObserver(() => {
  if (main.clientWidth !== width) {
    width = main.clientWidth;
    views.forEach((view) => view.draw());
  }
}).observe(main);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches?.("input[type=search], select") && views.length) {
    event.preventDefault();
    views[0].get("search").focus();
  }
});
draw();

if (document.documentElement.dataset.events) {
  const live = document.getElementById("live");
  const say = (text, state) => ((live.textContent = text), (live.dataset.state = state));
  const events = new EventSource(`${document.documentElement.dataset.events}?seen=${data.version}`);
  const over = new Set(["failed", "stopped", "unread"]);
  const follow = () => (data.sources.some(({ cause }) => over.has(cause)) ? say("The query does not run", "over") : say("Live", "live"));
  follow();
  events.addEventListener("open", follow);
  events.addEventListener("error", () => {
    const isRefused = events.readyState === EventSource.CLOSED; // a new start has another token
    say(`Not connected: ${isRefused ? "open the address that watch printed last" : "what is shown is of then"}`, "lost");
  });
  events.addEventListener("alive", (event) => asOf(+event.data));
  events.addEventListener("state", (event) => {
    data = JSON.parse(event.data);
    draw();
    follow();
  });
  addEventListener("pagehide", () => events.close());
}
