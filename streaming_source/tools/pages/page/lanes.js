// A swim lane: how far a split is in event time, beside the watermark and the limit; and what it was before.
const LANE = 30, BAR = 12, HEAD = 62;

/**
 * The stretch of event time that lanes show. All that can be told apart at one scale is in it: a split that is further
 * from the watermark than twenty times all the others is drawn as an arrow at the edge.
 */
function stretch(watermark, limit, watermarks) {
  const known = watermarks.filter((ms) => ms != null), origin = watermark ?? Math.min(...known);
  if (!known.length && watermark == null) return null;
  const distances = known.map((ms) => [Math.abs(ms - origin), ms]).sort(([a], [b]) => a - b);
  let low = origin, high = Math.max(origin, limit ?? origin), reach = Math.max(high - low, SECOND);
  for (const [i, [distance, ms]] of distances.entries()) {
    if (distance > 20 * reach && i >= 0.6 * distances.length) break;
    [low, high, reach] = [Math.min(low, ms), Math.max(high, ms), Math.max(reach, distance)];
  }
  const width = Math.max(high - low, 2 * SECOND);
  return { low: low - 0.12 * width, high: high + 0.06 * width };
}

/** Positions in lanes of a width. */
function laneScale(range, width) {
  const x = (ms) => ((ms - range.low) / (range.high - range.low)) * width;
  return { x, width, ticks: timeTicks(range.low, range.high, Math.max(Math.floor(width / 92), 1)) };
}

/** The head of all lanes: what the lines are, and the ticks of event time. */
function drawHead(holder, scale, watermark, limit) {
  const { x, width, ticks } = scale;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEAD}`, height: HEAD, width, "aria-hidden": "true" });
  const flag = (ms, text, kind, top) => {
    const px = x(ms), atEnd = px > width / 2;
    picture.append(
      svg("line", { class: `rule ${kind}`, x1: px, x2: px, y1: top - 10, y2: HEAD }),
      svg("text", { class: `flag ${kind}`, x: px + (atEnd ? -6 : 6), y: top, "text-anchor": atEnd ? "end" : "start" }, text),
    );
  };
  if (limit != null) flag(limit, `limit ${clock(limit)}`, "limit", 12);
  if (watermark != null) flag(watermark, `watermark ${clock(watermark)}`, "watermark", 27);
  const crossed = [watermark, limit].filter((ms) => ms != null).map(x);
  let dated;
  for (const ms of ticks.at) {
    const date = ticks.date && iso(ms).slice(0, 10), px = x(ms);
    if (px < 27 || px > width - 27 || crossed.some((rule) => Math.abs(rule - px) < 32)) continue;
    picture.append(svg("text", { class: "tick", x: px, y: 42, "text-anchor": "middle" }, ticks.text(ms)));
    const fits = px > 38 && px < width - 38;
    if (date && date !== dated && fits) picture.append(svg("text", { class: "tick", x: px, y: 56, "text-anchor": "middle" }, date));
    if (fits) dated = date;
  }
  holder.replaceChildren(picture);
}

/** One lane: the bar ends where the split is. Of a state each has its own fill and its own end. */
function drawLane(scale, { watermark: at, status, holds }, watermark, limit) {
  const { x, width, ticks } = scale, middle = LANE / 2, top = middle - BAR / 2;
  const lane = svg("svg", { viewBox: `0 0 ${width} ${LANE}`, height: LANE, width, "aria-hidden": "true" });
  if (limit != null && watermark != null)
    lane.append(svg("rect", { class: "allowed", x: x(watermark), width: Math.max(x(limit) - x(watermark), 0), y: 0, height: LANE }));
  for (const ms of ticks.at) lane.append(svg("line", { class: "grid", x1: x(ms), x2: x(ms), y1: 0, y2: LANE }));
  const rule = (ms, kind) => ms != null && lane.append(svg("line", { class: `rule ${kind}`, x1: x(ms), x2: x(ms), y1: 0, y2: LANE }));
  if (at == null && status) lane.append(svg("text", { class: "tick", x: 8, y: middle + 4 }, "no watermark yet"));
  if (at != null) drawBar(lane, scale, at, status, holds);
  rule(limit, "limit");
  rule(watermark, "watermark");
  if (at != null) drawEnd(lane, scale, at, status, holds);
  return lane;
}

const kindOf = (status, holds) => `bar ${status ?? "finished"}${holds ? " holds" : ""}`;

function drawBar(lane, { x, width }, at, status, holds) {
  const top = (LANE - BAR) / 2, box = { x: -2, width: Math.min(x(at), width) + 2, y: top, height: BAR };
  if (box.width <= 2) return;
  lane.append(svg("rect", { class: kindOf(status, holds), ...box }));
  if (status === "paused") lane.append(svg("rect", { class: "hatch", ...box }));
}

/** Where the split is: a diamond if it holds the watermark, a circle if it is idle, an arrow if that is further away. */
function drawEnd(lane, { x, width }, at, status, holds) {
  const middle = LANE / 2, top = middle - BAR / 2, end = x(at), kind = kindOf(status, holds);
  if (end < 0) lane.append(svg("path", { class: `end ${kind}`, d: `M12 ${top - 2} L2 ${middle} L12 ${top + BAR + 2} Z` }));
  else if (end > width) lane.append(svg("path", { class: `end ${kind}`, d: `M${width - 12} ${top - 2} L${width - 1} ${middle} L${width - 12} ${top + BAR + 2} Z` }));
  else if (holds) lane.append(svg("path", { class: "end bar holds", d: `M${end} ${middle - 9} L${end + 7} ${middle} L${end} ${middle + 9} L${end - 7} ${middle} Z` }));
  else if (status === "idle") lane.append(svg("circle", { class: "end bar idle", cx: end, cy: middle, r: 5 }));
  else lane.append(svg("rect", { class: `end cap ${kind}`, x: end - 2, width: 4, y: middle - 9, height: 18 }));
}

/** What a split was after each micro-batch: a line while active, a hatched block while paused, an empty one while idle. */
function drawStrip(statuses, width) {
  const strip = svg("svg", { viewBox: `0 0 ${width} ${LANE}`, height: LANE, width, "aria-hidden": "true" });
  const x = columns(statuses.length, 0, width), middle = LANE / 2;
  for (let i = 0, end; i < statuses.length; i = end) {
    for (end = i + 1; end < statuses.length && statuses[end] === statuses[i]; ) end++;
    const letter = statuses[i].toLowerCase(), box = { x: x(i), width: Math.max(x(end) - x(i), 1) };
    if (letter === "a") strip.append(svg("rect", { class: "was active", ...box, y: middle - 2, height: 4 }));
    if (letter === "p") strip.append(svg("rect", { class: "was paused", ...box, y: middle - 6, height: 12 }), svg("rect", { class: "hatch", ...box, y: middle - 6, height: 12 }));
    if (letter === "i") strip.append(svg("rect", { class: "was idle", ...box, y: middle - 5.5, height: 11 }));
    if (statuses[i] !== letter) strip.append(svg("rect", { class: "was holds", ...box, y: middle + 7, height: 3 }));
  }
  return strip;
}
