"use strict";
// The pictures. Each is given a canvas's context and its size, and draws what the scale's window shows.

const PARTS = ["plan", "turn", "pack", "forward", "sample", "apply"];
const KINDS = { queued: 0, prefill: 1, decode: 2, preempted: 3, resumed: 4 };

// Colours are the page's own, which differ in light and dark.
function palette(more = []) {
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement("i");
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ["ink", "quiet", "line", "card", "accent", "queued", "prefill", "decode", "preempted", "resumed", ...PARTS, ...more];
  const made = Object.fromEntries(names.map((name) => [name, colour(name)]));
  probe.remove();
  made.gutter = parseFloat(style.getPropertyValue("--gutter"));
  return made;
}

// A number at or above another that is pleasant at the end of an axis.
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].map((m) => m * power).find((m) => m >= value);
}

function axis(g, colours, width, height, top, label) {
  g.strokeStyle = colours.line;
  g.fillStyle = colours.quiet;
  g.font = "11px system-ui, sans-serif";
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(height - 4 - part * (height - 12)) + 0.5;
    g.beginPath();
    g.moveTo(colours.gutter, y);
    g.lineTo(width, y);
    g.stroke();
    if (part !== 0.5) g.fillText(part ? label(top) : "0", colours.gutter - 6, y);
  }
  return (value) => (value / top) * (height - 12);
}

// Bars of several colours on each other. `layers`: a column of numbers and a colour each, from below, and a second
// colour for those that are hatched.
function stacked(g, scale, colours, width, height, top, label, layers) {
  const size = axis(g, colours, width, height, top, label);
  const sum = (i) => layers.reduce((all, [column]) => all + column[i], 0);
  const best = tallest(scale, sum);
  for (const [number, [, colour, hatched]] of layers.entries()) {
    stretches(scale, best, (step, x, w) => {
      let below = 0;
      for (let l = 0; l < number; l++) below += layers[l][0][step];
      const h = size(layers[number][0][step]);
      // A gap between bars that are wide enough to have one.
      if (h <= 0) return;
      const [y, wide] = [height - 4 - size(below) - h, w > 3 ? w - 1 : w];
      g.fillStyle = colour;
      g.fillRect(x, y, wide, h);
      if (hatched) hatch(g, hatched, x, y, wide, h);
    });
  }
}

function filled(g, scale, colour, height, size, column) {
  g.fillStyle = colour;
  g.globalAlpha = 0.35;
  stretches(scale, tallest(scale, (i) => column[i]), (step, x, w) => {
    const h = size(column[step]);
    g.fillRect(x, height - 4 - h, w, h);
  });
  g.globalAlpha = 1;
  outlined(g, scale, colour, height, size, column);
}

function outlined(g, scale, colour, height, size, column) {
  g.strokeStyle = colour;
  g.lineWidth = 1.5;
  g.beginPath();
  stretches(scale, tallest(scale, (i) => column[i]), (step, x, w) => {
    const y = height - 4 - size(column[step]);
    g.lineTo(x, y);
    g.lineTo(x + w, y);
  });
  g.stroke();
  g.lineWidth = 1;
}

const count = (value) => String(Math.round(value * 10) / 10);
const most = (column) => column.reduce((a, b) => Math.max(a, b), 0);

const charts = {
  queue(g, page, scale, colours, width, height) {
    const { running, waiting } = page.steps;
    const size = axis(g, colours, width, height, nice(Math.max(most(running), most(waiting))), count);
    filled(g, scale, colours.decode, height, size, running);
    outlined(g, scale, colours.ink, height, size, waiting);
  },

  tokens(g, page, scale, colours, width, height) {
    const { decode, prefill, resumed } = page.steps;
    const top = nice(most(decode.map((n, i) => n + prefill[i] + resumed[i])));
    const layers = [[decode, colours.decode], [prefill, colours.prefill], [resumed, colours.resumed]];
    const { drafts, accepted } = page.steps;
    if (drafts) {
      // Drafts are among the tokens of rows that decode. Those that were rejected were computed in vain.
      layers[0] = [decode.map((n, i) => n - drafts[i]), colours.decode];
      const rejected = drafts.map((n, i) => n - accepted[i]);
      layers.splice(1, 0, [accepted, colours.draft], [rejected, colours.draft, colours.card]);
    }
    stacked(g, scale, colours, width, height, top, count, layers);
  },

  kv(g, page, scale, colours, width, height) {
    const size = axis(g, colours, width, height, Math.max(1, page.kv_total), count);
    filled(g, scale, colours.ink, height, size, page.steps.used);
    if (most(page.steps.leased)) outlined(g, scale, colours.resumed, height, size, page.steps.leased);
  },

  parts(g, page, scale, colours, width, height) {
    const { parts } = page.steps;
    const total = (i) => parts.reduce((all, column) => all + column[i], 0);
    // One slow step must not flatten the others: the axis is that of what is in sight.
    const [first, last] = scale.visible();
    let top = 0;
    for (let i = first; i <= last; i++) top = Math.max(top, total(i));
    const layers = parts.map((column, p) => [column, colours[PARTS[p]]]);
    stacked(g, scale, colours, width, height, nice(top), duration, layers);
  },

  lanes(g, page, scale, colours, width, height) {
    const lanes = page.lanes;
    const tall = height / Math.max(1, lanes.length);
    g.font = `${Math.min(11, tall)}px system-ui, sans-serif`;
    g.textAlign = "right";
    g.textBaseline = "middle";
    // Names as far as there is room for them.
    const every = Math.ceil(11 / tall);
    g.fillStyle = colours.quiet;
    if (every > 1) g.font = "11px system-ui, sans-serif";
    for (let k = 0; k < lanes.length; k += every) g.fillText(String(lanes[k].id), colours.gutter - 6, (k + 0.5) * tall, colours.gutter - 8);
    g.save();
    g.beginPath();
    g.rect(colours.gutter, 0, width, height);
    g.clip();
    for (const [k, lane] of lanes.entries()) drawLane(g, lane, scale, colours, k * tall, tall);
    for (const { lane, store, span } of page.transfers ?? []) {
      if (!store) bar(g, scale, colours.forward, span, lane * tall + tall * 0.2, tall * 0.6, colours.card);
    }
    g.fillStyle = colours.preempted;
    for (const [step, k] of page.preempted) {
      const x = scale.x(scale.from(step));
      if (x < colours.gutter - 5 || x > width + 5) continue;
      const size = Math.max(3, Math.min(6, tall * 0.45));
      g.beginPath();
      g.moveTo(x - size, k * tall);
      g.lineTo(x + size, k * tall);
      g.lineTo(x, k * tall + size * 1.4);
      g.fill();
    }
    g.restore();
  },
};

// A row for each job, and a second one where its leases overlap.
charts.holds = (g, page, scale, colours, width, height) => {
  const { holds, jobs } = page;
  const tall = height / jobs.length;
  const every = Math.ceil(11 / tall);
  g.font = "11px system-ui, sans-serif";
  g.textAlign = "right";
  g.textBaseline = "middle";
  g.fillStyle = colours.quiet;
  for (let k = 0; k < jobs.length; k += every) g.fillText(jobs[k].slice(0, 8), colours.gutter - 6, (k + 0.5) * tall, colours.gutter - 8);
  g.save();
  g.beginPath();
  g.rect(colours.gutter, 0, width, height);
  g.clip();
  const rows = new Map();
  for (const { row, lane, span } of holds) {
    rows.set(lane, row);
    bar(g, scale, colours.resumed, span, row * tall + tall * 0.15, tall * 0.7);
  }
  for (const { lane, store, span } of page.transfers ?? []) {
    if (store) bar(g, scale, colours.forward, span, rows.get(lane) * tall + tall * 0.15, tall * 0.7, colours.card);
  }
  g.restore();
};

// A span as a bar, hatched if a second colour is given.
function bar(g, scale, colour, span, y, tall, hatched) {
  const from = scale.spanFrom(span, 0);
  const to = scale.spanTo(span, 0);
  if (to < scale.lo || from > scale.hi) return;
  const a = Math.max(scale.left, scale.x(from));
  const w = Math.max(1, Math.min(scale.left + scale.width, scale.x(to)) - a);
  g.fillStyle = colour;
  g.fillRect(a, y, w, tall);
  if (hatched && w > 6) hatch(g, hatched, a, y, w, tall);
}

// The state of a request is shown by form as well as by colour: a line waits, a full bar computes, a thin one decodes.
function drawLane(g, lane, scale, colours, y, tall) {
  const { spans } = lane;
  const gap = tall >= 6 ? 1 : 0;
  const middle = y + tall / 2;
  const wide = Math.max(1, tall - 2 * gap);
  let drawn = -1;
  for (let k = 0; k < spans.length; k += 5) {
    const from = scale.spanFrom(spans, k);
    const to = scale.spanTo(spans, k);
    if (to < scale.lo || from > scale.hi) continue;
    const a = Math.max(scale.left, scale.x(from));
    const b = Math.min(scale.left + scale.width, scale.x(to));
    const kind = spans[k];
    const waits = kind === KINDS.queued || kind === KINDS.preempted;
    if (waits && b - a < 0.5) continue;
    // Of many spans in one pixel, one is drawn.
    if (b - a < 1 && Math.floor(a) === drawn) continue;
    drawn = Math.floor(a);
    const w = Math.max(1, b - a);
    if (kind === KINDS.queued) {
      g.fillStyle = colours.queued;
      g.fillRect(a, middle - Math.max(0.5, tall * 0.07), w, Math.max(1, tall * 0.14));
    } else if (kind === KINDS.preempted) {
      g.strokeStyle = colours.preempted;
      g.lineWidth = Math.max(1, tall * 0.14);
      g.setLineDash([5, 3]);
      g.beginPath();
      g.moveTo(a, middle);
      g.lineTo(a + w, middle);
      g.stroke();
      g.setLineDash([]);
      g.lineWidth = 1;
    } else if (kind === KINDS.decode) {
      g.fillStyle = colours.decode;
      g.fillRect(a, middle - wide * 0.3, w, wide * 0.6);
    } else {
      g.fillStyle = kind === KINDS.prefill ? colours.prefill : colours.resumed;
      g.fillRect(a, y + gap, w, wide);
      if (kind === KINDS.resumed && w > 6) hatch(g, colours.card, a, y + gap, w, wide);
    }
  }
}

function hatch(g, colour, x, y, w, h) {
  g.save();
  g.beginPath();
  g.rect(x, y, w, h);
  g.clip();
  g.strokeStyle = colour;
  g.beginPath();
  for (let at = x - h; at < x + w; at += 5) {
    g.moveTo(at, y + h);
    g.lineTo(at + h, y);
  }
  g.stroke();
  g.restore();
}
