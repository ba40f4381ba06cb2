// The page at `/`: a chat over the public API, and a look at the engine once a second. Text from models and servers is
// only ever set as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (name, text) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
};

// ---- Talk

/** What was said so far, as the API wants it. */
let messages = [];
/** Stops the answer that is being written; null when none is. */
let answering = null;

const headers = () => {
  const key = $("key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
};

/** An entry of the conversation; returns the element its text goes to. */
const entry = (who) => {
  const article = make("article");
  article.dataset.who = who;
  const text = make("p");
  article.append(make("h3", who === "user" ? "You" : "Model"), text);
  $("log").append(article);
  return text;
};

const toEnd = () => {
  $("log").scrollTop = $("log").scrollHeight;
};

/** The events of a stream of server-sent events, as they come. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const whole = rest.split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const data = event.startsWith("data: ") ? event.slice(6) : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

/** What is asked: of `/v1/chat/completions` the whole conversation, of `/v1/completions` the last text. */
const question = (text) => {
  const asked = { stream: true, stream_options: { include_usage: true } };
  const temperature = $("temperature").valueAsNumber;
  const most = $("max-tokens").valueAsNumber;
  if (!Number.isNaN(temperature)) asked.temperature = temperature;
  if (!Number.isNaN(most)) asked.max_tokens = most;
  if ($("mode").value === "text") return ["v1/completions", { ...asked, prompt: text }];
  const system = $("system").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  return ["v1/chat/completions", { ...asked, messages: [...before, ...messages] }];
};

/** The place for thoughts, made when the first one comes. */
const thoughts = (text) => {
  const details = make("details");
  const place = make("div");
  details.open = true;
  details.append(make("summary", "Reasoning"), place);
  text.before(details);
  return place;
};

async function answer(text, place, signal) {
  const [path, asked] = question(text);
  const began = performance.now();
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(asked),
    signal,
  });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new Error(told?.error?.message ?? `${response.status} ${response.statusText}`);
  }
  const said = { text: "", first: null, usage: null, reason: null, began };
  let thinking = null;
  try {
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      said.usage = event.usage ?? said.usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      said.reason = choice.finish_reason ?? said.reason;
      const thought = choice.delta?.reasoning_content;
      const piece = choice.delta ? choice.delta.content : choice.text;
      if ((thought || piece) && said.first === null) said.first = performance.now() - began;
      if (thought) {
        thinking ??= thoughts(place);
        thinking.append(thought);
      }
      if (piece) {
        said.text += piece;
        place.append(piece);
      }
      toEnd();
    }
  } catch (why) {
    // What was said before it was stopped was said.
    if (why.name !== "AbortError") throw why;
    said.reason = "stopped";
  }
  return said;
}

/** How it went, in one line. */
const account = (said) => {
  const parts = [];
  if (said.usage) parts.push(`${said.usage.completion_tokens} tokens`);
  if (said.first !== null) parts.push(`first after ${said.first.toFixed(0)} ms`);
  const seconds = (performance.now() - said.began - (said.first ?? 0)) / 1000;
  const more = (said.usage?.completion_tokens ?? 0) - 1;
  if (more > 0 && seconds > 0) parts.push(`${(more / seconds).toFixed(1)} tokens/s`);
  if (said.reason) parts.push(said.reason);
  return `Answer complete: ${parts.join(", ")}`;
};

const busy = (is) => {
  $("send").disabled = is;
  $("stop").disabled = !is;
  $("log").setAttribute("aria-busy", String(is));
};

async function send() {
  const text = $("prompt").value;
  if (!text.trim() || answering) return;
  const stop = new AbortController();
  answering = stop;
  busy(true);
  $("told").textContent = "";
  $("prompt").value = "";
  entry("user").textContent = text;
  messages.push({ role: "user", content: text });
  const mine = messages;
  const place = entry("assistant");
  toEnd();
  try {
    const said = await answer(text, place, stop.signal);
    mine.push({ role: "assistant", content: said.text });
    $("told").textContent = account(said);
  } catch (why) {
    // The question was not answered: it can be asked again.
    mine.pop();
    const stopped = why.name === "AbortError";
    place.classList.toggle("error", !stopped);
    place.textContent = stopped ? "Stopped." : why.message;
    $("told").textContent = place.textContent;
    if (messages === mine && !$("prompt").value) $("prompt").value = text;
  } finally {
    answering = null;
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
  if (event.key === "Escape") answering?.abort();
});
$("stop").addEventListener("click", () => answering?.abort());
$("clear").addEventListener("click", () => {
  answering?.abort();
  messages = [];
  $("log").replaceChildren();
  $("told").textContent = "";
  $("prompt").focus();
});

// ---- Engine

/** Tokens a second, one for each look. */
const rates = [];
const KEPT = 60;

const ms = (value) => (value === null || value === undefined ? "-" : value.toFixed(value < 10 ? 1 : 0));

const spread = (row, told) => {
  const cells = $(row).querySelectorAll("td");
  [told.p50, told.p90, told.p99].forEach((value, at) => {
    cells[at].textContent = ms(value);
  });
};

const bar = (kv) => {
  const part = (blocks) => (kv.total ? (100 * blocks) / kv.total : 0);
  const held = Math.min(kv.total, Math.max(kv.used, kv.cached));
  $("kv-used").setAttribute("width", part(kv.used));
  $("kv-cached").setAttribute("width", part(held));
  const hits = kv.hit_rate === null ? "" : `, ${(100 * kv.hit_rate).toFixed(0)}% of prompts found in the cache`;
  $("kv-text").textContent =
    `${kv.used} of ${kv.total} used (${kv.block_size} tokens each), ${kv.cached} can be found again${hits}`;
};

const spark = (rate) => {
  rates.push(rate);
  if (rates.length > KEPT) rates.shift();
  const most = Math.max(1, ...rates);
  const points = rates.map((value, at) => `${at},${(19.5 - (19 * value) / most).toFixed(2)}`);
  $("spark-line").setAttribute("points", points.join(" "));
};

const show = (state) => {
  $("model").textContent = state.model;
  $("life").textContent = state.state;
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

/** Tokens that were generated up to the last look, and when that was. */
let last = null;

async function look() {
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
    $("life").textContent = "unreachable";
    $("lost").hidden = false;
  }
}

// One look after the other: a server that is slow to answer is not asked more often for it.
const watch = async () => {
  await look();
  setTimeout(watch, 1000);
};
watch();
