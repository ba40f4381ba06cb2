// The page of lanes in headless Chromium, at the URL that is the first argument: a question, who served it and why, the
// state of the lanes; without requests to any other host.

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

try {
  const page = await browser.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(url) && !to.startsWith("data:")) wrong.push(`requested ${to}`);
  });
  const text = (selector) => page.locator(selector).textContent();
  const until = (what) => page.waitForFunction(what, null, { timeout: 60_000 });
  const complete = () => until(() => document.getElementById("status").textContent === "Response complete");

  await page.goto(`${url}/lanes`);
  await until(() => document.querySelectorAll("#lanes tr").length === 2);
  assert.equal(await text("#ensemble"), "pair");
  assert.equal(await text("#version"), "1");
  const names = () => page.locator("#lanes th").allTextContents();
  assert.deepEqual(await names(), ["one", "two"]);

  assert.ok(!(await page.locator("#route").isVisible()), "no question, no specialist");

  // By keyboard; the router chooses, and the models have no chat template.
  await page.locator("#max-tokens").fill("4");
  await page.locator("#prompt").focus();
  await page.keyboard.type("Hello <b>you</b>");
  await page.keyboard.press("Enter");
  await complete();
  assert.equal(await text("#answered"), "two");
  assert.match(await text("#why"), /no rule/);
  assert.equal(await page.locator("#output b").count(), 0, "text is no HTML");

  // The client's choice.
  await page.locator("#specialist").selectOption("one");
  await page.locator("#send").click();
  await until(() => document.getElementById("answered").textContent === "one");
  await complete();
  assert.match(await text("#why"), /named the specialist/);
  await until(() => document.querySelectorAll("#recent tr").length >= 2);
  assert.ok(!(await text("#recent")).includes("Hello"), "no text of a request");

  // An error of the server is shown.
  await page.locator("#intent").fill("cooking");
  await page.locator("#specialist").selectOption("");
  await page.locator("#send").click();
  await until(() => document.getElementById("status").textContent.startsWith("Error"));
  assert.match(await text("#status"), /intent/);

  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, textarea")]
      .filter((one) => !(one.labels?.length || one.textContent.trim()))
      .map((one) => one.outerHTML),
  );
  assert.deepEqual(nameless, []);
  await page.setViewportSize({ width: 360, height: 640 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 360));
  assert.deepEqual(wrong, []);
} finally {
  await browser.close();
}
