"use strict";
// A step and a request in words.

function duration(us) {
  const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  if (us >= 1e6) return `${digits(us / 1e6)} s`;
  if (us >= 1e3) return `${digits(us / 1e3)} ms`;
  return `${digits(us)} µs`;
}

const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const listed = (all) => (all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all[all.length - 1]}`);

// The rows of a table that belong to a step; the table is in the order of the steps.
function ofStep(table, step) {
  let lo = 0;
  let hi = table.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (table[mid][0] < step) lo = mid + 1;
    else hi = mid;
  }
  const found = [];
  for (; lo < table.length && table[lo][0] === step; lo++) found.push(table[lo]);
  return found;
}

const MOST_NAMED = 6;

function some(all) {
  return all.length <= MOST_NAMED ? listed(all) : `${all.slice(0, MOST_NAMED).join(", ")} and ${all.length - MOST_NAMED} more`;
}

function stepInWords(page, i) {
  const { steps, lanes } = page;
  const name = (lane) => `request ${lanes[lane].id}`;
  const took = steps.parts.reduce((all, column) => all + column[i], 0);
  const split = PARTS.map((part, p) => `${part} ${duration(steps.parts[p][i])}`).join(", ");
  const said = [`Step ${steps.number[i]} began ${duration(steps.at[i])} into the run and took ${duration(took)}: ${split}.`];
  if (page.failed.includes(i)) said.push("It failed, and nothing of it counts.");
  const tokens = steps.prefill[i] + steps.resumed[i] + steps.decode[i];
  const rows = ofStep(page.rows, i).map(([, lane, kind, count, computed, cached]) => {
    const what = kind === KINDS.resumed ? "computes again" : "prefills";
    const range = count === 1 ? `token ${computed}` : `tokens ${computed} to ${computed + count - 1}`;
    return `${name(lane)} ${what} ${range}${cached ? ` behind ${cached} from the cache` : ""}`;
  });
  if (steps.decodes[i]) rows.push(`${plural(steps.decodes[i], "request")} decode${steps.decodes[i] === 1 ? "s" : ""}`);
  said.push(rows.length ? `It computed ${plural(tokens, "token")}: ${some(rows)}. ${plural(steps.chosen[i], "token")} came out.` : "It computed nothing.");
  said.push(`${plural(steps.running[i], "request")} ran and ${steps.waiting[i]} waited.`);
  const preempted = ofStep(page.preempted, i).map(([, lane]) => name(lane));
  if (preempted.length) said.push(`Preempted to make room: ${some(preempted)}.`);
  const finished = ofStep(page.finished, i).map(([, lane, why]) => `${name(lane)} (${why})`);
  if (finished.length) said.push(`Ended: ${some(finished)}.`);
  const leased = steps.leased[i] ? `, ${steps.leased[i]} of them kept for later` : "";
  said.push(`KV: ${steps.used[i]} of ${plural(page.kv_total, "block")} in use${leased}; ${steps.findable[i]} can be found by what they hold.`);
  return said.join(" ");
}

// What a request is at, at a value of the axis.
function phaseAt(lane, scale, value) {
  for (let k = 0; k < lane.spans.length; k += 5) {
    if (scale.spanFrom(lane.spans, k) <= value && value < scale.spanTo(lane.spans, k)) return page.kinds[lane.spans[k]];
  }
  return null;
}

function laneInWords(lane, phase) {
  const said = [`Request ${lane.id}${phase ? ` (now: ${phase})` : ""} came at ${duration(lane.at)}`];
  const end = lane.end;
  if (end && end[2]) return `${said[0]} and was refused: ${end[1]}.`;
  said[0] += ` with ${plural(lane.prompt, "prompt token")}${lane.priority ? `, priority ${lane.priority}` : ""}.`;
  if (lane.first !== null) said.push(`Its first token was there after ${duration(lane.first - lane.at)}.`);
  if (lane.cached) said.push(`${plural(lane.cached, "token")} came from the cache.`);
  if (lane.preemptions) said.push(`It was preempted ${lane.preemptions === 1 ? "once" : `${lane.preemptions} times`}.`);
  const tokens = `${plural(lane.tokens, "token")} of at most ${lane.max_tokens}`;
  said.push(end ? `It ended after ${duration(end[0] - lane.at)} with ${tokens} (${end[1]}).` : `The recording ends before it does, at ${tokens}.`);
  return said.join(" ");
}
