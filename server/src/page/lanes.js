// The page of lanes: a question to the ensemble over the public API, and the state of its lanes once a second. Text from
// models and servers is only ever set as text, never as HTML. `common.js` comes before it.
"use strict";

// ---- A question

/** AbortController of the response in flight; null without one. */
let inFlight = null;

/** Path and body of a request: a chat or, for models without a chat template, a completion. */
const requestFor = (text, chat) => {
  const body = { stream: true };
  const most = $("max-tokens").valueAsNumber;
  if (!Number.isNaN(most)) body.max_tokens = most;
  if ($("specialist").value) body.specialist = $("specialist").value;
  const intent = $("intent").value.trim();
  if (intent) body.intent = intent;
  if (!chat) return ["v1/completions", { ...body, prompt: text }];
  return ["v1/chat/completions", { ...body, messages: [{ role: "user", content: text }] }];
};

const post = async (text, chat, signal) => {
  const [path, body] = requestFor(text, chat);
  const response = await request(path, body, signal);
  if (response.ok) return response;
  const failure = (await response.json().catch(() => null))?.error;
  if (chat && failure?.code === "no_chat_template") return post(text, false, signal);
  throw new Error(failure?.message ?? `${response.status} ${response.statusText}`);
};

async function ask(text, signal) {
  const response = await post(text, true, signal);
  $("answered").textContent = response.headers.get("x-strata-specialist") ?? "-";
  $("why").textContent = response.headers.get("x-strata-route") ?? "-";
  $("route").hidden = false;
  $("response").hidden = false;
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    const delta = choice?.delta ? (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "") : choice?.text;
    if (delta) $("output").append(delta);
  }
}

const busy = (is) => {
  $("send").disabled = is;
  $("stop").disabled = !is;
};

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = $("prompt").value;
  if (!text.trim() || inFlight) return;
  inFlight = new AbortController();
  busy(true);
  $("status").textContent = "";
  $("output").textContent = "";
  $("route").hidden = true;
  $("response").hidden = true;
  try {
    await ask(text, inFlight.signal);
    $("status").textContent = "Response complete";
  } catch (why) {
    $("status").textContent = why.name === "AbortError" ? "Stopped" : `Error: ${why.message}`;
  }
  inFlight = null;
  busy(false);
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});

$("stop").addEventListener("click", () => inFlight?.abort());

// ---- Lanes

const percent = (value) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)}%`);
const spread = ({ p50, p95, p99 }) => `${ms(p50)} / ${ms(p95)} / ${ms(p99)}`;

/** A cell with a measured value and its target; `missed` if the objective is not met. */
const against = (text, objective, format) => {
  const target = objective.target === null ? "" : ` [${format(objective.target)}]`;
  return make("td", text + target, objective.met === false ? "missed" : "");
};

const rowOf = (name, cells) => {
  const row = make("tr");
  const head = make("th", name);
  head.scope = "row";
  row.append(head, ...cells);
  return row;
};

/** State of the breaker that is in force, and whether an operator forces it. */
const breakerOf = ({ breaker, role }) => {
  const forced = breaker.mode === "auto" ? "" : ", forced";
  return make("td", breaker.state + forced, role === "shadow_only" ? "missed" : "");
};

const laneRow = (lane) => {
  const routes = Object.entries(lane.routes).filter(([, count]) => count > 0);
  const rate = lane.breaker.pass_rate;
  return rowOf(lane.lane, [
    make("td", lane.description, "about"),
    make("td", lane.model),
    make("td", `${lane.engines} of ${lane.replicas}`, lane.engines < lane.replicas ? "missed" : ""),
    make("td", lane.running),
    make("td", lane.waiting),
    make("td", percent(lane.kv_usage)),
    breakerOf(lane),
    make("td", rate === null ? "-" : `${percent(rate)} of ${lane.breaker.samples}`),
    make("td", lane.fallback ?? "-"),
    make("td", lane.priority_floor ?? "-"),
    make("td", routes.map(([by, count]) => `${by} ${count}`).join(", ") || "-", "routes"),
  ]);
};

const sloRow = ({ lane, slo }) => {
  const { ttft, itl, compile_pass: compile } = slo.objectives;
  return rowOf(lane, [
    against(spread(slo.ttft_ms), ttft, ms),
    against(spread(slo.itl_ms), itl, ms),
    make("td", ms(slo.admission_to_first_token_ms.p95)),
    against(`${percent(slo.compile_pass.fraction)} of ${slo.compile_pass.total}`, compile, percent),
    make("td", `${percent(slo.preempted_once.fraction)} of ${slo.preempted_once.total}`),
  ]);
};

const recentRow = (one) => {
  const row = make("tr");
  row.append(
    make("td", one.time.slice(11, 19)),
    make("td", one.specialist),
    make("td", one.why, "why"),
    make("td", one.status),
    make("td", one.completion_tokens),
    make("td", ms(one.ttft_ms)),
    make("td", ms(one.ms)),
  );
  return row;
};

/** Adds the specialists to the form's list, and keeps the choice. */
const offer = (lanes) => {
  const names = lanes.map((lane) => lane.lane);
  const known = [...$("specialist").options].slice(1).map((option) => option.value);
  if (names.join() === known.join()) return;
  const options = names.map((name) => {
    const option = make("option", name);
    option.value = name;
    return option;
  });
  $("specialist").replaceChildren($("specialist").options[0], ...options);
};

const show = (view) => {
  $("ensemble").textContent = view.ensemble;
  $("state").textContent = "connected";
  $("version").textContent = view.config.version;
  $("loaded").textContent = view.config.loaded;
  $("level").textContent = view.escalation.level;
  $("levels").textContent = view.escalation.max_level;
  $("pinned").textContent = view.escalation.pinned === null ? "" : ", held by an operator";
  $("lanes").replaceChildren(...view.lanes.map(laneRow));
  $("slo").replaceChildren(...view.lanes.map(sloRow));
  $("recent").replaceChildren(...view.recent.map(recentRow));
  offer(view.lanes);
};

const lost = (state, why) => {
  $("state").textContent = state;
  $("lost").textContent = why;
  $("lost").hidden = false;
};

async function poll() {
  if (document.hidden) return;
  try {
    const response = await fetch("strata/ensemble", { headers: headers(), cache: "no-store" });
    if (!response.ok) {
      const failure = await response.json().catch(() => null);
      return lost("no lanes", failure?.error?.message ?? response.statusText);
    }
    show(await response.json());
    $("lost").hidden = true;
  } catch {
    lost("unreachable", "The server does not respond.");
  }
}

watch(poll);
