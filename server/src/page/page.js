// The page at `/`: a chat over the public API, and the state of the engine once a second. Text from models and servers
// is only ever set as text, never as HTML. `common.js` comes before it.
"use strict";

// ---- Chat

/** Messages of the conversation so far, in the format of the API. */
let messages = [];
/** AbortController of the response in flight; null without one. */
let inFlight = null;

/** Adds an entry to the conversation; returns the element for its text. */
const entry = (role) => {
  const article = make("article");
  article.dataset.role = role;
  const text = make("p");
  article.append(make("h3", role === "user" ? "You" : "Model"), text);
  $("log").append(article);
  return text;
};

const scrollToEnd = () => {
  $("log").scrollTop = $("log").scrollHeight;
};

/** Path and body of a request: for `/v1/chat/completions` the whole conversation, for `/v1/completions` the text. */
const requestFor = (text) => {
  const body = { stream: true, stream_options: { include_usage: true } };
  const temperature = $("temperature").valueAsNumber;
  const most = $("max-tokens").valueAsNumber;
  if (!Number.isNaN(temperature)) body.temperature = temperature;
  if (!Number.isNaN(most)) body.max_tokens = most;
  if ($("mode").value === "text") return ["v1/completions", { ...body, prompt: text }];
  const system = $("system").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  return ["v1/chat/completions", { ...body, messages: [...before, ...messages] }];
};

/** Creates the element for reasoning, before that of the text. */
const reasoningBefore = (text) => {
  const details = make("details");
  const reasoning = make("div");
  details.open = true;
  details.append(make("summary", "Reasoning"), reasoning);
  text.before(details);
  return reasoning;
};

/** Sends a request and appends the response to an element as it arrives. */
async function generate(text, element, signal) {
  const [path, body] = requestFor(text);
  const began = performance.now();
  const response = await request(path, body, signal);
  if (!response.ok) {
    const failure = await response.json().catch(() => null);
    throw new Error(failure?.error?.message ?? `${response.status} ${response.statusText}`);
  }
  const output = { text: "", first: null, usage: null, reason: null, began };
  let reasoning = null;
  try {
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      output.usage = event.usage ?? output.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      output.reason = choice.finish_reason ?? output.reason;
      const thought = choice.delta?.reasoning_content;
      const delta = choice.delta ? choice.delta.content : choice.text;
      if ((thought || delta) && output.first === null) output.first = performance.now() - began;
      if (thought) {
        reasoning ??= reasoningBefore(element);
        reasoning.append(thought);
      }
      if (delta) {
        output.text += delta;
        element.append(delta);
      }
      scrollToEnd();
    }
  } catch (why) {
    // The text that arrived before the stop is kept.
    if (why.name !== "AbortError") throw why;
    output.reason = "stopped";
  }
  return output;
}

/** One line with the number of tokens, TTFT, speed and finish reason of a response. */
const summary = (output) => {
  const parts = [];
  if (output.usage) parts.push(`${output.usage.completion_tokens} tokens`);
  if (output.first !== null) parts.push(`TTFT ${output.first.toFixed(0)} ms`);
  const seconds = (performance.now() - output.began - (output.first ?? 0)) / 1000;
  const more = (output.usage?.completion_tokens ?? 0) - 1;
  if (more > 0 && seconds > 0) parts.push(`${(more / seconds).toFixed(1)} tokens/s`);
  if (output.reason) parts.push(output.reason);
  return `Response complete: ${parts.join(", ")}`;
};

const busy = (is) => {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("log").setAttribute("aria-busy", String(is));
};

async function send() {
  const text = $("prompt").value;
  if (!text.trim() || inFlight) return;
  const stop = new AbortController();
  inFlight = stop;
  busy(true);
  $("status").textContent = "";
  $("prompt").value = "";
  entry("user").textContent = text;
  messages.push({ role: "user", content: text });
  const mine = messages;
  const element = entry("assistant");
  scrollToEnd();
  try {
    const output = await generate(text, element, stop.signal);
    mine.push({ role: "assistant", content: output.text });
    $("status").textContent = summary(output);
  } catch (why) {
    // The request failed: its message is put back, so that it can be sent again.
    mine.pop();
    const stopped = why.name === "AbortError";
    element.classList.toggle("error", !stopped);
    element.textContent = stopped ? "Stopped." : why.message;
    $("status").textContent = element.textContent;
    if (messages === mine && !$("prompt").value) $("prompt").value = text;
  } finally {
    inFlight = null;
    busy(false);
    $("prompt").focus();
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") inFlight?.abort();
});
$("stop").addEventListener("click", () => inFlight?.abort());
$("clear").addEventListener("click", () => {
  inFlight?.abort();
  messages = [];
  $("log").replaceChildren();
  $("status").textContent = "";
  $("prompt").focus();
});

// ---- Engine

/** Tokens per second, one value for each poll. */
const rates = [];
const MAX_RATES = 60;

const spread = (row, percentiles) => {
  const cells = $(row).querySelectorAll("td");
  [percentiles.p50, percentiles.p90, percentiles.p99].forEach((value, at) => {
    cells[at].textContent = ms(value);
  });
};

const bar = (kv) => {
  const part = (blocks) => (kv.total ? (100 * blocks) / kv.total : 0);
  const held = Math.min(kv.total, Math.max(kv.used, kv.cached));
  $("kv-used").setAttribute("width", part(kv.used));
  $("kv-cached").setAttribute("width", part(held));
  const hits = kv.hit_rate === null ? "" : `, ${(100 * kv.hit_rate).toFixed(0)}% of prompt tokens cached`;
  $("kv-text").textContent =
    `${kv.used} of ${kv.total} used (${kv.block_size} tokens each), ${kv.cached} in the prefix cache${hits}`;
};

const spark = (rate) => {
  rates.push(rate);
  if (rates.length > MAX_RATES) rates.shift();
  const most = Math.max(1, ...rates);
  const points = rates.map((value, at) => `${at},${(19.5 - (19 * value) / most).toFixed(2)}`);
  $("spark-line").setAttribute("points", points.join(" "));
};

/** Acceptance of drafts since the start; hidden where the engine does not speculate, and before the first draft. */
const drafts = (speculation) => {
  const any = speculation && speculation.drafts > 0;
  $("speculation").hidden = !any;
  if (!any) return;
  const accepted = (100 * speculation.acceptance_rate).toFixed(0);
  const mean = speculation.mean_acceptance_length.toFixed(2);
  $("speculation").textContent =
    `Speculation: ${accepted}% of ${speculation.draft_tokens} draft tokens accepted, mean acceptance length ${mean}`;
};

const show = (state) => {
  $("model").textContent = state.model;
  $("state").textContent = state.state;
  const figures = {
    running: state.requests.running,
    seats: state.requests.max_running,
    waiting: state.requests.waiting,
    finished: state.requests.finished,
    rejected: state.requests.rejected,
    preemptions: state.requests.preemptions,
    connections: state.http.connections,
    "out-rate": state.recent.generated_tokens_per_second.toFixed(1),
    "in-rate": state.recent.prompt_tokens_per_second.toFixed(1),
  };
  for (const [id, value] of Object.entries(figures)) $(id).textContent = value;
  bar(state.kv);
  drafts(state.speculation);
  spread("ttft", state.recent.ttft_ms);
  spread("itl", state.recent.itl_ms);
  const rows = state.running.map((one) => {
    const row = make("tr");
    const cells = [one.id, one.prompt, one.cached, `${one.generated} of ${one.max_tokens}`];
    row.append(...cells.map((cell) => make("td", cell)));
    return row;
  });
  $("requests").replaceChildren(...rows);
};

/** Number of tokens generated up to the last poll, and its time. */
let last = null;

async function poll() {
  if (document.hidden) return;
  try {
    const response = await fetch("strata/state", { headers: headers(), cache: "no-store" });
    if (!response.ok) throw new Error(response.statusText);
    const state = await response.json();
    const now = { at: performance.now(), tokens: state.tokens.generated };
    if (last) spark(Math.max(0, ((now.tokens - last.tokens) * 1000) / (now.at - last.at)));
    last = now;
    show(state);
    $("lost").hidden = true;
  } catch {
    $("state").textContent = "unreachable";
    $("lost").hidden = false;
  }
}

watch(poll);
