"use strict";
// The state of the pool, and the changes that lead from one frame to the next. mirror.rs is the
// same in Rust; the digests on the page hold the two together.
//
// The free list is kept as places: a block that never moved has its own number, what goes to the
// front gets a place below all others, what goes to the back one above. In order means by place.

const BACK = 2 ** 32;

class Replay {
  constructor(page) {
    this.page = page;
    this.keep = Math.max(32, Math.ceil(page.frames.length / 256));
    this.kept = [];
    this.at = -1;
    this.state = {
      blocks: new Map(page.blocks.map((b) => [b, { place: b, users: 0, hash: null, pending: false }])),
      tables: new Map(),
      low: 0,
      high: 0,
    };
    this.keepState();
  }

  // Goes to a frame: forwards from here, or from the copy that was kept before it.
  go(frame) {
    if (frame < this.at || frame > this.at + this.keep) {
      const near = this.kept.filter((k) => k.at <= frame).pop();
      if (frame < this.at || near.at > this.at) {
        this.at = near.at;
        this.state = structuredClone(near.state);
      }
    }
    while (this.at < frame) {
      this.at += 1;
      for (const delta of this.page.frames[this.at].deltas) apply(this.state, delta);
      this.keepState();
    }
  }

  keepState() {
    const last = this.kept.length ? this.kept[this.kept.length - 1].at : -Infinity;
    if (this.at >= last + this.keep) this.kept.push({ at: this.at, state: structuredClone(this.state) });
  }
}

function apply(state, [what, a, b, c]) {
  const block = state.blocks.get(a);
  switch (what) {
    case "leave": block.place = null; break;
    case "front": block.place = --state.low; break;
    case "back": block.place = BACK + ++state.high; break;
    case "users": block.users = b; break;
    case "hash": block.hash = b; block.pending = c === 1; break;
    case "unhash": block.hash = null; block.pending = false; break;
    case "unhash_all": for (const each of state.blocks.values()) { each.hash = null; each.pending = false; } break;
    case "settle": for (const each of state.blocks.values()) each.pending = false; break;
    case "begin": state.tables.set(a, { blocks: [], stored: 0 }); break;
    case "end": state.tables.delete(a); break;
    case "append": state.tables.get(a).blocks.push(b); break;
    case "truncate": state.tables.get(a).blocks.length = b; break;
    case "stored": state.tables.get(a).stored = b; break;
  }
}

// The blocks that a delta is about.
function touched([what, a, b]) {
  if (what === "append") return b;
  return ["leave", "front", "back", "users", "hash", "unhash"].includes(what) ? a : null;
}

// The free list in order, as far as its blocks ever moved or will.
function freeList(state) {
  const free = [...state.blocks].filter(([, b]) => b.place !== null);
  return free.sort((x, y) => x[1].place - y[1].place).map(([id]) => id);
}

// A number that depends on all of the state (FNV-1a over words).
function digest(state) {
  let sum = 0x811c9dc5;
  const add = (word) => { sum = Math.imul(sum ^ word, 0x01000193) >>> 0; };
  for (const [id, b] of state.blocks) {
    if (b.users === 0 && b.hash === null) continue;
    add(id);
    add(b.users);
    add(b.hash === null ? 0 : b.hash + 2);
    add(b.pending ? 1 : 0);
  }
  for (const id of freeList(state)) if (state.blocks.get(id).place !== id) add(id);
  for (const seq of [...state.tables.keys()].sort((x, y) => x - y)) {
    const table = state.tables.get(seq);
    add(seq);
    add(table.stored);
    table.blocks.forEach(add);
  }
  return sum;
}
