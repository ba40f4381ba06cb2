"use strict";
// The page of an ensemble: what is looked at, and how it is moved.

const page = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const scale = new Scale(page);
const { rows, height } = layOut(page);
const OWN = ["router", "waits", ...LEGEND.map(([name]) => name)];

let colours = palette(OWN);
let chosen = null; // the route that is looked at
let row = null; // the row that is looked at, of a request or of steps
let hovered = null; // the row under the pointer, and the step in it
let shown = 0; // the engine whose steps are drawn

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// --- Once: what does not move ---

{
  const { engines, routes } = page;
  const lanes = new Set(engines.map((engine) => engine.lane));
  $("about").textContent = `${page.ensemble} · ${plural(lanes.size, "lane")} · ${plural(engines.length, "engine")}`;
  const figure = (name, value, more) => {
    const box = element("div");
    const said = element("dd", "", value);
    if (more) said.append(" ", element("small", "", more));
    box.append(element("dt", "", name), said);
    $("figures").append(box);
  };
  const count = (of) => routes.filter(of).length;
  const codes = new Map();
  for (const route of routes) {
    if (!wasRefused(route) || !route.refused.length) continue;
    const { code } = route.refused[0];
    codes.set(code, (codes.get(code) ?? 0) + 1);
  }
  figure("requests", String(routes.length));
  figure("time", duration(page.end));
  for (const [name, text] of LEGEND.slice(0, 6)) {
    const n = count((route) => decidedBy(route) === name);
    if (n) figure(text, String(n));
  }
  figure("refused", String(count((route) => wasRefused(route) && route.refused.length)), [...codes].map(([code, n]) => `${n} ${code}`).join(", "));
  figure("shadows", String(count((route) => route.shadow)));

  const notes = [];
  if (page.left_out) notes.push(`The run goes on for ${plural(page.left_out, "more step", "more steps")} that are not on this page (--max-steps).`);
  if (page.dropped) notes.push(`${plural(page.dropped, "line")} of the recording ${page.dropped === 1 ? "was" : "were"} dropped, because its file could not keep up: steps and requests are missing.`);
  if (!routes.length) notes.push("There is no request in this recording.");
  $("notice").textContent = notes.join(" ");
  $("notice").hidden = notes.length === 0;
  $("lanes-count").textContent = "from the router through the queue to the steps";

  const legend = (key, text, into = "legend") => {
    const item = element("li");
    item.append(key, ` ${text}`);
    $(into).append(item);
  };
  const key = (name) => element("i", `key ${name}`);
  for (const [name, text] of LEGEND.slice(0, 5)) {
    const own = key("router");
    own.style.background = `var(--${name})`;
    legend(own, `router: ${text}`);
  }
  for (const [name, text] of [["spill", "spilled"], ["cross", "refused"], ["shadow", "a shadow"], ["queued", "queued"], ["prefill", "prefill"], ["decode", "decode"], ["preempted", "preempted"], ["resumed", "computes again"], ["step", "a step"], ["turn", "a step waits for its turn"]]) legend(key(name), text);
  for (const part of PARTS) {
    const own = key("");
    own.style.background = `var(--${part})`;
    legend(own, part, "parts-legend");
  }

  engines.forEach((engine, e) => {
    const name = `${engine.lane}, replica ${engine.replica}`;
    const { summary } = engine;
    const ttft = (of) => (summary.ttft_ms ? duration(summary.ttft_ms[of] * 1e3) : "–");
    const line = element("tr");
    const cells = engine.recorded
      ? [name, summary.requests, summary.steps, summary.new_tokens, ttft("p50"), ttft("p99"), summary.preemptions, `${(100 * summary.shares[PARTS.indexOf("turn")]).toFixed(1)}%`]
      : [name, engine.lanes.length, "–", "–", "–", "–", "–", "–"];
    for (const cell of cells) line.append(element("td", "", String(cell)));
    $("engines").append(line);
    if (!engine.recorded) return;
    const option = element("option", "", name);
    option.value = e;
    $("engine").append(option);
  });
  shown = Math.max(0, engines.findIndex((engine) => engine.recorded));
  $("engine").value = shown;
  $("lanes").style.height = `${height}px`;
  $("spilled").disabled = !routes.some((route) => route.by === "spill");
  $("refused").disabled = !routes.some(wasRefused);
}

// --- Drawing ---

const picture = { box: $("lanes"), canvas: $("lanes").querySelector("canvas") };
const plots = [...document.querySelectorAll("[data-chart]")].map((box) => ({ box, canvas: box.querySelector("canvas"), draw: charts[box.dataset.chart] }));

// Makes a canvas as fine as the screen, and empties it.
function context(canvas) {
  const { clientWidth: width, clientHeight: tall } = canvas;
  const fine = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, tall));
  canvas.width = Math.max(1, Math.round(width * fine));
  canvas.height = Math.max(1, Math.round(tall * fine));
  const g = canvas.getContext("2d");
  g.scale(fine, fine);
  return { g, width, height: tall };
}

const sameRoute = (own) => chosen !== null && own.route === chosen;

// From the router down to the rows of the request, and from its last token to its shadow.
function drawWays(g) {
  const route = page.routes[chosen];
  const line = (at, from, to, dash) => {
    const x = scale.x(at);
    if (x < scale.left || x > scale.left + scale.width) return;
    g.setLineDash(dash);
    g.beginPath();
    g.moveTo(x, from);
    g.lineTo(x, to);
    g.stroke();
    g.setLineDash([]);
  };
  g.strokeStyle = colours.ink;
  const own = rows.filter(sameRoute);
  const primary = own.find((each) => !each.shadow);
  for (const each of own) {
    const middle = each.y + each.tall / 2;
    if (!each.shadow) line(route.at, TALL.router - 3, middle, []);
    else if (primary) line(route.shadow[2], primary.y + primary.tall / 2, middle, [4, 3]);
    g.strokeRect(scale.left + 0.5, each.y + 0.5, scale.width - 1, Math.max(1, each.tall - 1));
  }
}

function draw() {
  // All charts are as wide as the one that may have a scroll bar: what is above each other happened together.
  const scroller = picture.box.parentElement;
  $("charts").style.setProperty("--bar", `${scroller.offsetWidth - scroller.clientWidth}px`);
  const { g, width } = context(picture.canvas);
  scale.left = colours.gutter;
  scale.width = Math.max(1, width - colours.gutter);
  for (const each of rows) drawRow(g, page, each, scale, colours, width);
  if (chosen !== null) drawWays(g);
  const engine = page.engines[shown];
  for (const plot of plots) {
    const to = context(plot.canvas);
    if (engine && engine.steps.at.length) plot.draw(to.g, engine, scaleOf(scale, engine), colours, to.width, to.height);
  }
}

let planned = false;
function redraw() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    draw();
    say();
  });
}

// The words: about what is pointed at, or else about what is selected.
function say() {
  const looked = hovered?.row ?? row;
  const step = hovered?.step ?? null;
  let [first, second] = ["", ""];
  if (looked?.kind === "steps" && step !== null) {
    const engine = page.engines[looked.engine];
    first = stepInWords(engine, step);
    second = `A step of ${engine.lane}, replica ${engine.replica}.`;
  } else if (looked && (looked.kind === "request" || looked.kind === "refused")) {
    first = looked.route === null ? "" : routeInWords(page.routes[looked.route]);
    if (looked.kind === "request") second = rowInWords(page, looked);
  }
  if ($("sentence").textContent !== first) $("sentence").textContent = first;
  if ($("request").textContent !== second) $("request").textContent = second;
  $("where").textContent = `${chosen === null ? "" : `request ${chosen + 1} of ${page.routes.length} · `}${duration(scale.hi - scale.lo)} shown`;
  $("in").disabled = scale.hi - scale.lo <= scale.least() * 1.001;
  $("out").disabled = $("all").disabled = scale.hi - scale.lo >= scale.max() * 0.999;
}

// --- Moving ---

function showEngine(e) {
  if (e === undefined || !page.engines[e]?.recorded) return;
  shown = e;
  $("engine").value = e;
}

// Selects a row, and its route.
function select(own) {
  row = own;
  chosen = own?.route ?? null;
  showEngine(own?.engine);
  redraw();
}

function choose(r) {
  if (!page.routes.length) return;
  const number = Math.max(0, Math.min(page.routes.length - 1, r));
  select(rows.find((each) => each.route === number && !each.shadow) ?? null);
  chosen = number;
  const route = page.routes[number];
  if (route.at < scale.lo || route.at > scale.hi) {
    const half = (scale.hi - scale.lo) / 2;
    scale.show(route.at - half, route.at + half);
  }
  const scroller = picture.box.parentElement;
  if (row && (row.y < scroller.scrollTop || row.y + row.tall > scroller.scrollTop + scroller.clientHeight)) {
    scroller.scrollTop = row.y - scroller.clientHeight / 2;
  }
  hovered = null;
  say();
}

function nextOf(is) {
  const after = page.routes.findIndex((route, r) => r > (chosen ?? -1) && is(route));
  const found = after >= 0 ? after : page.routes.findIndex(is);
  if (found >= 0) choose(found);
}

function zoom(factor, about) {
  const at = chosen === null ? (scale.lo + scale.hi) / 2 : page.routes[chosen].at;
  scale.zoom(factor, about ?? Math.max(scale.lo, Math.min(scale.hi, at)));
  redraw();
}

function showAll() {
  scale.show(0, scale.max());
  redraw();
}

const nextSpill = () => nextOf((route) => route.by === "spill");
const nextRefusal = () => nextOf(wasRefused);

$("previous").onclick = () => choose((chosen ?? 1) - 1);
$("next").onclick = () => choose((chosen ?? -1) + 1);
$("in").onclick = () => zoom(0.5);
$("out").onclick = () => zoom(2);
$("all").onclick = showAll;
$("spilled").onclick = nextSpill;
$("refused").onclick = nextRefusal;
$("engine").onchange = () => {
  showEngine(Number($("engine").value));
  redraw();
};

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.tagName === "SELECT") return;
  const far = e.shiftKey ? 10 : 1;
  const keys = {
    ArrowRight: () => choose(chosen === null ? 0 : chosen + far),
    ArrowLeft: () => choose((chosen ?? far) - far),
    Home: () => choose(0),
    End: () => choose(page.routes.length - 1),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: showAll,
    s: nextSpill,
    r: nextRefusal,
    Escape: () => select(null),
  };
  const act = keys[e.key];
  if (!act) return;
  e.preventDefault();
  act();
});

// --- Pointing ---

function under(e) {
  const box = picture.box.getBoundingClientRect();
  const y = e.clientY - box.top;
  const own = rows.find((each) => each.y <= y && y < each.y + each.tall) ?? null;
  const value = scale.value(Math.max(scale.left, e.clientX - box.left));
  if (own?.kind === "steps") {
    const steps = scaleOf(scale, page.engines[own.engine]);
    return { row: own, step: steps.count ? steps.stepAt(value) : null };
  }
  if (own?.kind !== "router") return { row: own, step: null };
  // In the router's row, the request that arrived last before the pointer.
  const near = page.routes.findLastIndex((route) => route.at <= value);
  return { row: rows.find((each) => each.route === Math.max(0, near) && !each.shadow) ?? null, step: null };
}

for (const box of [picture.box, ...plots.map((plot) => plot.box)]) {
  const own = box === picture.box;
  let grip = null; // where the pointer went down, and whether it moved since
  box.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    grip = { x: e.clientX, moved: false };
    box.setPointerCapture(e.pointerId);
  });
  box.addEventListener("pointermove", (e) => {
    if (!grip) {
      if (own) hovered = under(e);
      return say();
    }
    const by = e.clientX - grip.x;
    if (!grip.moved && Math.abs(by) < 4) return;
    grip.moved = true;
    grip.x = e.clientX;
    box.classList.add("panning");
    scale.pan((-by / scale.width) * (scale.hi - scale.lo));
    redraw();
  });
  const end = (e) => {
    if (own && grip && !grip.moved && e.type === "pointerup") select(under(e).row);
    grip = null;
    box.classList.remove("panning");
  };
  box.addEventListener("pointerup", end);
  box.addEventListener("pointercancel", end);
  box.addEventListener("pointerleave", () => {
    hovered = null;
    say();
  });
  box.addEventListener("dblclick", (e) => zoom(0.5, scale.value(e.clientX - box.getBoundingClientRect().left)));
  box.addEventListener("wheel", (e) => {
    const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) ? e.deltaX : e.shiftKey ? e.deltaY : 0;
    if (e.ctrlKey || e.metaKey) {
      zoom(2 ** (e.deltaY / 200), scale.value(e.clientX - box.getBoundingClientRect().left));
    } else if (sideways) {
      scale.pan((sideways / scale.width) * (scale.hi - scale.lo));
      redraw();
    } else return; // up and down is the page's own
    e.preventDefault();
  }, { passive: false });
}

function repaint() {
  colours = palette(OWN);
  redraw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(repaint).observe($("charts"));
draw();
if (page.routes.length) choose(0);
