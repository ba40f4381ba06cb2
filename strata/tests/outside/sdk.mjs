// OpenAI's own JavaScript client against a server: `node sdk.mjs URL KEYED_URL BUSY_URL [SPECIALIST ..]`.
// KEYED_URL wants the key `secret`. BUSY_URL runs one request at a time and lets one wait. With specialists, all three
// are ensembles of them.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

// Modules lie where the test says, not above this file.
const require = createRequire(path.join(process.env.STRATA_NODE_MODULES, "here.js"));
const { OpenAI, BadRequestError, NotFoundError, RateLimitError, AuthenticationError } = require("openai");

const [plain, keyed, busy] = process.argv.slice(2, 5).map((url) => `${url}/v1`);
const model = "tiny";
const specialists = process.argv.slice(5);
const options = { apiKey: "any", maxRetries: 0, timeout: 120_000 };
const client = new OpenAI({ baseURL: plain, ...options });
const messages = [{ role: "user", content: "Where is the sea?" }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: {
        type: "object",
        properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];
const said = (text) => ({ structured_outputs: { choice: [text] } });

async function models() {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  assert.deepEqual(names, [model, ...specialists]);
}

async function completions() {
  const asked = { model, prompt: "Once upon", max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(asked);
  let text = "";
  let usage;
  const stream = await client.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    for (const choice of chunk.choices) text += choice.text;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].text);
  assert.deepEqual(usage, whole.usage);
}

async function chats() {
  const asked = { model, messages, max_completion_tokens: 9, temperature: 0 };
  const whole = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2 });
  assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);
  const runner = client.chat.completions.stream(asked);
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
}

async function schemas() {
  const schema = {
    type: "object",
    properties: { city: { enum: ["Oslo", "Rome"] }, warm: { type: "boolean" } },
    required: ["city", "warm"],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.create({
    model,
    messages,
    max_completion_tokens: 120,
    response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema } },
  });
  const place = JSON.parse(answer.choices[0].message.content);
  assert.ok(["Oslo", "Rome"].includes(place.city) && typeof place.warm === "boolean");
}

async function calls() {
  const asked = { model, messages, tools, max_completion_tokens: 160 };
  const required = await client.chat.completions.create({ ...asked, tool_choice: "required" });
  assert.equal(required.choices[0].message.tool_calls[0].function.name, "weather");
  const text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>';
  const runner = client.chat.completions.stream({ ...asked, ...said(text) });
  const final = (await runner.finalChatCompletion()).choices[0];
  assert.equal(final.finish_reason, "tool_calls");
  assert.deepEqual(JSON.parse(final.message.tool_calls[0].function.arguments), { city: "Rome" });
}

async function errors() {
  const chat = (more) => client.chat.completions.create({ model, messages, ...more });
  await assert.rejects(chat({ model: "other" }), (error) => {
    return error instanceof NotFoundError && error.code === "model_not_found";
  });
  await assert.rejects(chat({ temperature: -1 }), (error) => {
    return error instanceof BadRequestError && error.param === "temperature";
  });
  await assert.rejects(client.responses.create({ model, input: "x" }), NotFoundError);
  await assert.rejects(client.embeddings.create({ model, input: "x" }), NotFoundError);
  const stranger = new OpenAI({ baseURL: keyed, ...options, apiKey: "wrong" });
  await assert.rejects(stranger.models.list(), AuthenticationError);
  const friend = new OpenAI({ baseURL: keyed, ...options, apiKey: "secret" });
  assert.equal((await friend.models.list()).data.length, 1 + specialists.length);
}

async function tooMany() {
  const crowded = new OpenAI({ baseURL: busy, ...options });
  const ask = { model, prompt: "x", max_tokens: 400, ignore_eos: true };
  const outcomes = await Promise.allSettled(Array.from({ length: 12 }, () => crowded.completions.create(ask)));
  const refused = outcomes.filter((one) => one.status === "rejected").map((one) => one.reason);
  assert.ok(refused.length > 0 && refused.length < 12, `${refused.length} were refused`);
  for (const error of refused) {
    assert.ok(error instanceof RateLimitError, `${error}`);
    const wait = error.headers.get("retry-after");
    assert.ok(/^[0-9]+$/.test(wait) && Number(wait) >= 1 && Number(wait) <= 120, wait);
  }
  const patient = new OpenAI({ baseURL: busy, ...options, maxRetries: 20 });
  await Promise.all(Array.from({ length: 4 }, () => patient.completions.create(ask)));
}

async function givenUp() {
  const stream = await client.completions.create({ model, prompt: "x", max_tokens: 200, stream: true });
  for await (const _ of stream) break;
  assert.ok((await client.completions.create({ model, prompt: "y", max_tokens: 2 })).choices.length);
}

for (const step of [models, completions, chats, schemas, calls, errors, tooMany, givenUp]) {
  await step();
  console.log(`ok: ${step.name}`);
}
