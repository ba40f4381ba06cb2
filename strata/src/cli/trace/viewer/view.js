"use strict";
// The page: draws the state of a Replay, and moves it.

const page = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const replay = new Replay(page);
const frames = page.frames;
const COLOURS = 8;
const FEW = 1024; // Pools up to this size are shown whole, larger ones as far as they are used.
const MOST_CELLS = 8192;

let at = 0;
let pinned = null; // the block that was clicked
let pointed = null; // the block under the pointer or the focus
let timer = null;

// --- Once: the run from beginning to end, for the chart, and to see that all is right ---

const usable = page.num_blocks - 1;
const usage = [];
{
  const checks = new Map(page.checks);
  let wrong = null;
  for (let f = 0; f < frames.length; f++) {
    replay.go(f);
    let used = 0;
    for (const b of replay.state.blocks.values()) if (b.place === null) used += 1;
    usage.push(used);
    if (wrong === null && checks.has(f) && checks.get(f) !== digest(replay.state)) wrong = f;
  }
  const notes = [];
  if (wrong !== null) {
    notes.push(`At frame ${wrong + 1} the replay differs from what was recorded: do not trust this page.`);
    console.error("replay differs from the recording at frame", wrong);
  }
  if (page.left_out) notes.push(`The run goes on for ${page.left_out} more frames that are not on this page (--max-frames).`);
  if (!page.knows_free_list) notes.push("This trace was made without record_free_queue: what is free is known, its order and what can be found are not.");
  $("notice").textContent = notes.join(" ");
  $("notice").hidden = notes.length === 0;
}

$("about").textContent = [
  `${page.num_blocks} blocks`,
  page.block_size && `${page.block_size} token${page.block_size === 1 ? "" : "s"} each`,
  page.namespace,
  page.source === "recording" ? "recorded op by op" : "from a scheduler's trace",
].filter(Boolean).join(" · ");

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Sequences that are there together get different colours while there are any left.
const colours = new Map();
{
  const there = Array(COLOURS).fill(0);
  let turn = 0;
  for (const frame of frames) {
    for (const [what, seq] of frame.deltas) {
      if (what === "end") there[colours.get(seq)] -= 1;
      if (what !== "begin") continue;
      const order = there.map((_, i) => (turn + i) % COLOURS);
      const best = order.reduce((a, b) => (there[b] < there[a] ? b : a));
      colours.set(seq, best);
      there[best] += 1;
      turn = (best + 1) % COLOURS;
    }
  }
}
const colour = (seq) => `seq-${colours.get(seq) ?? 0}`;
const nameOf = (seq) => page.sequences[seq];

function users(id) {
  const found = [];
  for (const [seq, table] of replay.state.tables) if (table.blocks.includes(id)) found.push(seq);
  return found;
}

// --- Blocks ---

// Which sequences use which block: asked for every cell, so made once a frame.
let owners = new Map();
let changed = new Set();

function lookAtFrame() {
  owners = new Map();
  for (const [seq, table] of replay.state.tables) {
    for (const id of table.blocks) {
      if (!owners.has(id)) owners.set(id, []);
      owners.get(id).push(seq);
    }
  }
  changed = new Set(frames[at].deltas.map(touched).filter((id) => id !== null));
}

const never = { place: 0, users: 0, hash: null, pending: false };
const blockState = (id) => replay.state.blocks.get(id) ?? never;

function look(id) {
  if (id === 0) return { className: "cell null", label: "block 0, the null block", users: "", stripes: "" };
  const b = blockState(id);
  const of = owners.get(id) ?? [];
  const classes = ["cell"];
  const says = [];
  let stripes = "";
  if (b.place === null) {
    classes.push("used");
    if (of.length === 1) classes.push(colour(of[0]));
    if (of.length > 1) {
      classes.push("shared");
      const share = 100 / of.length;
      stripes = of.map((seq, i) => `var(--tint-${colours.get(seq)}) ${i * share}% ${(i + 1) * share}%`).join(",");
    }
    says.push(of.length ? `in use by ${of.map(nameOf).join(", ")}` : `in use by ${b.users}`);
  } else {
    classes.push("free");
    says.push("free");
  }
  if (b.hash !== null) {
    classes.push(b.pending ? "pending" : b.place === null ? "hashed" : "cached");
    says.push(b.pending ? "hash pending" : "cached by its hash");
  }
  if (changed.has(id)) {
    classes.push("touched");
    says.push("changed in this frame");
  }
  return {
    className: classes.join(" "),
    label: `block ${id}: ${says.join("; ")}`,
    users: b.users > 1 ? `×${b.users}` : "",
    stripes,
  };
}

// Dresses an element as a block. Only what differs is touched: a frame changes few of many.
function dress(cell, id, extra) {
  const { className, label, users, stripes } = look(id);
  const full = extra ? `${className} ${extra}` : className;
  const key = `${full}|${label}|${users}|${stripes}`;
  if (cell.dressed === key) return;
  cell.dressed = key;
  cell.className = full;
  cell.dataset.users = users;
  cell.style.background = stripes ? `linear-gradient(110deg, ${stripes})` : "";
  if (cell.tagName === "BUTTON") cell.setAttribute("aria-label", label);
  cell.title = label;
}

function chip(id, extra) {
  const made = element("span", "", String(id));
  made.dataset.block = id;
  dress(made, id, extra);
  return made;
}

// --- Pool ---

const whole = page.num_blocks <= FEW;
const shownIds = whole ? Array.from({ length: page.num_blocks }, (_, id) => id) : [0, ...page.blocks];
const cells = new Map();
{
  const grid = $("grid");
  for (const id of shownIds.slice(0, MOST_CELLS)) {
    const cell = element("button", "", String(id));
    cell.type = "button";
    cell.dataset.block = id;
    cell.tabIndex = cells.size === 0 ? 0 : -1;
    cells.set(id, cell);
    grid.append(cell);
  }
  const more = page.num_blocks - cells.size;
  if (more > 0) grid.append(element("span", "more", `+ ${more} ${shownIds.length > MOST_CELLS ? "more" : "never used"}`));
  grid.classList.add(cells.size > 400 ? "small" : cells.size > 120 ? "medium" : "large");
}

function drawPool() {
  for (const [id, cell] of cells) dress(cell, id, picked(id));
  const used = usage[at] ?? 0;
  const percent = usable ? Math.round((100 * used) / usable) : 0;
  $("usage").textContent = `${used} of ${usable} in use, ${percent} %`;
  $("meter").style.width = `${percent}%`;
}

// --- Free list ---

function drawQueue() {
  const strip = $("queue");
  const free = freeList(replay.state);
  const count = usable - (usage[at] ?? 0);
  const hidden = count - free.length; // never moves
  const says = free.filter((id) => blockState(id).hash !== null).length;
  $("queue-count").textContent = `${count} block${count === 1 ? "" : "s"}${says ? `, ${says} still cached` : ""}`;
  const parts = [element("span", "end front", page.knows_free_list ? "next out" : "free")];
  const [head, tail] = free.length > 80 ? [56, 20] : [free.length, 0];
  // Blocks that never move stand behind those that are still where the pool began.
  const unmoved = free.findIndex((id) => blockState(id).place > page.num_blocks);
  const gap = unmoved < 0 ? free.length : unmoved;
  free.forEach((id, i) => {
    if (hidden > 0 && i === gap) parts.push(element("span", "more", `${hidden} never used`));
    if (i === head && tail) parts.push(element("span", "more", `${free.length - head - tail} more`));
    if (i < head || i >= free.length - tail) parts.push(chip(id, picked(id)));
  });
  if (hidden > 0 && gap === free.length) parts.push(element("span", "more", `${hidden} never used`));
  if (count === 0) parts.push(element("span", "more", "empty"));
  else if (page.knows_free_list) parts.push(element("span", "end back", "last"));
  strip.replaceChildren(...parts);
}

// --- Tables ---

const rows = new Map();
const LONG = 512;

function drawTables() {
  const tables = replay.state.tables;
  const held = selected();
  for (const [seq, row] of rows) {
    if (!tables.has(seq)) { row.remove(); rows.delete(seq); }
  }
  for (const [seq, table] of [...tables].sort((x, y) => x[0] - y[0])) {
    let row = rows.get(seq);
    if (!row) {
      row = element("div", "table");
      row.append(element("h3", colour(seq), nameOf(seq)), element("div", "row"), element("p", "note"));
      rows.set(seq, row);
    }
    const holds = held !== null && held !== 0 && table.blocks.includes(held);
    row.classList.toggle("holds", holds);
    row.classList.toggle("faded", held !== null && held !== 0 && !holds && owners.has(held));
    const list = row.children[1];
    const chips = table.blocks.slice(0, LONG).map((id, i) => {
      const made = chip(id, picked(id));
      if (page.block_size) {
        const filled = Math.max(0, Math.min(page.block_size, table.stored - i * page.block_size));
        const bar = element("i", "fill");
        bar.style.width = `${(100 * filled) / page.block_size}%`;
        made.append(bar);
        made.title += `; ${filled} of ${page.block_size} tokens stored`;
      }
      return made;
    });
    if (table.blocks.length > LONG) chips.push(element("span", "more", `${table.blocks.length - LONG} more`));
    list.replaceChildren(...chips);
    const note = [`${table.blocks.length} block${table.blocks.length === 1 ? "" : "s"}`];
    if (table.stored) note.push(`${table.stored} token${table.stored === 1 ? "" : "s"} stored`);
    if (holds) note.push(`holds block ${held}`);
    row.children[2].textContent = note.join(" · ");
    $("tables").append(row);
  }
  const none = $("tables").querySelector(".more.none");
  if (tables.size === 0 && !none) $("tables").append(element("p", "more none", "No sequence is here."));
  if (tables.size > 0) none?.remove();
  $("tables-count").textContent = tables.size ? `${tables.size} sequence${tables.size === 1 ? "" : "s"}` : "";
}

// --- One block ---

const selected = () => pointed ?? pinned;
const picked = (id) => (id === selected() ? "selected" : "");

function drawInspector() {
  const id = selected();
  const box = $("inspector");
  if (id === null) {
    box.replaceChildren(element("p", "hint", "Point at a block, anywhere on the page, to see who uses it and what it holds."));
    return;
  }
  const title = element("h3", "", `Block ${id}`);
  const facts = element("dl");
  const fact = (name, ...values) => {
    const value = element("dd");
    value.append(...values);
    facts.append(element("dt", "", name), value);
  };
  if (id === 0) {
    fact("state", "the null block: stands for “no block here”, counted in the pool, never handed out");
    box.replaceChildren(title, facts);
    return;
  }
  const b = blockState(id);
  const of = users(id);
  if (b.place !== null) {
    const place = freeList(replay.state).indexOf(id);
    const known = page.knows_free_list && place >= 0;
    fact("state", known ? `free, ${place === 0 ? "next to be handed out" : `behind ${place} other${place === 1 ? "" : "s"}`}` : "free");
  } else {
    const names = of.flatMap((seq) => [tag(seq), " "]);
    fact("state", "in use by ", ...(names.length ? names : [String(b.users)]));
    fact("users", String(b.users));
  }
  if (page.block_size) fact("slots", `${id * page.block_size} to ${(id + 1) * page.block_size - 1}`);
  if (b.hash === null) fact("hash", page.knows_free_list ? "none: not in the prefix cache" : "not known");
  else if (b.hash < 0) fact("hash", "cached");
  else {
    const hash = page.hashes[b.hash];
    fact("hash", element("code", "", hash.short), b.pending ? " pending: the step that computes it has not run" : "");
    fact("parent", hash.parent === null ? "none: it is a beginning" : element("code", "", page.hashes[hash.parent].short));
    const chain = beginning(b.hash);
    if (chain.length > 1) fact("holds", ...chain.flatMap((step, i) => (i ? [" → ", step] : [step])));
  }
  box.replaceChildren(title, facts);
}

// The blocks that hold what comes before a hash, as far as they can be found.
function beginning(hash) {
  const byHash = new Map();
  for (const [id, b] of replay.state.blocks) if (b.hash !== null && !byHash.has(b.hash)) byHash.set(b.hash, id);
  const chain = [];
  for (let h = hash; h !== null && h >= 0 && chain.length < 12; h = page.hashes[h].parent) {
    chain.unshift(byHash.has(h) ? chip(byHash.get(h)) : element("span", "more", "forgotten"));
  }
  return chain;
}

// --- The sentence ---

const tag = (seq) => element("b", `name ${colour(seq)}`, nameOf(seq));

function drawSentence() {
  const frame = frames[at];
  $("kind").textContent = frame.kind;
  const parts = frame.text.split(/(\{[bsh]\d+\})/).filter(Boolean).map((part) => {
    const mark = /^\{([bsh])(\d+)\}$/.exec(part);
    if (!mark) return part;
    const number = Number(mark[2]);
    if (mark[1] === "b") return chip(number);
    return mark[1] === "s" ? tag(number) : element("code", "", page.hashes[number].short);
  });
  $("sentence").replaceChildren(...parts);
  const step = frame.step === undefined ? "" : ` · step ${frame.step}`;
  $("where").textContent = `${at + 1} of ${frames.length}${step}`;
  $("seek").setAttribute("aria-valuetext", `frame ${at + 1} of ${frames.length}${step}: ${frame.kind}`);
}

// --- The chart behind the slider ---

{
  const chart = $("chart");
  const points = Math.min(frames.length, 800);
  chart.setAttribute("viewBox", `0 0 ${Math.max(1, points - 1)} 100`);
  let path = "";
  for (let i = 0; i < points; i++) {
    // Of the frames behind one point, the fullest: a peak must not vanish.
    const from = Math.floor((i * frames.length) / points);
    const to = Math.max(from + 1, Math.floor(((i + 1) * frames.length) / points));
    const y = 96 - (90 * Math.max(...usage.slice(from, to))) / Math.max(1, usable);
    path += i ? `H${i}V${y.toFixed(1)}` : `M0 ${y.toFixed(1)}`;
  }
  $("line").setAttribute("d", path);
  $("area").setAttribute("d", `${path}V100H0Z`);
  $("seek").max = Math.max(0, frames.length - 1);
}

// --- Moving ---

function show(frame) {
  at = Math.max(0, Math.min(frames.length - 1, frame));
  replay.go(at);
  lookAtFrame();
  const part = frames.length > 1 ? at / (frames.length - 1) : 0;
  $("head").style.left = `${100 * part}%`;
  $("seek").value = at;
  $("first").disabled = $("back").disabled = at === 0;
  $("last").disabled = $("next").disabled = at === frames.length - 1;
  drawSentence();
  drawPool();
  drawQueue();
  drawTables();
  drawInspector();
}

function redraw() {
  drawPool();
  drawQueue();
  drawTables();
  drawInspector();
}

// The next frame that begins another step.
function byStep(direction) {
  let to = at + direction;
  const inside = (f) => frames[f]?.step;
  if (direction < 0) {
    while (to > 0 && inside(to) === inside(to - 1)) to -= 1;
  } else {
    while (to < frames.length - 1 && inside(to) === inside(at)) to += 1;
  }
  show(to);
}

function play(on) {
  if (timer !== null) clearInterval(timer);
  timer = null;
  if (on) {
    if (at === frames.length - 1) show(0);
    timer = setInterval(() => {
      show(at + 1);
      if (at === frames.length - 1) play(false);
    }, Number($("speed").value));
  }
  document.body.classList.toggle("playing", on);
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  // While frames play, a screen reader must not read each of them.
  $("sentence").setAttribute("aria-live", on ? "off" : "polite");
}

const stop = (then) => () => { play(false); then(); };
$("first").onclick = stop(() => show(0));
$("last").onclick = stop(() => show(frames.length - 1));
$("back").onclick = (e) => { play(false); e.shiftKey ? byStep(-1) : show(at - 1); };
$("next").onclick = (e) => { play(false); e.shiftKey ? byStep(1) : show(at + 1); };
$("play").onclick = () => play(timer === null);
$("speed").onchange = () => { if (timer !== null) play(true); };
$("seek").oninput = () => { play(false); show(Number($("seek").value)); };

function moveFocus(direction) {
  const ids = [...cells.keys()];
  const now = ids.indexOf(Number(document.activeElement.dataset.block));
  const to = ids[Math.max(0, Math.min(ids.length - 1, now + direction))];
  for (const [id, cell] of cells) cell.tabIndex = id === to ? 0 : -1;
  cells.get(to).focus();
}

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.tagName === "SELECT") return;
  const inPool = $("grid").contains(document.activeElement);
  const onButton = e.target.tagName === "BUTTON";
  const keys = {
    ArrowRight: () => (e.shiftKey ? byStep(1) : show(at + 1)),
    ArrowLeft: () => (e.shiftKey ? byStep(-1) : show(at - 1)),
    PageDown: () => byStep(1),
    PageUp: () => byStep(-1),
    Home: () => show(0),
    End: () => show(frames.length - 1),
    ArrowDown: inPool ? () => moveFocus(1) : null,
    ArrowUp: inPool ? () => moveFocus(-1) : null,
    Escape: () => { pinned = pointed = null; redraw(); },
    " ": onButton ? null : () => play(timer === null),
  };
  const act = keys[e.key];
  if (!act) return;
  e.preventDefault();
  if (e.key !== " " && !["ArrowUp", "ArrowDown", "Escape"].includes(e.key)) play(false);
  act();
});

// --- Pointing ---

const blockOf = (target) => {
  const found = target.closest?.("[data-block]");
  return found ? Number(found.dataset.block) : null;
};

function point(id) {
  if (id === pointed) return;
  pointed = id;
  redraw();
}

document.addEventListener("pointerover", (e) => { if (e.pointerType === "mouse") point(blockOf(e.target)); });
document.addEventListener("focusin", (e) => { if (e.target.matches(":focus-visible")) point(blockOf(e.target)); });
document.addEventListener("focusout", () => point(null));
document.addEventListener("click", (e) => {
  const id = blockOf(e.target);
  if (id === null) return;
  pinned = pinned === id ? null : id;
  redraw();
});

show(Number(/^#frame=(\d+)$/.exec(location.hash)?.[1] ?? 1) - 1);
