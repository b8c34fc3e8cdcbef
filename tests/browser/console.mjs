// Tests the console in a browser: every page and every action, in light and dark, with an accessibility checker.
// Arguments: the folder with playwright-core and axe-core, the URL of a bridge with the echo adapter, its token, the URL
// of a receiver that answers 410, and after a request with a status as its query that status, the URL of a bridge whose
// echo adapter is in quarantine, the URL of a bridge with the adapters echo and manager (tests/fixtures/managing), and
// the URLs of a bridge whose runs use the echo adapter, and of a repository that it allows.
// Writes screenshots to the folder named by `SCREENSHOTS`, if set.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { runSteps } from "./runs.mjs";
import { runtimeSteps } from "./runtimes.mjs";

const [modules, url, token, receiver, shaky, managing, runs, repository] = process.argv.slice(2);
const require = createRequire(path.join(modules, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core"), "utf8");

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});
const problems = [];
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(20_000);
page.on("pageerror", (error) => problems.push(error.message));
page.on("console", (message) => {
  // Refused tokens are answered 401, which browsers report.
  if (message.type() === "error" && !message.text().includes("401")) problems.push(message.text());
});

const task = `browser-${Date.now()}`;
const main = page.getByRole("main");

async function step(name, action) {
  try {
    await action();
    console.log(`ok ${name}`);
  } catch (error) {
    await page.screenshot({ path: path.join(process.env.SCREENSHOTS ?? "/tmp", "console-failure.png") });
    console.error(`failed ${name}\n${error.stack}\nproblems of the page: ${problems.join("\n")}`);
    await browser.close();
    process.exit(1);
  }
}

async function open(name) {
  await page.getByRole("navigation", { name: "Pages" }).first().getByRole("link", { name, exact: true }).click();
  await main.getByRole("heading", { level: 1, name }).waitFor();
}

/** Waits until the focused element has this property value: focus moves after the click or key. */
async function focused(name, value) {
  await page.waitForFunction(([name, value]) => document.activeElement[name] === value, [name, value]);
}

/** Waits until a field has this value: a page is drawn after the click that opens it. */
async function holds(label, value) {
  const field = await page.getByLabel(label).and(page.locator("input, textarea, select")).elementHandle();
  await page.waitForFunction(([field, value]) => field.value === value, [field, value]);
}

async function send(id, model, callback, more) {
  await open("Try it");
  await page.getByLabel("Message").fill("It's a message");
  await page.getByLabel("Model").fill(model);
  await page.getByLabel("Task id").fill(id);
  await page.getByLabel("Callback URL").fill(callback ?? "");
  if (more) {
    await page.getByText("More", { exact: true }).click();
    await page.getByLabel("Other fields").fill(JSON.stringify(more));
  }
  await page.getByRole("button", { name: "Dispatch", exact: true }).click();
  await main.getByRole("heading", { level: 1, name: id }).waitFor();
}

/** Presses a button that asks for confirmation, and confirms. */
async function sure(name, yes) {
  await page.getByRole("button", { name, exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: yes }).click();
}

async function accessible(place) {
  // Evaluated, not added as a script element: the page's content security policy allows only its own scripts.
  const { violations } = await page.evaluate(`(() => { ${axe}; return axe.run({ resultTypes: ["violations"] }); })()`);
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ").slice(0, 400)}`);
  assert.deepEqual(found, [], place);
}

await step("a token is asked for, a wrong one refused, the right one kept", async () => {
  await page.goto(url);
  await page.getByLabel("Bearer token").fill("wrong");
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByText("The last token was refused.").waitFor();
  await page.getByLabel("Bearer token").fill(token);
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.getByText("live", { exact: true }).waitFor();
  await page.reload();
  await page.getByText("live", { exact: true }).waitFor();
  assert.equal(await page.getByRole("dialog").isVisible(), false);
});

await step("the curl command matches the form", async () => {
  await open("Try it");
  await page.getByLabel("Message").fill("It's");
  const line = await page.locator("section pre").innerText();
  assert.match(line, /"message": "It'\\''s"/);
  assert.match(line, /\$BRIDGE_TOKEN/);
  assert.ok(!line.includes(token));
});

await step("other fields are JSON, and part of the command", async () => {
  await main.getByText("More", { exact: true }).click();
  await page.getByLabel("Other fields").fill("{");
  await page.getByText("Not a JSON object yet.").waitFor();
  await page.getByLabel("Other fields").fill('{"priority": 7}');
  assert.match(await page.locator("section pre").innerText(), /"priority": 7/);
});

await step("a dispatch is followed from acceptance to its end", async () => {
  await send(`${task}-text`, "stream:5");
  await main.getByText("ok", { exact: true }).first().waitFor();
  const said = main.getByRole("list", { name: "Events of the dispatch" });
  await said.getByText("execution.completed").waitFor();
  assert.match(await said.locator("pre").first().innerText(), /message 1\n.*message 5/s);
  await main.getByText("No callback requested.").waitFor();
  assert.match(await main.getByLabel("Output", { exact: true }).innerText(), /message 5/);
  await main.getByText("No effect:").waitFor();
  const waterfall = main.getByRole("list", { name: "Waterfall of the dispatch" }).getByRole("listitem");
  for (const part of ["queued", "attempt on echo", "model"]) await waterfall.filter({ hasText: part }).first().waitFor();
});

await step("text and tool calls are shown", async () => {
  const more = { tools: [{ name: "search", inputSchema: { type: "object", properties: { query: { type: "string" } } } }] };
  await send(`${task}-tools`, "tools", undefined, more);
  await main.getByText("input_required", { exact: true }).first().waitFor();
  await main.getByRole("region", { name: "Result" }).getByText("search").waitFor();
});

await step("a refused dispatch names the invalid field", async () => {
  await open("Try it");
  await page.getByText("More", { exact: true }).click();
  await page.getByLabel("Other fields").fill('{"priority": 99}');
  await page.getByRole("button", { name: "Dispatch", exact: true }).click();
  await main.getByRole("alert").getByText("INVALID_REQUEST").waitFor();
  await main.getByRole("alert").getByText("priority").first().waitFor();
  await page.getByLabel("Other fields").fill("");
});

await step("a running dispatch is cancelled", async () => {
  await send(`${task}-slow`, "slow:60000");
  await main.getByText("running", { exact: true }).first().waitFor();
  await open("Now");
  await page.getByRole("table", { name: "Running" }).getByRole("link", { name: `${task}-slow` }).click();
  await main.getByText(/^runs for/).waitFor();
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Not now" }).click();
  await main.getByText("running", { exact: true }).first().waitFor();
  await sure("Cancel", "Cancel it");
  await main.getByText("cancelled", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Cancel", exact: true }).waitFor({ state: "detached" });
});

await step("a dead letter shows its reason, and is sent again", async () => {
  await fetch(`${receiver}?410`, { method: "POST" });
  await send(`${task}-dead`, "ok", receiver);
  await main.getByText("dead", { exact: true }).waitFor();
  await open("Deliveries");
  await page.getByLabel("State").selectOption("dead");
  const host = new URL(receiver).host;
  const trouble = page.getByRole("table", { name: "By destination" }).getByRole("row").filter({ hasText: host });
  await trouble.getByText("HTTP 410").waitFor();
  await fetch(`${receiver}?200`, { method: "POST" });
  await page.getByRole("button", { name: `Send again: ${task}-dead` }).click();
  await page.getByText("1 will be sent again.").waitFor();
  await page.getByLabel("State").selectOption("delivered");
  await page.getByRole("table", { name: "Deliveries" }).getByRole("link", { name: `${task}-dead` }).click();
  const attempts = main.getByRole("list", { name: "Attempts" });
  await attempts.getByText("HTTP 410").waitFor();
  await attempts.getByText("HTTP 200").waitFor();
});

await step("dead letters are sent again together, to one receiver and since a time", async () => {
  await fetch(`${receiver}?410`, { method: "POST" });
  for (const name of ["many-1", "many-2"]) {
    await send(`${task}-${name}`, "ok", receiver);
    await main.getByText("dead", { exact: true }).waitFor();
  }
  const host = new URL(receiver).host;
  await open("Deliveries");
  await page.getByRole("table", { name: "By destination" }).getByRole("link", { name: host }).click();
  await holds("Host", host);
  await page.getByLabel("Finished since").fill("2999-01-01T00:00");
  await sure(`Send all dead letters again to ${host}`, "Send them");
  await page.getByText("0 will be sent again.").waitFor();
  await fetch(`${receiver}?200`, { method: "POST" });
  await sure(`Send all again: ${host}`, "Send them");
  await page.getByText("2 will be sent again.").waitFor();
  await page.getByText("No dead letters.").or(page.getByText("No matches.")).waitFor();
});

await step("a receiver whose circuit is open is tried now", async () => {
  await fetch(`${receiver}?503`, { method: "POST" });
  // Another origin, without the successes of the other steps.
  const down = receiver.replace("127.0.0.1", "localhost");
  await page.evaluate(async ([id, token, callbackUrl]) => {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    for (let number = 0; number < 10; number += 1) {
      const body = JSON.stringify({ taskId: `${id}-${number}`, agentId: "console", message: "m", model: "ok", callbackUrl });
      await fetch("/api/v2/dispatch", { method: "POST", headers, body });
    }
  }, [`${task}-down`, token, down]);
  await open("Deliveries");
  const host = new URL(down).host;
  const trouble = page.getByRole("table", { name: "By destination" }).getByRole("row").filter({ hasText: host });
  await trouble.getByText("circuit open, next try").waitFor();
  await trouble.getByRole("cell", { name: /^[1-9]\d*$/ }).first().waitFor();
  await page.getByRole("table", { name: "Deliveries" }).getByText("circuit open, next try").first().waitFor();
  await fetch(`${receiver}?200`, { method: "POST" });
  await page.getByRole("button", { name: `Try now: ${host}` }).click();
  await page.getByText("is sent now.").waitFor();
  await trouble.waitFor({ state: "detached" });
});

await step("dispatches are filtered and found", async () => {
  await open("Dispatches");
  await page.getByLabel("State").selectOption("error");
  const table = page.getByRole("table", { name: "Dispatches" });
  await table.getByRole("link", { name: `${task}-slow` }).waitFor();
  await table.getByRole("link", { name: `${task}-text` }).waitFor({ state: "detached" });
  await page.getByLabel("State").selectOption("");
  await page.getByRole("combobox", { name: "Callback" }).selectOption("delivered");
  await table.getByRole("row").filter({ hasText: `${task}-dead` }).getByText("delivered", { exact: true }).waitFor();
  await table.getByRole("link", { name: `${task}-slow` }).waitFor({ state: "detached" });
  await page.getByRole("combobox", { name: "Callback" }).selectOption("");
  await page.getByRole("combobox", { name: "Adapter" }).selectOption("echo");
  await page.getByLabel("Task or dispatch id").fill(`${task}-sl`);
  await page.getByRole("button", { name: "Find" }).click();
  await main.getByText("Tasks that begin with").waitFor();
  await table.getByRole("link", { name: `${task}-slow` }).waitFor();
  await table.getByRole("link", { name: `${task}-text` }).waitFor({ state: "detached" });
  await page.getByLabel("Task or dispatch id").fill(`${task}-text`);
  await page.getByLabel("Task or dispatch id").press("Enter");
  await main.getByRole("heading", { level: 1, name: `${task}-text` }).waitFor();
  await main.getByRole("link", { name: "console", exact: true }).click();
  await main.getByRole("heading", { level: 1, name: "Dispatches" }).waitFor();
  await holds("Agent", "console");
  await page.getByLabel("Accepted").selectOption("1");
  await page.getByRole("textbox", { name: "Run" }).fill("none");
  // Unfinished input stays while the list below is reloaded.
  await page.evaluate(async ([id, token]) => {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    const body = JSON.stringify({ taskId: id, agentId: "console", message: "m", model: "ok", callbackUrl: null });
    await fetch("/api/v2/dispatch", { method: "POST", headers, body });
  }, [`${task}-typed`, token]);
  await table.getByRole("link", { name: `${task}-typed` }).waitFor();
  await page.getByRole("textbox", { name: "Run" }).press("Tab");
  await page.getByText("No matches.").waitFor();
  await page.getByRole("link", { name: "Show all" }).click();
  await table.getByRole("link", { name: `${task}-slow` }).waitFor();
});

await step("a list pages to older ones and back", async () => {
  await page.evaluate(async ([task, token]) => {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    const send = (id) => fetch("/api/v2/dispatch", { method: "POST", headers, body: JSON.stringify({ taskId: id, agentId: `${task}-many`, message: "m", model: "ok", callbackUrl: null }) });
    await Promise.all(Array.from({ length: 51 }, (_, index) => send(`${task}-page-${index}`)));
  }, [task, token]);
  await page.goto(`${url}/#/dispatches?agentId=${task}-many`);
  const rows = page.getByRole("table", { name: "Dispatches" }).getByRole("row");
  await page.getByRole("link", { name: "Older" }).click();
  await rows.nth(1).waitFor();
  await rows.nth(2).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "Newest" }).click();
  await rows.nth(50).waitFor();
});

await step("an address that is none is a page that says so", async () => {
  for (const address of ["#/dispatch/%E0%A4%A", "#/zebra"]) {
    await page.goto("about:blank");
    await page.goto(`${url}/${address}`);
    await main.getByRole("heading", { name: "Not found" }).waitFor();
    await main.getByRole("link", { name: "Show the bridge" }).waitFor();
  }
});

await step("an unknown dispatch is a clear error", async () => {
  await page.goto(`${url}/#/dispatch/unknown`);
  await main.getByRole("alert").getByText("NOT_FOUND").waitFor();
});

await step("an unknown dispatch is shown with those whose names begin like it", async () => {
  await page.goto(`${url}/#/dispatch/${task}-text-2/more`);
  await main.getByRole("alert").getByText("NOT_FOUND").waitFor();
  await page.getByRole("table", { name: "Matches" }).getByRole("link", { name: `${task}-text` }).click();
  await main.getByRole("heading", { level: 1, name: `${task}-text` }).waitFor();
});

await step("dispatches with the same run id are one page, with their sums", async () => {
  await page.evaluate(async ([task, token]) => {
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    for (const [name, model] of [["plan", "usage:7"], ["build", "usage:5"], ["check", "fail:odd"]]) {
      const body = JSON.stringify({ taskId: `${task}-${name}`, agentId: "console", message: "m", model, runId: `${task}-run`, callbackUrl: null });
      await fetch("/api/v2/dispatch", { method: "POST", headers, body });
    }
  }, [task, token]);
  await open("Runs");
  await page.getByLabel("Run id of dispatches").fill(`${task}-run`);
  await page.getByLabel("Run id of dispatches").press("Enter");
  await main.getByRole("heading", { level: 1, name: `${task}-run` }).waitFor();
  await main.getByText("ended", { exact: true }).waitFor();
  const waterfall = main.getByRole("list", { name: "Waterfall of the run" }).getByRole("listitem");
  assert.equal(await waterfall.count(), 3);
  assert.match(await waterfall.nth(0).innerText(), /-plan.*tokens, \$/s);
  assert.match(await waterfall.nth(2).innerText(), /-check.*odd/s);
  const figures = await main.locator(".figure").allInnerTexts();
  const tokens = await page.evaluate(async ([task, token]) => {
    const headers = { Authorization: `Bearer ${token}` };
    const all = await Promise.all(["plan", "build", "check"].map(async (name) => (await fetch(`/api/v2/dispatch/${task}-${name}`, { headers })).json()));
    return all.reduce((sum, { result: { usage } }) => sum + (usage.totalTokens ?? usage.inputTokens + usage.outputTokens), 0);
  }, [task, token]);
  assert.ok(tokens > 0);
  assert.ok(figures.includes(`${tokens}\ntokens`) && figures.includes("3\ndispatches") && figures.includes("1\nfailed"), JSON.stringify(figures));
  await page.getByRole("table", { name: "Dispatches" }).getByRole("link", { name: `${task}-plan` }).click();
  await main.getByRole("link", { name: `${task}-run` }).click();
  await main.getByRole("heading", { level: 1, name: `${task}-run` }).waitFor();
});

await step("the last events are there before new ones come", async () => {
  await page.goto(`${url}/#/events`);
  await page.reload();
  const list = page.getByRole("list", { name: "Events, newest first" });
  await list.getByText("execution.failed").first().waitFor();
  await main.getByText("0 since this page was opened").waitFor();
  await page.getByText("live", { exact: true }).waitFor();
});

await step("events arrive live, wait while paused, and are filtered", async () => {
  await open("Events");
  const run = (id) => page.evaluate(async ([id, token]) => {
    const body = JSON.stringify({ taskId: id, agentId: "a", message: "m", model: "ok", callbackUrl: null });
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
    await fetch("/api/v2/dispatch", { method: "POST", headers, body });
  }, [id, token]);
  const list = page.getByRole("list", { name: "Events, newest first" });
  await run(`${task}-e1`);
  await list.getByText("execution.completed").first().waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await run(`${task}-e2`);
  await page.getByLabel("Containing").fill(`${task}-e2`);
  await list.getByRole("listitem").first().waitFor({ state: "detached" });
  await page.getByText("while paused").waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await list.getByText("execution.completed").waitFor();
  await page.getByLabel("Kind").selectOption("callback.");
  await page.getByText("No matches so far.").waitFor();
  await page.getByLabel("Kind").selectOption("");
  await page.getByRole("combobox", { name: "Adapter" }).fill("echo");
  await list.getByText("execution.completed").waitFor();
  await page.getByRole("heading", { level: 1 }).click();
  await page.keyboard.press("p");
  await page.getByRole("button", { name: "Resume" }).waitFor();
});

await step("an external service shows its entries and is called", async () => {
  await open("Services");
  const card = main.getByRole("region", { name: "billing" });
  await card.getByText("listInvoices").click();
  await card.getByLabel("Arguments").nth(1).fill('{"limit": 1');
  await card.getByRole("button", { name: "Call billing.listInvoices" }).click();
  await card.getByRole("alert").getByText("are not JSON").waitFor();
  await card.getByLabel("Arguments").nth(1).fill('{"limit": 1}');
  await card.getByRole("button", { name: "Call billing.listInvoices" }).click();
  assert.match(await card.getByLabel("Result of billing.listInvoices").innerText(), /"id": 7/);
});

await step("a command that waits is approved, another one rejected", async () => {
  const card = main.getByRole("region", { name: "billing" });
  const waiting = main.getByRole("region", { name: "command:billing.createInvoice" });
  await card.getByText("createInvoice").click();
  for (const [decision, outcome] of [["Approve", "ok"], ["Reject", "blocked_by_policy"]]) {
    await card.getByLabel("Arguments").first().fill(`{"title": "${decision}"}`);
    await card.getByRole("button", { name: "Call billing.createInvoice" }).click();
    await card.getByRole("alert").getByText("FORGE_APPROVAL_REQUIRED").waitFor();
    await waiting.getByText(`"title":"${decision}"`).waitFor();
    const dispatch = await waiting.getByRole("link").getAttribute("href");
    await waiting.getByLabel("Reason").fill("seen");
    await sure(`${decision} command:billing.createInvoice`, `${decision} it`);
    await waiting.waitFor({ state: "detached" });
    await page.goto(`${url}/${dispatch}`);
    await main.getByText(outcome, { exact: true }).first().waitFor();
    await open("Services");
    await card.getByText("createInvoice").click();
  }
});

await step("signals show what is left of budgets, live sessions and interventions", async () => {
  await open("Signals");
  const daily = main.getByRole("region", { name: "daily", exact: true });
  await daily.getByText("$0.5 of $1, $0.5 left").waitFor();
  await daily.getByText("$1.25 of $1, used up").waitFor();
  const bars = await daily.getByRole("progressbar").evaluateAll((all) => all.map((bar) => [bar.getAttribute("aria-label"), bar.value, bar.className]));
  // The dispatches before count for the name of their token.
  assert.deepEqual(bars.slice(0, 2), [["daily, ben", 1, "bad"], ["daily, ana", 0.5, "good"]]);
  await main.getByText("errors ≥ 20", { exact: true }).waitFor();
  await main.getByRole("region", { name: "errors", exact: true }).getByText("0 errors of 20 errors, 20 errors left").waitFor();
  const row = page.getByRole("table", { name: "Live sessions" }).getByRole("row").filter({ hasText: "ana" });
  await row.getByText("$0.5000 and 1 signal unpriced").waitFor();
  const interventions = page.getByRole("table", { name: "Interventions" });
  await interventions.getByText("critical", { exact: true }).waitFor();
  await interventions.getByText("consider wrapping up").waitFor();
});

await step("signals without rules say so", async () => {
  await page.goto(`${shaky}/#/signals`);
  await main.getByText("No rules are configured").waitFor();
  await main.getByText("No tool has a live session.").waitFor();
  await main.getByText("No rule has warned or blocked yet.").waitFor();
  await accessible("signals without rules");
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, "signals-none.png") });
  await page.goto(url);
});

await step("cost adds up what dispatches used, by day, adapter, model and agent", async () => {
  await open("Cost");
  for (const by of ["day", "adapter", "model", "agent"]) await page.getByRole("table", { name: `Cost by ${by}` }).getByRole("row").nth(1).waitFor();
  const today = page.getByRole("table", { name: "Cost by day" }).getByRole("row").nth(1);
  assert.match(await today.innerText(), new RegExp(`${new Date().toISOString().slice(0, 10)}.*\\$`, "s"));
  await main.getByLabel("Ended within").selectOption("30 days");
  await page.waitForURL(/cost\?since=30d/);
  await page.getByRole("table", { name: "Cost by adapter" }).getByRole("link", { name: "echo", exact: true }).click();
  await page.waitForURL(/dispatches\?provider=echo/);
  await main.getByRole("table").getByRole("row").nth(1).waitFor();
});

await step("an adapter shows its capabilities", async () => {
  await open("Adapters");
  const card = page.getByRole("region", { name: "echo" });
  await card.getByText("healthy").first().waitFor();
  await card.getByText("structured_output").waitFor();
  await card.getByText("Library and health history").click();
  await card.getByText("SHA-256").waitFor();
});

await step("a dispatch is run again, as it was and edited", async () => {
  await send(`${task}-again`, "ok");
  const request = main.getByRole("region", { name: "Request" });
  assert.equal(await request.getByLabel("Message", { exact: true }).innerText(), "It's a message");
  await request.getByRole("button", { name: "Run again" }).click();
  await main.getByRole("heading", { level: 1, name: `${task}-again-retry-` }).waitFor();
  await main.getByText("Retry of").waitFor();
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, "again.png"), fullPage: true });
  await request.getByRole("link", { name: "Edit and run" }).click();
  await holds("Message", "It's a message");
  await page.getByLabel("Message").fill("Another message");
  await page.getByRole("button", { name: "Dispatch", exact: true }).click();
  await main.getByRole("heading", { level: 1, name: /^try-/ }).waitFor();
  await request.getByLabel("Message", { exact: true }).filter({ hasText: "Another message" }).waitFor();
  await main.getByText("Retry of").waitFor();
});

await step("an adapter is paused, resumed and reloaded", async () => {
  await open("Adapters");
  const card = page.getByRole("region", { name: "echo" });
  await sure("Pause echo", "Pause it");
  await card.getByText("paused", { exact: true }).waitFor();
  await send(`${task}-held`, "ok");
  await main.getByText(/^(queued|accepted)$/).first().waitFor();
  await main.getByText("echo is paused").waitFor();
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, "waits.png") });
  await open("Now");
  await page.getByRole("list", { name: "Adapters" }).getByText("paused").waitFor();
  await open("Adapters");
  await page.getByRole("button", { name: "Resume echo" }).click();
  await card.getByText("Resumed; executions start again.").waitFor();
  await page.goto(`${url}/#/dispatch/${task}-held`);
  await main.getByText("ok", { exact: true }).first().waitFor();
  await open("Adapters");
  await sure("Reload echo", "Reload it");
  await card.getByText("Reloaded.").waitFor();
});

await step("a quarantine shows its start and reason, and ends with a reload", async () => {
  await page.goto(`${shaky}/#/adapters`);
  const card = page.getByRole("region", { name: "echo" });
  await card.getByText("quarantined", { exact: true }).waitFor();
  await card.getByText(/In quarantine since .*ended 2 times/).waitFor();
  await card.getByText(/Last exit: .*SIGABRT/).waitFor();
  await accessible("quarantine");
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, "quarantine.png") });
  await sure("Reload echo", "Reload it");
  await card.getByText("Reloaded.").waitFor();
  await card.getByText("quarantined", { exact: true }).waitFor({ state: "detached" });
  await page.goto(url);
});

await runtimeSteps({ page, main, step, sure, holds, accessible, url, managing });
await runSteps({ page, main, step, sure, accessible, runs, repository });
await page.goto(url);

await step("the reference names every operation, and jumps to it", async () => {
  await page.getByRole("link", { name: "API", exact: true }).click();
  await main.getByRole("heading", { level: 1, name: "HTTP interface" }).waitFor();
  await page.getByRole("navigation", { name: "Operations" }).getByRole("link", { name: "Cancel a dispatch", exact: true }).click();
  await focused("id", "cancelDispatch");
  await page.getByRole("region", { name: "Submit a dispatch" }).getByText("callbackUrl").first().waitFor();
});

await step("the keyboard reaches the page", async () => {
  await open("Now");
  await page.locator("body").press("Tab");
  await page.evaluate(() => document.querySelector(".skip").focus());
  await page.keyboard.press("Enter");
  await focused("id", "page");
});

await step("keys go to pages, to the search and to the list of keys", async () => {
  for (const [key, name] of [["d", "Dispatches"], ["u", "Runs"], ["a", "Adapters"], ["r", "Agents"], ["s", "Services"], ["i", "Signals"], ["c", "Cost"], ["l", "Deliveries"], ["e", "Events"], ["n", "Now"], ["d", "Dispatches"]]) {
    await page.keyboard.press("g");
    await page.keyboard.press(key);
    await main.getByRole("heading", { level: 1, name }).waitFor();
  }
  await page.keyboard.press("/");
  await focused("name", "id");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await page.getByRole("dialog").getByLabel("Enable shortcuts").uncheck();
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
  await page.keyboard.press("?");
  assert.equal(await page.getByRole("dialog").isVisible(), false);
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await page.getByRole("dialog").getByLabel("Enable shortcuts").check();
  await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
});

await step("an unreachable bridge is shown, and found again", async () => {
  const offline = problems.length;
  await page.context().setOffline(true);
  await page.getByText("The bridge does not answer").waitFor();
  await page.context().setOffline(false);
  await page.getByText("The bridge does not answer").waitFor({ state: "detached" });
  await page.getByText("live", { exact: true }).waitFor();
  problems.splice(offline);
});

/** What is wider than its place, and what is too small for a finger. */
function narrow() {
  const shown = (element) => element.getClientRects().length > 0;
  const cut = [...document.querySelectorAll("main td, ol.tail li > *, .waterfall li > *")].filter((one) => shown(one) && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline");
  const targets = [...document.querySelectorAll("button, select, input, summary, nav a, td a, a.figure, ol.tail a")].filter(shown);
  // A field is chosen by its label, too.
  const small = targets.filter((one) => Math.max(one.getBoundingClientRect().height, one.closest("label")?.getBoundingClientRect().height ?? 0) < 23.9);
  const current = document.querySelector("header nav [aria-current]")?.getBoundingClientRect();
  return {
    over: document.documentElement.scrollWidth - innerWidth,
    cut: cut.map((one) => one.outerHTML.slice(0, 120)),
    small: small.map((one) => one.outerHTML.slice(0, 120)),
    isInView: !current || (current.left >= 0 && current.right <= innerWidth),
  };
}

await step("nothing is cut on a narrow screen", async () => {
  await page.setViewportSize({ width: 360, height: 740 });
  for (const place of ["now", "dispatches", `dispatch/${task}-tools`, `run/${task}-run`, "runs", "adapters", "agents", "signals", "cost", "deliveries", "events", "nodes", "try"]) {
    await page.goto(`${url}/#/${place}`);
    await main.getByRole("heading", { level: 1 }).waitFor();
    await page.locator(".skeleton").first().waitFor({ state: "detached" });
    if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, `${place.replace(/\W.*$/, "")}-phone.png`) });
    assert.deepEqual(await page.evaluate(narrow), { over: 0, cut: [], small: [], isInView: true }, place);
    await accessible(`${place}, narrow`);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
});

await step("each page is small", async () => {
  for (const place of ["now", "dispatches", `dispatch/${task}-tools`, `run/${task}-run`, "adapters", "signals", "cost", "deliveries", "events", "nodes", "try"]) {
    const context = await browser.newContext({ storageState: undefined });
    const cold = await context.newPage();
    await cold.addInitScript(([token]) => sessionStorage.setItem("forge-bridge.token", token), [token]);
    const answers = [];
    cold.on("requestfinished", (request) => answers.push(request.sizes()));
    await cold.goto(`${url}/#/${place}`);
    await cold.getByRole("main").getByRole("heading", { level: 1 }).waitFor();
    await cold.locator(".skeleton").first().waitFor({ state: "detached" });
    if (place === "now") await cold.locator(".chart canvas").first().waitFor();
    const bytes = (await Promise.all(answers)).reduce((sum, { responseBodySize, responseHeadersSize }) => sum + responseBodySize + responseHeadersSize, 0);
    assert.ok(bytes > 20_000 && bytes <= 160_000, `${place}: ${bytes} bytes`);
    console.log(`   ${place.replace(/-.*/, "")}: ${bytes} bytes`);
    await context.close();
  }
});

for (const scheme of ["light", "dark"]) {
  await step(`pages are accessible, ${scheme}`, async () => {
    await page.emulateMedia({ colorScheme: scheme });
    const places = ["docs", "now", "dispatches", `run/${task}-run`, "nodes", `dispatch/${task}-tools`, `dispatch/${task}-text`, `dispatch/${task}-dead`, "adapters", "signals", "cost", "deliveries?status=dead", "deliveries?status=delivered", "events", "try"];
    for (const place of places) {
      await page.goto(place === "docs" ? `${url}/docs` : `${url}/#/${place}`);
      await main.getByRole("heading", { level: 1 }).waitFor();
      await page.waitForLoadState("load");
      await page.locator(".skeleton").first().waitFor({ state: "detached" });
      await accessible(place);
      if (process.env.SCREENSHOTS) {
        const name = `${place.replace(/\W.*$/, "")}-${scheme}.png`;
        await page.screenshot({ path: path.join(process.env.SCREENSHOTS, name), fullPage: true });
      }
    }
  });
}

await step("the page has no errors", async () => {
  const unexpected = problems.filter((problem) => !/ (400|404|409|503) /.test(problem));
  assert.deepEqual(unexpected, []);
});
await browser.close();
