// What the pages have in common.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (name, text, kind) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};

const headers = () => {
  const key = $("key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
};

/** Sends a request with a body of JSON. */
const request = (path, body, signal) =>
  fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal,
  });

/** The events of a stream of server-sent events, as they arrive. */
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

const ms = (value) => (value === null || value === undefined ? "-" : value.toFixed(value < 10 ? 1 : 0));

/** Polls once a second, one poll after the other: a slow server is not polled more often. */
const watch = async (poll) => {
  await poll();
  setTimeout(watch, 1000, poll);
};
