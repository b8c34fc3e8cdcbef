// Measures the cost of the console in a browser.
//
//     cargo build --release && tests/measure/stores.py target/release/forge-bridge --finished 100000 --home /tmp/store
//     node tests/measure/console.mjs target/release/forge-bridge pages --home /tmp/store
//     node tests/measure/console.mjs target/release/forge-bridge flood --rate 10000
//
// `pages` opens each page with an empty cache, and navigates to it from another page: time until its content is
// painted, CPU time of the page, kilobytes transferred with an empty cache (headers included), and duration of its API
// calls. A run is made for its page; the last line is the medians as JSON. `flood` generates a number of events per
// second, counts those that reach the page, and meanwhile presses keys, types and navigates: time until the next frame
// (the browser's event timing), and until the other page is shown.
// A measurement, not a check: figures depend on the machine. Needs the echo adapter beside the program, and Chromium.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { Agent, request } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const ROOT = path.join(import.meta.dirname, "../..");
const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    home: { type: "string" },
    pages: { type: "string" },
    runs: { type: "string", default: "7" },
    rate: { type: "string", default: "10000" },
    seconds: { type: "string", default: "20" },
  },
});
const [program, what] = positionals;

/** Address of each page, and a selector that matches once it is shown. */
const PAGES = {
  // Baseline of the browser itself: a page with a line of text.
  nothing: ["api/health/live", "body"],
  now: ["#/now", "main table[aria-label=Latest] tbody tr"],
  dispatches: ["#/dispatches", "main table tbody tr"],
  failed: ["#/dispatches?status=error", "main .empty, main table tbody tr, main .pager .dim"],
  dispatch: [undefined, "main ol.timeline li"],
  runs: ["#/runs", "main table[aria-label=Runs] tbody tr"],
  run: [undefined, "main section[aria-labelledby=plan]"],
  adapters: ["#/adapters", "main section.card"],
  agents: ["#/agents", "main .empty, main table tbody tr"],
  services: ["#/services", "main section.card, main .empty"],
  deliveries: ["#/deliveries", "main table tbody tr"],
  dead: ["#/deliveries?status=dead", "main .empty, main table tbody tr, main .pager .dim"],
  signals: ["#/signals", "main section[aria-labelledby=interventions]"],
  cost: ["#/cost", "main table[aria-label='Cost by agent'] tbody tr"],
  nodes: ["#/nodes", "main table[aria-label=Nodes] tbody tr"],
  events: ["#/events", "main ol.tail li, main .empty"],
  try: ["#/try", "main form option:nth-child(2)"],
  "not-found": ["#/nothing-here", "main[aria-label='Not found'] h1"],
  docs: ["docs", "main .reference section"],
};

async function start(home) {
  const bridge = spawn(program, [], {
    cwd: home,
    stdio: ["ignore", "ignore", "pipe"],
    env: {
      HOME: home,
      BRIDGE_LISTEN: "127.0.0.1:0",
      BRIDGE_DATA_DIR: path.join(home, "data"),
      BRIDGE_SECRET_KEY_FILE: path.join(home, "secret.key"),
      BRIDGE_PLUGIN_PATH: path.dirname(path.resolve(program)),
      BRIDGE_ADAPTERS: "echo",
      BRIDGE_DRAIN_GRACE: "1s",
      BRIDGE_RUNS_PROVIDER: "echo",
      BRIDGE_RUNS_MODEL: "run",
      BRIDGE_RUNS_LOCAL_ROOTS: home,
      PATH: process.env.PATH,
    },
  });
  let said = "";
  for await (const line of createInterface({ input: bridge.stderr })) {
    said += `${line}\n`;
    const url = /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(line)?.[1];
    if (!url) continue;
    bridge.stderr.resume();
    while ((await fetch(`${url}/api/health/ready`)).status !== 200);
    return { bridge, url };
  }
  throw new Error(`the bridge did not start: ${said}`);
}

async function browse() {
  const modules = execFileSync("python3", [path.join(ROOT, "tests/runtimes/install.py"), "browser"]).toString().trim();
  const { chromium } = createRequire(path.join(modules, "package.json"))("playwright-core");
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

const at = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? Number.NaN;
const median = (values) => at(values, 0.5);
const ms = (value) => `${value.toFixed(0).padStart(5)}`;

/** Runs in the page: resolves with the time of the first frame that has the content. */
const SHOWN = `(selector) => new Promise((done) => {
  const look = () => {
    if (!document.querySelector(selector)) return requestAnimationFrame(look);
    // A message posted in a frame arrives after the frame was painted.
    requestAnimationFrame(() => setTimeout(() => done(performance.now())));
  };
  look();
})`;

async function busy(session) {
  const { metrics } = await session.send("Performance.getMetrics");
  const of = (name) => (metrics.find((metric) => metric.name === name)?.value ?? 0) * 1000;
  return { task: of("TaskDuration"), script: of("ScriptDuration"), heap: of("JSHeapUsedSize") / 1000 / 2 ** 20 };
}

/** Plans a run of 20 tasks on a repository in the folder, and returns its id once it has ended. */
async function run(url) {
  const repository = path.join(home, "repository");
  const git = (...args) => execFileSync("git", ["-C", repository, "-c", "user.name=console", "-c", "user.email=console@example.org", ...args]);
  if (!existsSync(repository)) {
    execFileSync("git", ["init", "--quiet", "--initial-branch=main", repository]);
    git("commit", "--quiet", "--allow-empty", "--message=first");
  }
  const ask = async (path, body) => (await fetch(`${url}/api/v1/${path}`, body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();
  const { runId } = await ask("runs", { repoUrl: `file://${repository}`, message: "A shop" });
  const tasks = Array.from({ length: 20 }, (_, id) => ({ id: `t${id}`, title: `Task ${id}`, type: 2, dependencies: id < 4 ? [] : [`t${id - 4}`], instructions: `write ${id}.txt text` }));
  for (let said; !said;) {
    const answer = await fetch(`${url}/api/v1/captain/message`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ runId, message: JSON.stringify({ specs: { style: "Short." }, tasks }) }) });
    said = answer.ok;
  }
  for (;;) {
    const { status } = await ask(`runs/${runId}`);
    if (status === "completed") return runId;
    if (status === "failed") throw new Error("the run failed");
    await new Promise((done) => setTimeout(done, 100));
  }
}

async function pages(url, browser) {
  const { dispatches } = await (await fetch(`${url}/api/v2/dispatches?status=ok&limit=1`)).json();
  PAGES.dispatch[0] = `#/dispatch/${dispatches[0].dispatchId}`;
  PAGES.run[0] = `#/run/${await run(url)}`;
  const calls = new Map(), medians = {};
  console.log("page        opened (median, worst), CPU: all, script   navigated to (median, worst)   ms   transferred KB");
  const chosen = given.pages?.split(",") ?? Object.keys(PAGES);
  for (const name of chosen) {
    const [address, selector] = PAGES[name];
    const opened = [], gone = [], task = [], script = [], transferred = [];
    for (let run = 0; run < Number(given.runs); run += 1) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
      const page = await context.newPage();
      const session = await context.newCDPSession(page);
      await session.send("Performance.enable");
      await page.addInitScript(`window.shown = ${SHOWN}; performance.setResourceTimingBufferSize(1000)`);
      await page.goto(`${url}/${address}`, { waitUntil: "commit" });
      opened.push(await page.evaluate((selector) => window.shown(selector), selector));
      const used = await busy(session);
      task.push(used.task);
      script.push(used.script);
      // Charts and samples load after the content.
      await page.waitForTimeout(300);
      transferred.push(await page.evaluate(() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, one) => sum + one.transferSize, 0) / 1000));
      for (const [path, took] of await page.evaluate(() => performance.getEntriesByType("resource").map((one) => {
        const { pathname, search } = new URL(one.name);
        return [pathname.replace(/dsp_.*|dlv_.*|run-.*/, "…") + search.replace(/after=\d+.*/, "after=…"), one.responseEnd ? one.responseStart - one.requestStart : 0];
      }))) if (path.startsWith("/api/v") && took) calls.set(path, [...(calls.get(path) ?? []), took]);
      if (name !== "docs" && name !== "nothing") {
        // Via a page without requests and back, so that no content of this page remains.
        await page.evaluate(() => { location.hash = "#/nowhere"; });
        await page.goto(`${url}/#/${name === "try" ? "events" : "try"}`);
        await page.reload();
        await page.locator("main h1").waitFor();
        await page.waitForTimeout(300);
        gone.push(await page.evaluate(async ([address, selector]) => {
          const began = performance.now();
          location.hash = address;
          return (await window.shown(selector)) - began;
        }, [address, selector]));
      }
      await context.close();
    }
    console.log(`${name.padEnd(11)} ${ms(median(opened))} ${ms(at(opened, 1))}                  ${ms(median(task))} ${ms(median(script))}     ${gone.length ? `${ms(median(gone))} ${ms(at(gone, 1))}` : "           "}                 ${ms(median(transferred))}`);
    medians[name] = { coldMs: median(opened), warmMs: median(gone), kilobytes: median(transferred) };
  }
  console.log("\nAPI calls of the pages: time to response (median, worst)   ms");
  for (const [path, took] of calls) console.log(`${path.padEnd(60)} ${median(took).toFixed(1).padStart(7)} ${at(took, 1).toFixed(1).padStart(7)}  of ${took.length}`);
  console.log(JSON.stringify(medians, (_, value) => (typeof value === "number" ? Math.round(value) : value)));
}

/** Posts dispatches with a hundred text events each, at about this number of events per second. */
function flooding(url, rate) {
  const agent = new Agent({ keepAlive: true, maxSockets: 16 });
  const began = Date.now();
  let sent = 0;
  const timer = setInterval(() => {
    const due = Math.floor(((Date.now() - began) / 1000) * (rate / 104));
    for (; sent < due; sent += 1) {
      const body = JSON.stringify({ taskId: `flood-${began}-${sent}`, agentId: "flood", message: "Something that is said", model: "stream:100", callbackUrl: null });
      const post = request(`${url}/api/v2/dispatch`, { agent, method: "POST", headers: { "content-type": "application/json" } }, (answer) => answer.resume());
      post.on("error", () => undefined);
      post.end(body);
    }
  }, 20);
  return () => { clearInterval(timer); agent.destroy(); };
}

async function flood(url, browser) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  page.on("pageerror", (error) => console.log(`the page: ${error.message}`));
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  await page.addInitScript(`window.shown = ${SHOWN}; window.felt = [];
    new PerformanceObserver((list) => { for (const one of list.getEntries()) if (one.interactionId) window.felt.push([one.name, one.duration]); })
      .observe({ type: "event", durationThreshold: 16, buffered: true });`);
  await page.goto(`${url}/#/events`);
  await page.getByText("live", { exact: true }).waitFor();
  const stop = flooding(url, Number(given.rate));
  const seen = async () => Number((await page.locator(".counts").innerText()).replace(/ since.*/s, "").replaceAll(",", ""));
  await page.waitForTimeout(3000);
  const half = Number(given.seconds) * 500;

  let before = [await seen(), Date.now(), await busy(session)];
  let until = Date.now() + half;
  for (let turn = 0; Date.now() < until; turn += 1) {
    await page.getByRole("button", { name: /Pause|Resume/ }).click();
    await page.getByLabel("Containing").pressSequentially(turn % 2 ? "x" : "flood", { delay: 60 });
    await page.getByLabel("Containing").fill("");
    await page.waitForTimeout(150);
  }
  if (await page.getByRole("button", { name: "Resume" }).isVisible()) await page.getByRole("button", { name: "Resume" }).click();
  const after = [await seen(), Date.now(), await busy(session)];
  const rate = ((after[0] - before[0]) / (after[1] - before[1])) * 1000;
  console.log(`${rate.toFixed(0)} events a second came to the page; its thread was busy for ${(((after[2].task - before[2].task) / (after[1] - before[1])) * 100).toFixed(0)} %, heap ${after[2].heap.toFixed(0)} MiB; ${await page.locator("header .status").innerText().then((text) => text.replaceAll("\n", ", "))}`);
  await told(page, "the Events page: press, type");

  const shown = {};
  before = [0, Date.now(), await busy(session)];
  until = Date.now() + half;
  while (Date.now() < until) {
    for (const [label, name] of [["Now", "now"], ["Dispatches", "dispatches"], ["Adapters", "adapters"], ["Services", "services"], ["Deliveries", "deliveries"], ["Events", "events"], ["Try it", "try"]]) {
      const selector = { now: "main .figures", deliveries: "main h1 ~ form" }[name] ?? PAGES[name][1];
      // Measured in the page from key press to frame, because the driver is busy, too.
      await page.evaluate(() => { window.pressed = new Promise((done) => addEventListener("pointerdown", (event) => done(event.timeStamp), { once: true, capture: true })); });
      await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: label, exact: true }).click();
      const took = await page.evaluate(async ([selector, label]) => {
        const began = await window.pressed;
        const right = () => document.querySelector("main")?.getAttribute("aria-label") === label;
        while (!right()) await new Promise(requestAnimationFrame);
        return (await window.shown(selector)) - began;
      }, [selector, label]);
      (shown[name] ??= []).push(took);
      await page.waitForTimeout(250);
    }
  }
  const used = await busy(session);
  console.log(`going from page to page: the thread was busy for ${(((used.task - before[2].task) / (Date.now() - before[1])) * 100).toFixed(0)} %`);
  await told(page, "going from page to page: press");
  const all = Object.values(shown).flat();
  console.log(`until the other page is shown with its content: p50 ${ms(median(all))}  p95 ${ms(at(all, 0.95))}  worst ${ms(at(all, 1))} ms of ${all.length}`);
  for (const [name, took] of Object.entries(shown)) console.log(`  ${name.padEnd(11)} p50 ${ms(median(took))}  worst ${ms(at(took, 1))}`);
  stop();
}

/** Durations of the interactions since the last call, each until its next frame, from the browser's event timing. */
async function told(page, label) {
  const felt = await page.evaluate(() => window.felt.splice(0));
  const took = felt.map(([, duration]) => duration);
  console.log(`${label}: until the next frame p50 ${ms(median(took))}  p95 ${ms(at(took, 0.95))}  worst ${ms(at(took, 1))} ms of ${took.length}`);
}

const home = given.home ?? mkdtempSync(path.join(tmpdir(), "forge-console-"));
const { bridge, url } = await start(home);
const browser = await browse();
try {
  await { pages, flood }[what](url, browser);
} finally {
  await browser.close();
  bridge.kill("SIGKILL");
  if (!given.home) rmSync(home, { recursive: true, maxRetries: 5 });
}
