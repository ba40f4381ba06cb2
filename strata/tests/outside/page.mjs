// The page at `/` in headless Chromium, at the URL that is the first argument: by keyboard alone, in both themes, without
// requests to any other host.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.STRATA_NODE_MODULES, "anchor.js"));
const { chromium } = require("playwright-core");

const url = process.argv[2];
const browser = await chromium.launch({
  executablePath: process.env.STRATA_CHROMIUM,
  args: ["--no-sandbox"],
});

/** Opens a page, and collects its errors and its requests to other hosts. */
const watched = async (context) => {
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") wrong.push(message.text());
  });
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(url) && !to.startsWith("data:")) wrong.push(`requested ${to}`);
  });
  return { page, wrong };
};

const text = (page, selector) => page.locator(selector).textContent();
/** The conversation's entries: role and text. */
const entries = (page) =>
  page.locator("#log article").evaluateAll((all) =>
    all.map((one) => [one.dataset.role, one.querySelector("p").textContent]),
  );
const until = (page, what) => page.waitForFunction(what, null, { timeout: 60_000 });
const responded = (page) =>
  until(page, () => document.getElementById("status").textContent.startsWith("Response complete"));
const setting = async (page, id, value) => {
  if (!(await page.locator("#settings").evaluate((details) => details.open))) {
    await page.locator("#settings summary").focus();
    await page.keyboard.press("Enter");
  }
  await page.locator(id).fill(value);
};

try {
  const context = await browser.newContext({ colorScheme: "light" });
  const { page, wrong } = await watched(context);
  const response = await page.goto(`${url}/`);
  assert.match(response.headers()["content-security-policy"], /default-src 'none'/);
  await until(page, () => document.getElementById("state").textContent === "serving");
  assert.equal(await text(page, "#model"), "tiny");

  // By keyboard: the cursor is where a message goes, Enter sends, and afterwards it is there again.
  await setting(page, "#max-tokens", "12");
  await page.locator("#prompt").focus();
  await page.keyboard.type("Hello <b>you</b>");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("there");
  await page.keyboard.press("Enter");
  await responded(page);
  let said = await entries(page);
  assert.deepEqual(said[0], ["user", "Hello <b>you</b>\nthere"]);
  assert.equal(said[1][0], "assistant");
  assert.equal(await page.locator("#log b").count(), 0, "text is no HTML");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");

  // The second request carries the conversation and the settings.
  await setting(page, "#system", "Be brief.");
  await setting(page, "#temperature", "0.5");
  await page.locator("#prompt").focus();
  const [request] = await Promise.all([
    page.waitForRequest((one) => one.method() === "POST"),
    page.keyboard.type("And now?").then(() => page.keyboard.press("Enter")),
  ]);
  const body = request.postDataJSON();
  assert.deepEqual(body.messages.map((one) => one.role), ["system", "user", "assistant", "user"]);
  assert.equal(body.temperature, 0.5);
  assert.equal(body.max_tokens, 12);
  await until(page, () => !document.getElementById("send").disabled);
  assert.equal((await entries(page)).length, 4);

  // The engine's panel shows it.
  await until(page, () => Number(document.getElementById("finished").textContent) >= 2);
  assert.match(await text(page, "#kv-text"), /\d+ of [1-9]\d* used/);
  await until(page, () => document.querySelector("#ttft td").textContent !== "-");

  // Escape stops a response.
  await page.locator("#clear").focus();
  await page.keyboard.press("Enter");
  assert.deepEqual(await entries(page), []);
  await setting(page, "#max-tokens", "100000");
  await page.locator("#mode").selectOption("text");
  // A tiny model is done before a key can be pressed, so the request is delayed until the key was pressed.
  let release;
  const pressed = new Promise((resolve) => { release = resolve; });
  await page.route("**/v1/completions", (route) => pressed.then(() => route.continue()).catch(() => {}));
  await page.locator("#prompt").focus();
  await page.keyboard.type("Once upon a time");
  await page.keyboard.press("Enter");
  await until(page, () => !document.getElementById("stop").disabled);
  await page.keyboard.press("Escape");
  await until(page, () => document.getElementById("stop").disabled);
  release();
  await page.unroute("**/v1/completions");
  await until(page, () => document.getElementById("running").textContent === "0");

  // An error shows the server's message, and the prompt is kept. The browser logs the status as well.
  assert.deepEqual(wrong, []);
  await setting(page, "#max-tokens", "0");
  await page.locator("#max-tokens").evaluate((field) => { field.value = "-1"; });
  await page.locator("#prompt").fill("Again");
  await page.keyboard.press("Enter");
  await page.locator("#log .error").waitFor();
  assert.match(await text(page, "#status"), /max_tokens/);
  assert.equal(await page.locator("#prompt").inputValue(), "Again");

  // Everything that can be used has a name and can be reached with Tab.
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, textarea")]
      .filter((one) => !(one.labels?.length || one.textContent.trim()))
      .map((one) => one.outerHTML),
  );
  assert.deepEqual(nameless, []);
  const reached = new Set();
  await page.locator("body").evaluate(() => document.activeElement.blur());
  for (let i = 0; i < 30; i += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id));
  }
  for (const id of ["prompt", "send", "clear", "system", "temperature", "key", "log"]) {
    assert.ok(reached.has(id), `Tab does not reach ${id}`);
  }

  // Light and dark theme, each with enough contrast for small text.
  const contrast = (one) =>
    one.evaluate(() => {
      const light = (color) => {
        const channel = (value) => {
          const part = value / 255;
          return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        };
        const [red, green, blue] = color.match(/[\d.]+/g).map(Number).map(channel);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      };
      const of = (element, back) => {
        const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(back).backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      };
      const card = document.querySelector("section");
      const send = document.getElementById("send");
      const all = [...document.querySelectorAll("h2, dt, dd, .note, caption")].map((element) => of(element, card));
      return { back: getComputedStyle(document.body).backgroundColor, least: Math.min(...all, of(send, send)) };
    });
  await until(page, () => !document.getElementById("send").disabled);
  const day = await contrast(page);
  await page.emulateMedia({ colorScheme: "dark" });
  const night = await contrast(page);
  assert.notEqual(day.back, night.back);
  assert.ok(Math.min(day.least, night.least) >= 4.5, JSON.stringify([day, night]));

  // On a narrow screen nothing overflows.
  await page.setViewportSize({ width: 360, height: 640 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 360));
  assert.ok(!wrong.some((one) => one.startsWith("requested")), wrong.join("\n"));
} finally {
  await browser.close();
}
