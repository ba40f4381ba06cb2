"use strict";
// The page: what is looked at, and how it is moved.

const page = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const scale = new Scale(page);
const steps = scale.count;

let at = 0; // the step that is looked at
let hovered = null; // the step under the pointer, which is shown instead while it is there
let chosen = null; // the lane that is looked at
let hoveredLane = null;
let colours = palette(["draft"]);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// --- Once: what does not move ---

{
  const { header, summary } = page;
  const { config } = header;
  $("about").textContent = [
    header.model,
    header.policy,
    `${config.max_num_batched_tokens} tokens a step`,
    plural(config.max_num_seqs, "seat"),
    `${page.kv_total} blocks of ${config.block_size}`,
  ].filter(Boolean).join(" · ");

  const figure = (name, value, more) => {
    const box = element("div");
    const shown = element("dd", "", value);
    if (more) shown.append(" ", element("small", "", more));
    box.append(element("dt", "", name), shown);
    $("figures").append(box);
  };
  const ends = Object.entries(summary.ends).map(([why, n]) => `${n} ${why}`);
  if (summary.unfinished) ends.push(`${summary.unfinished} unfinished`);
  figure("steps", String(summary.steps), `${summary.mixed} mixed`);
  figure("requests", String(summary.requests), ends.join(", "));
  figure("time", duration(summary.seconds * 1e6));
  figure("tokens", String(summary.new_tokens), `${summary.tokens_per_second.toFixed(1)} a second`);
  for (const [name, p] of [["TTFT", summary.ttft_ms], ["ITL", summary.itl_ms]]) {
    if (p) figure(`${name}, median`, duration(p.p50 * 1e3), `p99 ${duration(p.p99 * 1e3)}`);
  }
  if (summary.draft_tokens) {
    const rate = (100 * summary.accepted_tokens) / summary.draft_tokens;
    figure("drafts accepted", `${rate.toFixed(0)}%`, `${summary.accepted_tokens} of ${summary.draft_tokens}`);
  }
  figure("preemptions", String(summary.preemptions));
  figure("KV at most", `${(100 * summary.kv_peak).toFixed(0)}%`);
  figure("forward", `${(100 * summary.shares[PARTS.indexOf("forward")]).toFixed(1)}%`, "of the steps' time");

  const notes = [];
  if (page.left_out) notes.push(`The run goes on for ${plural(page.left_out, "more step", "more steps")} that are not on this page (--max-steps).`);
  if (page.failed.length) notes.push(`${plural(page.failed.length, "step")} failed and do not count.`);
  if (!steps) notes.push("There is no step in this recording.");
  $("notice").textContent = notes.join(" ");
  $("notice").hidden = notes.length === 0;

  $("lanes-count").textContent = `${page.lanes.length}, in the order of arrival`;
  $("kv-count").textContent = `of ${page.kv_total}`;
  for (const part of PARTS) {
    const key = element("i", "key");
    key.style.background = `var(--${part})`;
    const item = element("li");
    item.append(key, part);
    $("parts-legend").append(item);
  }
  $("seek").max = Math.max(0, steps - 1);
  $("preemption").disabled = page.preempted.length === 0;

  $("drafts-legend").hidden = !page.drafts;

  if (page.holds) {
    $("holds-section").hidden = false;
    $("holds").style.height = `${Math.min(16000, Math.max(24, Math.max(6, Math.min(20, 240 / page.jobs.length)) * page.jobs.length))}px`;
  }
  if (page.transfers) for (const key of document.querySelectorAll(".legend .kv")) key.hidden = false;

  // A lane is as tall as there is room for, and so tall at least that it can be pointed at. A canvas has its limits.
  const tall = Math.max(4, Math.min(20, 420 / Math.max(1, page.lanes.length)));
  $("lanes").style.height = `${Math.min(16000, Math.max(24, tall * page.lanes.length))}px`;
}

// --- Drawing ---

const plots = [...document.querySelectorAll(".plot")].map((box) => ({
  box,
  canvas: box.querySelector("canvas"),
  cursor: box.querySelector(".cursor"),
  draw: charts[box.dataset.chart],
}));

// Makes a canvas as fine as the screen, and empties it.
function context(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const fine = Math.min(devicePixelRatio || 1, 16000 / Math.max(1, height));
  canvas.width = Math.max(1, Math.round(width * fine));
  canvas.height = Math.max(1, Math.round(height * fine));
  const g = canvas.getContext("2d");
  g.scale(fine, fine);
  return { g, width, height };
}

function drawCharts() {
  // All charts are as wide as the one that may have a scroll bar: what is above each other happened together.
  const scroller = $("lanes").parentElement;
  $("charts").style.setProperty("--bar", `${scroller.offsetWidth - scroller.clientWidth}px`);
  for (const plot of plots) {
    const { g, width, height } = context(plot.canvas);
    scale.left = colours.gutter;
    scale.width = Math.max(1, width - colours.gutter);
    if (plot.draw === charts.holds && !page.holds) continue;
    if (steps || plot.draw === charts.lanes) plot.draw(g, page, scale, colours, width, height);
  }
}

// All of the run, behind the slider: tokens of its steps.
function drawOverview() {
  const { g, width, height } = context($("overview"));
  if (!steps) return;
  const whole = Object.assign(Object.create(Scale.prototype), scale, { left: 0, width, lo: 0, hi: scale.max() });
  const { decode, prefill, resumed } = page.steps;
  const tokens = decode.map((n, i) => n + prefill[i] + resumed[i]);
  const top = Math.max(1, most(tokens));
  g.fillStyle = colours.quiet;
  g.globalAlpha = 0.5;
  stretches(whole, tallest(whole, (i) => tokens[i]), (step, x, w) => {
    const h = (tokens[step] / top) * (height - 6);
    g.fillRect(x, height - h, w, h);
  });
}

let planned = false;
function redraw() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    drawCharts();
    drawPlace();
  });
}

function repaint() {
  colours = palette(["draft"]);
  drawOverview();
  redraw();
}

// The cursor, and the words. Pointing at steps moves these only.
function drawPlace() {
  if (!steps) return;
  const step = hovered ?? at;
  const x = scale.x((scale.from(step) + scale.to(step)) / 2);
  const inside = x >= scale.left && x <= scale.left + scale.width;
  for (const { cursor } of plots) {
    cursor.style.transform = `translateX(${x}px)`;
    cursor.hidden = !inside;
  }
  const middle = (scale.from(step) + scale.to(step)) / 2;
  $("head").style.left = `${(100 * middle) / scale.max()}%`;
  $("window").style.left = `${(100 * scale.lo) / scale.max()}%`;
  $("window").style.width = `${(100 * (scale.hi - scale.lo)) / scale.max()}%`;
  $("seek").value = step;
  const words = stepInWords(page, step);
  $("seek").setAttribute("aria-valuetext", `step ${page.steps.number[step]}`);
  if ($("sentence").textContent !== words) $("sentence").textContent = words;
  const [first, last] = scale.visible();
  $("where").textContent = `step ${step + 1} of ${steps} · ${plural(last - first + 1, "step")} in ${duration(page.steps.end[last] - page.steps.at[first])} shown`;
  $("in").disabled = scale.hi - scale.lo <= scale.least() * 1.001;
  $("out").disabled = $("all").disabled = scale.hi - scale.lo >= scale.max() * 0.999;
  drawRow(middle);
}

function drawRow(value) {
  const lane = hoveredLane ?? chosen;
  $("row").hidden = lane === null;
  if (lane === null) {
    $("request").textContent = "";
    return;
  }
  const tall = $("lanes").clientHeight / page.lanes.length;
  $("row").style.top = `${lane * tall - 1}px`;
  $("row").style.height = `${tall + 2}px`;
  const words = laneInWords(page.lanes[lane], phaseAt(page.lanes[lane], scale, value), transfersOf(page, lane));
  if ($("request").textContent !== words) $("request").textContent = words;
}

// --- Moving ---

function go(step) {
  if (!steps) return;
  at = Math.max(0, Math.min(steps - 1, step));
  hovered = null;
  const middle = (scale.from(at) + scale.to(at)) / 2;
  if (middle < scale.lo || middle > scale.hi) {
    const half = (scale.hi - scale.lo) / 2;
    scale.show(middle - half, middle + half);
    redraw();
  }
  drawPlace();
}

function zoom(factor, about) {
  scale.zoom(factor, about ?? Math.max(scale.lo, Math.min(scale.hi, (scale.from(at) + scale.to(at)) / 2)));
  redraw();
}

function showAll() {
  scale.show(0, scale.max());
  redraw();
}

function useAxis(mode) {
  scale.use(mode);
  for (const choice of document.querySelectorAll("[name=axis]")) choice.checked = choice.value === mode;
  drawOverview();
  redraw();
}

function nextPreemption() {
  const next = page.preempted.find(([step]) => step > at) ?? page.preempted[0];
  if (!next) return;
  choose(next[1]);
  go(next[0]);
}

function choose(lane) {
  chosen = lane === null ? null : Math.max(0, Math.min(page.lanes.length - 1, lane));
  hoveredLane = null;
  if (chosen === null) return drawPlace();
  const tall = $("lanes").clientHeight / page.lanes.length;
  const scroller = $("lanes").parentElement;
  const top = chosen * tall;
  if (top < scroller.scrollTop || top + tall > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = top - scroller.clientHeight / 2;
  }
  drawPlace();
}

const screenful = () => { const [first, last] = scale.visible(); return Math.max(1, last - first); };

$("in").onclick = () => zoom(0.5);
$("out").onclick = () => zoom(2);
$("all").onclick = showAll;
$("preemption").onclick = nextPreemption;
$("seek").oninput = () => go(Number($("seek").value));
for (const choice of document.querySelectorAll("[name=axis]")) choice.onchange = () => useAxis(choice.value);

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey) return;
  // Radio buttons have their own arrows.
  if (e.target.name === "axis" && e.key.startsWith("Arrow")) return;
  const far = e.shiftKey ? 10 : 1;
  const lane = (by) => page.lanes.length && choose(chosen === null ? 0 : chosen + by);
  const keys = {
    ArrowRight: () => go(at + far),
    ArrowLeft: () => go(at - far),
    PageDown: () => go(at + screenful()),
    PageUp: () => go(at - screenful()),
    Home: () => go(0),
    End: () => go(steps - 1),
    ArrowDown: () => lane(far),
    ArrowUp: () => lane(-far),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: showAll,
    p: nextPreemption,
    t: () => useAxis(scale.mode === "time" ? "step" : "time"),
    Escape: () => choose(null),
  };
  const act = keys[e.key];
  if (!act) return;
  e.preventDefault();
  act();
});

// --- Pointing ---

function pointAt(plot, e) {
  if (!steps) return;
  const box = plot.box.getBoundingClientRect();
  hovered = scale.stepAt(scale.value(Math.max(scale.left, e.clientX - box.left)));
  const lane = Math.floor(((e.clientY - box.top) / box.height) * page.lanes.length);
  hoveredLane = plot.box.id === "lanes" && page.lanes[lane] ? lane : null;
  drawPlace();
}

for (const plot of plots) {
  const { box } = plot;
  let grip = null; // where the pointer went down, and whether it moved since
  box.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    grip = { x: e.clientX, moved: false };
    box.setPointerCapture(e.pointerId);
  });
  box.addEventListener("pointermove", (e) => {
    if (!grip) return pointAt(plot, e);
    const by = e.clientX - grip.x;
    if (!grip.moved && Math.abs(by) < 4) return;
    grip.moved = true;
    grip.x = e.clientX;
    box.classList.add("panning");
    scale.pan((-by / scale.width) * (scale.hi - scale.lo));
    redraw();
  });
  const end = (e) => {
    if (grip && !grip.moved && e.type === "pointerup") {
      pointAt(plot, e);
      const lane = hoveredLane;
      if (hovered !== null) go(hovered);
      if (lane !== null) choose(lane);
    }
    grip = null;
    box.classList.remove("panning");
  };
  box.addEventListener("pointerup", end);
  box.addEventListener("pointercancel", end);
  box.addEventListener("pointerleave", () => {
    hovered = hoveredLane = null;
    drawPlace();
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

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(repaint).observe($("charts"));
drawOverview();
drawCharts();
go(Number(/^#step=(\d+)$/.exec(location.hash)?.[1] ?? 0));
