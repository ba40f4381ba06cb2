"use strict";
// Where things are across: by time in microseconds, or by step. Both are numbers on one axis, of which a window is shown.

class Scale {
  constructor(page) {
    this.steps = page.steps;
    this.count = page.steps.at.length;
    this.run = Math.max(page.end, 1e-3);
    this.mode = "time";
    this.lo = 0;
    this.hi = this.max();
    this.left = 0;
    this.width = 1;
  }

  max() { return this.mode === "time" ? this.run : Math.max(1, this.count); }
  least() { return Math.min(this.max(), (4 * this.max()) / Math.max(4, this.count) / (this.mode === "time" ? 8 : 1)); }

  // The ends of a step.
  from(i) { return this.mode === "time" ? this.steps.at[i] : i; }
  to(i) { return this.mode === "time" ? this.steps.end[i] : i + 1; }

  // The ends of a lane's span, of which `k` is the first of five numbers: kind, moments, steps.
  spanFrom(spans, k) { return this.mode === "time" ? spans[k + 1] : spans[k + 3]; }
  spanTo(spans, k) { return this.mode === "time" ? spans[k + 2] : spans[k + 4]; }

  x(value) { return this.left + ((value - this.lo) / (this.hi - this.lo)) * this.width; }
  value(x) { return this.lo + ((x - this.left) / this.width) * (this.hi - this.lo); }

  // The last step that begins at or before a value; the first if none does.
  stepAt(value) {
    if (this.mode === "step") return Math.max(0, Math.min(this.count - 1, Math.floor(value)));
    let lo = 0;
    let hi = this.count - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (this.steps.at[mid] <= value) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  }

  // The steps in the window, at its ends those that are half in it.
  visible() { return this.count ? [this.stepAt(this.lo), this.stepAt(this.hi)] : [0, -1]; }

  show(lo, hi) {
    const width = Math.min(this.max(), Math.max(this.least(), hi - lo));
    const middle = (lo + hi) / 2;
    this.lo = Math.max(0, Math.min(this.max() - width, middle - width / 2));
    this.hi = this.lo + width;
  }

  // By a factor, with a value staying where it is.
  zoom(factor, about) {
    const width = Math.min(this.max(), Math.max(this.least(), (this.hi - this.lo) * factor));
    const part = (about - this.lo) / (this.hi - this.lo);
    this.lo = Math.max(0, Math.min(this.max() - width, about - part * width));
    this.hi = this.lo + width;
  }

  pan(by) {
    const width = this.hi - this.lo;
    this.lo = Math.max(0, Math.min(this.max() - width, this.lo + by));
    this.hi = this.lo + width;
  }

  // Changes the axis; the same steps stay in the window.
  use(mode) {
    if (mode === this.mode || !this.count) return;
    const all = this.lo <= 0 && this.hi >= this.max();
    const [first, last] = this.visible();
    this.mode = mode;
    if (all) this.show(0, this.max());
    else this.show(this.from(first), this.to(last));
  }
}

// For each pixel across, the step behind it whose value is the largest: of many steps in one pixel a peak must not vanish.
// -1 where there is none.
function tallest(scale, value) {
  const pixels = Math.max(1, Math.ceil(scale.width));
  const best = new Int32Array(pixels).fill(-1);
  const height = new Float64Array(pixels).fill(-1);
  const [first, last] = scale.visible();
  for (let i = first; i <= last; i++) {
    const v = value(i);
    const a = scale.x(scale.from(i)) - scale.left;
    const b = scale.x(scale.to(i)) - scale.left;
    const from = Math.max(0, Math.floor(a));
    const to = Math.min(pixels, Math.max(from + 1, Math.round(b)));
    for (let p = from; p < to; p++) {
      if (v > height[p]) {
        height[p] = v;
        best[p] = i;
      }
    }
  }
  return best;
}

// Runs of pixels that show the same step: `draw(step, x, width)`.
function stretches(scale, best, draw) {
  for (let p = 0; p < best.length; ) {
    const step = best[p];
    let end = p + 1;
    while (end < best.length && best[end] === step) end += 1;
    if (step >= 0) draw(step, scale.left + p, end - p);
    p = end;
  }
}
