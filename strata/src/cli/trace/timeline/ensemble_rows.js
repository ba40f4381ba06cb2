"use strict";
// The rows of the picture: router, and for each engine its steps and requests; and sentences about a request's way.

const DECIDED = { declared_intent: "intent", rule: "rule", classifier: "classifier", specialist: "named", model: "named", rejected: "substitute", unrouted: "substitute", fallback: "substitute", spill: "spill" };
const LEGEND = [["intent", "intent"], ["rule", "rule"], ["classifier", "classifier"], ["named", "named by the client"], ["substitute", "fallback"], ["spill", "spill"], ["refused", "refused"]];
const TALL = { router: 30, title: 24, steps: 16 };

const wasRefused = (route) => route.admitted === null;
const decidedBy = (route) => (wasRefused(route) && route.refused.length ? "refused" : DECIDED[route.by] ?? "named");

// Rows from above, each with its place `y` and its height `tall`. A request's row knows its route, and whether it is the
// shadow of that route's request.
function layOut(page) {
  const rows = [{ kind: "router" }];
  const owners = page.engines.map(() => new Map());
  page.routes.forEach((route, r) => {
    for (const [e, k] of route.requests) owners[e].set(k, { route: r, shadow: false });
    if (route.shadow) owners[route.shadow[0]].set(route.shadow[1], { route: r, shadow: true });
  });
  const turnedAway = (lane) => page.routes.forEach((route, r) => {
    if (wasRefused(route) && route.lane === lane) rows.push({ kind: "refused", route: r });
  });
  if (page.routes.some((route) => wasRefused(route) && route.lane === null)) {
    rows.push({ kind: "title", text: "no lane" });
    turnedAway(null);
  }
  page.engines.forEach((engine, e) => {
    const model = engine.recorded ? [engine.header.model, engine.header.policy].filter(Boolean).join(" · ") : "on another server, whose steps are not recorded";
    rows.push({ kind: "title", engine: e, text: `${engine.lane}, replica ${engine.replica}`, more: model });
    if (engine.recorded) rows.push({ kind: "steps", engine: e });
    engine.lanes.forEach((_, k) => rows.push({ kind: "request", engine: e, request: k, ...(owners[e].get(k) ?? { route: null, shadow: false }) }));
    // What a lane refused is drawn below its last replica.
    if (page.engines[e + 1]?.lane !== engine.lane) turnedAway(engine.lane);
  });
  const fixed = rows.reduce((sum, row) => sum + (TALL[row.kind] ?? 0), 0);
  const many = rows.filter((row) => !(row.kind in TALL)).length;
  // As tall as there is room for, but so tall at least that a row can be pointed at. A canvas has its limits.
  const tall = Math.min(Math.max(5, Math.min(14, 700 / Math.max(1, many))), Math.max(0.5, (15900 - fixed) / Math.max(1, many)));
  let y = 0;
  for (const row of rows) {
    row.y = y;
    row.tall = TALL[row.kind] ?? tall;
    y += row.tall;
  }
  return { rows, height: Math.max(60, Math.ceil(y)) };
}

function reason(route) {
  switch (route.by) {
    case "declared_intent": return `its intent ${route.what} decided for ${route.primary}`;
    case "rule": return `the rule ${route.what} decided for ${route.primary}`;
    case "classifier": return `the classifier decided for ${route.primary}`;
    case "rejected": return `no lane was probable enough, so the fallback ${route.primary} serves it`;
    case "unrouted": return `no rule decided and there is no classifier, so the fallback ${route.primary} serves it`;
    case "specialist": return `its client named the specialist ${route.primary}`;
    case "model": return `its client named the model ${route.primary}`;
    case "fallback": return `${route.primary} was chosen, and ${route.lane} serves in its place`;
    case "spill": return `${route.primary} was chosen, and it spilled to ${route.lane}`;
    default: return "nothing was decided";
  }
}

function routeInWords(route) {
  const sentences = [`Request ${route.number} came to the server ${duration(route.at)} into the run`];
  const scores = route.score === null ? "" : ` (score ${route.score.toFixed(2)}${route.second ? `; second choice ${route.second}` : ""})`;
  sentences[0] += `; ${reason(route)}${scores}, ${duration(route.decided - route.at)} after its arrival.`;
  for (const { lane, code, quote, at } of route.refused) {
    const expected = quote ? `: it could expect its first token in ${duration(quote.first_token_us)} and its end in ${duration(quote.done_us)} to ${duration(quote.done_late_us)}` : "";
    sentences.push(`${lane ?? "The router"} refused it ${duration(at - route.at)} after its arrival (${code}${expected}).`);
  }
  if (route.admitted !== null) sentences.push(`An engine of ${route.lane} had it ${duration(route.left - route.at)} after its arrival.`);
  else if (!route.refused.length) sentences.push("Its client disconnected before an engine had it.");
  if (route.shadow) sentences.push(`Its shadow (${route.shadow[3]}) began ${duration(route.shadow[2])} into the run.`);
  else if (route.shadow_lane) sentences.push(`It was to have a shadow in ${route.shadow_lane}, which did not begin.`);
  return sentences.join(" ");
}

// Time that the steps of a request waited for their turns.
function turnsOf(engine, lane) {
  const turn = engine.steps.parts[PARTS.indexOf("turn")];
  let sum = 0;
  for (let k = 0; k < lane.spans.length; k += 5) {
    const kind = lane.spans[k];
    if (kind === KINDS.queued || kind === KINDS.preempted) continue;
    for (let i = lane.spans[k + 3]; i < lane.spans[k + 4]; i++) sum += turn[i];
  }
  return sum;
}

function rowInWords(page, row) {
  const engine = page.engines[row.engine];
  const lane = engine.lanes[row.request];
  const what = `${row.shadow ? "Shadow in" : "In"} ${engine.lane}, replica ${engine.replica}: `;
  if (!engine.recorded || !lane.spans.length) return `${what}request ${lane.id}, of which no step is recorded.`;
  const waited = turnsOf(engine, lane);
  return `${what}${laneInWords(lane, null)}${waited > 0 ? ` Its steps waited ${duration(waited)} for their turns.` : ""}`;
}

// --- Drawing ---

// The scale with the steps of one engine.
const scaleOf = (scale, engine) => Object.assign(Object.create(Scale.prototype), scale, { steps: engine.steps, count: engine.steps.at.length });

function bar(g, scale, colour, from, to, y, tall) {
  const a = Math.max(scale.left, scale.x(from));
  const b = Math.min(scale.left + scale.width, scale.x(to));
  if (b < scale.left || a > scale.left + scale.width) return;
  g.fillStyle = colour;
  g.fillRect(a, y, Math.max(1, b - a), tall);
}

function drawRouter(g, page, row, scale, colours) {
  for (const route of page.routes) bar(g, scale, colours[decidedBy(route)], route.at, route.left, row.y + 3, row.tall - 6);
}

// Steps: those that wait for their turn are striped, the others filled.
function drawSteps(g, engine, row, scale, colours) {
  const own = scaleOf(scale, engine);
  if (!own.count) return;
  const [first, last] = own.visible();
  const { at, end, parts } = engine.steps;
  const [y, tall] = [row.y + 2, row.tall - 4];
  let drawn = -1;
  for (let i = first; i <= last; i++) {
    if (own.x(end[i]) - drawn < 0.5) continue;
    drawn = own.x(end[i]);
    const turn = at[i] + parts[0][i];
    const begun = Math.min(end[i], turn + parts[1][i]);
    bar(g, scale, colours.forward, at[i], turn, y, tall);
    if (parts[1][i] > 0) {
      bar(g, scale, colours.waits, turn, begun, y + tall * 0.35, Math.max(1, tall * 0.3));
    }
    bar(g, scale, colours.forward, begun, end[i], y, tall);
  }
}

function drawWay(g, route, row, scale, colours) {
  const middle = row.y + row.tall / 2;
  const thin = Math.max(1, row.tall * 0.3);
  bar(g, scale, colours[decidedBy(route)], route.at, route.left, middle - thin / 2, thin);
  const spilled = route.by === "spill";
  const at = spilled || wasRefused(route) ? route.left : null;
  if (at === null || at < scale.lo || at > scale.hi) return;
  const [x, size] = [scale.x(at), Math.min(5, Math.max(2.5, row.tall * 0.35))];
  g.strokeStyle = g.fillStyle = spilled ? colours.spill : colours.refused;
  g.beginPath();
  if (spilled) {
    g.moveTo(x - size, middle);
    g.lineTo(x, middle - size);
    g.lineTo(x + size, middle);
    g.lineTo(x, middle + size);
    g.fill();
    return;
  }
  g.lineWidth = 2;
  g.moveTo(x - size, middle - size);
  g.lineTo(x + size, middle + size);
  g.moveTo(x + size, middle - size);
  g.lineTo(x - size, middle + size);
  g.stroke();
  g.lineWidth = 1;
}

function drawShadow(g, lane, row, scale, colours) {
  if (!lane.spans.length) return;
  const a = Math.max(scale.left, scale.x(lane.at));
  const b = Math.min(scale.left + scale.width, scale.x(lane.end ? lane.end[0] : lane.spans[lane.spans.length - 3]));
  if (b <= a) return;
  g.strokeStyle = colours.ink;
  g.setLineDash([3, 2]);
  g.strokeRect(a - 1, row.y + 0.5, b - a + 2, Math.max(1, row.tall - 1));
  g.setLineDash([]);
}

function drawRow(g, page, row, scale, colours, width) {
  const middle = row.y + row.tall / 2;
  const label = (text, strong) => {
    g.fillStyle = strong ? colours.ink : colours.quiet;
    g.fillText(text, colours.gutter - 6, middle, colours.gutter - 8);
  };
  g.font = "11px system-ui, sans-serif";
  g.textAlign = "right";
  g.textBaseline = "middle";
  if (row.kind === "router") {
    label("router", true);
    drawRouter(g, page, row, scale, colours);
  } else if (row.kind === "title") {
    g.strokeStyle = colours.line;
    g.beginPath();
    g.moveTo(0, Math.round(row.y + 3) + 0.5);
    g.lineTo(width, Math.round(row.y + 3) + 0.5);
    g.stroke();
    g.textAlign = "left";
    g.font = "600 12px system-ui, sans-serif";
    g.fillStyle = colours.ink;
    g.fillText(row.text, 2, middle + 2);
    const taken = g.measureText(row.text).width;
    g.font = "11px system-ui, sans-serif";
    g.fillStyle = colours.quiet;
    if (row.more) g.fillText(row.more, taken + 12, middle + 2, Math.max(1, width - taken - 14));
  } else if (row.kind === "steps") {
    label("steps");
    drawSteps(g, page.engines[row.engine], row, scale, colours);
  } else if (row.kind === "refused") {
    if (row.tall >= 11) label(page.routes[row.route].refused.length ? `${page.routes[row.route].number}: refused` : `${page.routes[row.route].number}: gone`);
    drawWay(g, page.routes[row.route], row, scale, colours);
  } else {
    const lane = page.engines[row.engine].lanes[row.request];
    const route = row.route === null ? null : page.routes[row.route];
    if (row.tall >= 11) label(route ? `${route.number}${row.shadow ? ": shadow" : ""}` : `id ${lane.id}`);
    if (route && !row.shadow) drawWay(g, route, row, scale, colours);
    drawLane(g, lane, scale, colours, row.y, row.tall);
    if (row.shadow) drawShadow(g, lane, row, scale, colours);
  }
}
