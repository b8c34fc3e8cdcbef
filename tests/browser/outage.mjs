// Answers an outage from the console alone, by clicking, with a screenshot of each step.
//
//     tests/measure/outage.py target/release/forge-bridge --hold
//     node tests/browser/outage.mjs "$(tests/runtimes/install.py browser)" 'LINE' FOLDER
//
// LINE is the line of JSON that the first command prints, FOLDER is outside of the checkout.
// A measurement, not a check in CI: the screenshots are looked at.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, line, folder] = process.argv.slice(2);
const { url, token, adapter, down, refusing, since, pending, waiting, failed, older, control } = JSON.parse(line);
const { chromium } = createRequire(path.join(modules, "package.json"))("playwright-core");
mkdirSync(folder, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, colorScheme: "dark" });
page.setDefaultTimeout(20_000);
const main = page.getByRole("main");
const number = (value) => value.toLocaleString("en-US");
const host = (address) => new URL(address).host;
const open = async (name) => {
  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name, exact: true }).click();
  await main.getByRole("heading", { level: 1, name }).waitFor();
};
const figure = (name, value) => main.locator("a.figure").filter({ hasText: name }).filter({ hasText: value === undefined ? "" : new RegExp(`^${number(value)}\\D`) });
const trouble = (address) => main.getByRole("table", { name: "By destination" }).getByRole("row").filter({ hasText: host(address) });

let steps = 0;
async function step(name, action) {
  const began = Date.now();
  const file = (more) => path.join(folder, `${String(steps).padStart(2, "0")}${more}.png`);
  steps += 1;
  try {
    await action();
  } catch (error) {
    await page.screenshot({ path: file("-failed") });
    console.error(`failed ${name}\n${error.stack}`);
    process.exit(1);
  }
  console.log(`ok ${name} (${Date.now() - began} ms)`);
  await page.waitForTimeout(300);
  await page.screenshot({ path: file("") });
  if (![1, 3].includes(steps)) return;
  await page.emulateMedia({ colorScheme: "light" });
  await page.screenshot({ path: file("-light") });
  await page.setViewportSize({ width: 390, height: 844 });
  await page.waitForTimeout(300);
  await page.screenshot({ path: file("-phone") });
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.emulateMedia({ colorScheme: "dark" });
}

await step("Now shows what waits", async () => {
  await page.goto(url);
  await page.getByLabel("Bearer token").fill(token);
  await page.getByRole("button", { name: "Continue" }).click();
  await figure("callbacks pending", pending).waitFor();
  await figure("dead letters", failed + older).waitFor();
  await figure("queued", waiting).waitFor();
  await main.getByRole("list", { name: "Adapters" }).getByRole("listitem").filter({ hasText: adapter }).getByText("offline", { exact: true }).waitFor();
});

await step("pending callbacks: the receiver refuses connections, its circuit is open", async () => {
  await figure("callbacks pending").click();
  await trouble(down).getByText("circuit open, next try").waitFor();
  await trouble(down).getByText("Connection refused").first().waitFor();
});

await step("dead letters: the other receiver answers 422", async () => {
  await page.getByLabel("State").selectOption("dead");
  await trouble(refusing).getByText("HTTP 422").waitFor();
  await main.getByRole("table", { name: "Deliveries" }).getByText("HTTP 422").first().waitFor();
});

await step("one dead letter: the receiver's own words", async () => {
  await main.getByRole("table", { name: "Deliveries" }).getByRole("link").first().click();
  await main.getByRole("list", { name: "Attempts" }).getByText("unknown member: usage").waitFor();
});

await step("queued dispatches: they wait for the adapter", async () => {
  await open("Now");
  await figure("queued").click();
  await main.getByRole("table", { name: "Dispatches" }).getByRole("row").filter({ hasText: adapter }).first().getByText("adapter offline").waitFor();
});

await step("one queued dispatch: the reason in full", async () => {
  await main.getByRole("table", { name: "Dispatches" }).getByRole("link").first().click();
  await main.getByText(new RegExp(`${adapter} is offline: quarantined`)).waitFor();
});

await step("the adapter: why it is offline, and what to do", async () => {
  await open("Adapters");
  const card = main.getByRole("region", { name: adapter });
  await card.getByText(/In quarantine since/).waitFor();
  await card.getByText(/ended with exit code 1/).first().waitFor();
});

await fetch(control, { method: "POST" });
console.log("(the receivers and the program are repaired)");

await step("the adapter is reloaded, and its dispatches run", async () => {
  await page.getByRole("button", { name: `Reload ${adapter}` }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Reload it" }).click();
  await main.getByText("Reloaded.").waitFor();
  await main.getByRole("region", { name: adapter }).getByText("healthy", { exact: true }).first().waitFor();
});

await step("the receiver is tried now", async () => {
  await open("Deliveries");
  await page.getByRole("button", { name: `Try now: ${host(down)}` }).click();
  await page.getByText("is sent now.").waitFor();
  await trouble(down).waitFor({ state: "detached" });
});

await step("only what failed since then is sent again", async () => {
  await trouble(refusing).getByRole("link", { name: host(refusing) }).click();
  const at = new Date(since);
  await page.getByLabel("Finished since").fill(new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16));
  await page.getByRole("button", { name: `Send all dead letters again to ${host(refusing)}` }).click();
  await page.getByRole("dialog").getByText(`${failed} dead letters whose dispatch finished since`).waitFor();
  await page.screenshot({ path: path.join(folder, "dialog.png") });
  await page.getByRole("dialog").getByRole("button", { name: "Send them" }).click();
  await page.getByText(`${failed} will be sent again.`).waitFor();
});

await step("nothing waits, and only the older dead letters are left", async () => {
  await open("Now");
  await figure("callbacks pending", 0).waitFor();
  await figure("dead letters", older).waitFor();
  await figure("queued", 0).waitFor();
});

await step("no dispatch failed or waits, and no callback but those is missing", async () => {
  await open("Dispatches");
  for (const state of ["queued", "running", "error"]) {
    await page.getByLabel("State").selectOption(state);
    await main.getByText("No matches.").waitFor();
  }
  await page.getByLabel("State").selectOption("");
  const callback = page.getByRole("combobox", { name: "Callback" });
  await callback.selectOption("pending");
  await main.getByText("No matches.").waitFor();
  await callback.selectOption("dead");
  await main.getByRole("table", { name: "Dispatches" }).getByRole("link", { name: "older-0", exact: true }).waitFor();
  assert.equal(await main.getByRole("table", { name: "Dispatches" }).getByRole("link").count(), older);
});

const counts = await (await fetch(control)).json();
console.log(JSON.stringify(counts));
assert.deepEqual([counts.lost, counts.doubled, counts.older], [0, 0, 0]);
await browser.close();
