"use strict";
// Sentences about a step and a request.

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
  const sentences = [`Step ${steps.number[i]} began ${duration(steps.at[i])} into the run and took ${duration(took)}: ${split}.`];
  const shape = page.shapes && page.shapes[i];
  if (shape === "decode_only") sentences.push("It was planned for rows that decode only.");
  else if (shape && shape.prefill) sentences.push(`It was planned for prompts only${shape.prefill.chunk ? `, at most ${plural(shape.prefill.chunk, "token")} of them` : ""}.`);
  if (page.failed.includes(i)) sentences.push("It failed, and its results were discarded.");
  const tokens = steps.prefill[i] + steps.resumed[i] + steps.decode[i];
  const rows = ofStep(page.rows, i).map(([, lane, kind, count, computed, cached]) => {
    const what = kind === KINDS.resumed ? "computes again" : "prefills";
    const range = count === 1 ? `token ${computed}` : `tokens ${computed} to ${computed + count - 1}`;
    return `${name(lane)} ${what} ${range}${cached ? ` behind ${cached} from the cache` : ""}`;
  });
  if (steps.decodes[i]) rows.push(`${plural(steps.decodes[i], "request")} decode${steps.decodes[i] === 1 ? "s" : ""}`);
  sentences.push(rows.length ? `It computed ${plural(tokens, "token")}: ${some(rows)}. ${plural(steps.chosen[i], "token")} sampled.` : "It computed nothing.");
  sentences.push(...draftsInWords(page, i, name));
  sentences.push(`${plural(steps.running[i], "request")} ran and ${steps.waiting[i]} waited.`);
  const preempted = ofStep(page.preempted, i).map(([, lane]) => name(lane));
  if (preempted.length) sentences.push(`Preempted to make room: ${some(preempted)}.`);
  const finished = ofStep(page.finished, i).map(([, lane, why]) => `${name(lane)} (${why})`);
  if (finished.length) sentences.push(`Ended: ${some(finished)}.`);
  const leased = steps.leased[i] ? `, ${steps.leased[i]} of them leased` : "";
  sentences.push(`KV: ${steps.used[i]} of ${plural(page.kv_total, "block")} in use${leased}; ${steps.findable[i]} in the prefix cache.`);
  sentences.push(...holdsInWords(page, i));
  return sentences.join(" ");
}

// Drafts of a step: how many were accepted, and of whom.
function draftsInWords(page, i, name) {
  const rows = ofStep(page.drafts ?? [], i);
  if (!rows.length) return [];
  const [all, accepted] = [page.steps.drafts[i], page.steps.accepted[i]];
  const counts = `${accepted} accepted and ${all - accepted} rejected`;
  if (rows.length === 1) return [`${plural(all, "draft")} of ${name(rows[0][1])} verified, ${counts}.`];
  const each = rows.map(([, lane, drafts, right]) => `${right} of ${drafts} of ${name(lane)}`);
  return [`${plural(all, "draft")} verified, ${counts}; accepted were ${some(each)}.`];
}

// Leases and transfers that begin or end with a step.
function holdsInWords(page, i) {
  const of = (held) => `${plural(held.blocks, "block")} of request ${page.lanes[held.lane].id}${held.tool ? ` (${held.tool})` : ""}`;
  const holds = page.holds ?? [];
  const sentences = [];
  const begun = holds.filter(({ span }) => span[3] === i).map(of);
  if (begun.length) sentences.push(`Leases began: ${some(begun)}.`);
  const ended = holds.filter((held) => held.ended === i).map((held) => `${of(held)}, ${WHY[held.why] ?? held.why}`);
  if (ended.length) sentences.push(`Leases ended: ${some(ended)}.`);
  const transfers = (page.transfers ?? []).filter(({ span }) => span[3] === i);
  const moved = transfers.map(({ lane, store, tokens }) => `${plural(tokens, "token")} of request ${page.lanes[lane].id} ${store ? "to" : "from"} a tier`);
  if (moved.length) sentences.push(`Transfers began: ${some(moved)}.`);
  const [, copied] = (page.write_backs ?? []).find(([step]) => step === i) ?? [];
  if (copied) sentences.push(`Written back: ${plural(copied, "block")} of leases that ended or of preempted requests, to a tier.`);
  return sentences;
}

const WHY = {
  expired: "since their time was over",
  for_waiting: "for a waiting request",
  for_running: "for a running request",
  shutdown: "since the engine ended",
  outlived: "since the next step holds them",
  job_over: "since the job is over",
  surplus: "since the job had too many",
  displaced: "since leases held too much",
  reset: "since the cache was reset",
  stored: "since they were stored",
};

// Loads and stores of a request.
function transfersOf(page, lane) {
  return (page.transfers ?? []).filter((transfer) => transfer.lane === lane);
}

// What a request is at, at a value of the axis.
function phaseAt(lane, scale, value) {
  for (let k = 0; k < lane.spans.length; k += 5) {
    if (scale.spanFrom(lane.spans, k) <= value && value < scale.spanTo(lane.spans, k)) return page.kinds[lane.spans[k]];
  }
  return null;
}

function laneInWords(lane, phase, transfers = []) {
  const sentences = [`Request ${lane.id}${phase ? ` (now: ${phase})` : ""} arrived at ${duration(lane.at)}`];
  const end = lane.end;
  if (end && end[2]) return `${sentences[0]} and was rejected: ${end[1]}.`;
  sentences[0] += ` with ${plural(lane.prompt, "prompt token")}${lane.priority ? `, priority ${lane.priority}` : ""}.`;
  if (lane.first !== null) sentences.push(`TTFT: ${duration(lane.first - lane.at)}.`);
  if (lane.cached) sentences.push(`${plural(lane.cached, "token")} of the prompt ${lane.cached === 1 ? "was" : "were"} cached.`);
  for (const { store, tokens, arrived, span } of transfers) {
    const took = duration(span[2] - span[1]);
    const loaded = arrived === null ? "" : arrived < tokens ? `, of which ${arrived} arrived` : "";
    sentences.push(store ? `Its ${plural(tokens, "token")} were stored in ${took}.` : `${plural(tokens, "token")} of it ${tokens === 1 ? "was" : "were"} loaded from a tier in ${took}${loaded}.`);
  }
  if (lane.drafts) sentences.push(`${lane.accepted} of its ${plural(lane.drafts, "draft")} ${lane.accepted === 1 ? "was" : "were"} accepted.`);
  if (lane.preemptions) sentences.push(`It was preempted ${lane.preemptions === 1 ? "once" : `${lane.preemptions} times`}.`);
  const tokens = `${plural(lane.tokens, "token")} of at most ${lane.max_tokens}`;
  sentences.push(end ? `It ended after ${duration(end[0] - lane.at)} with ${tokens} (${end[1]}).` : `It had not ended at the end of the recording, with ${tokens}.`);
  return sentences.join(" ");
}
