// Pages of others in a browser: they change nothing at the local agent, and read nothing of it.
// Arguments: the folder with playwright-core, the URL of a page on another port, and the URLs of listeners with the routes
// of the agent, the agent's own first.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, foreign, ...listeners] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "package.json"))("playwright-core");
const rebound = "rebound.example";

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", `--host-resolver-rules=MAP ${rebound} 127.0.0.1`,
    // The browser's own guard of the local network would hide that of the agent.
    "--disable-features=LocalNetworkAccessChecks",
  ],
});
const start = JSON.stringify({ adapter: "page" });
const page = await browser.newPage();
page.setDefaultTimeout(20_000);
/** Statuses of the POSTs that reached a listener. */
let posts = [];
page.on("response", (response) => {
  if (response.request().method() === "POST") posts.push(response.status());
});

/** What the page learns of requests to a listener: "refused", "opaque", or what it reads. */
function learned(base, start) {
  const ask = async (path, options) => {
    try {
      const answer = await fetch(base + path, options);
      if (answer.type === "opaque") return "opaque";
      return `${answer.status} ${await answer.text()}`;
    } catch {
      return "refused";
    }
  };
  const json = { "content-type": "application/json" };
  const typed = new Blob([start], { type: "application/json" });
  return Promise.all([
    ask("/session/start", { method: "POST", headers: json, body: start }),
    ask("/emit", { method: "POST", headers: json, body: start }),
    ask("/health"),
    ask("/session/start", { method: "POST", mode: "no-cors", body: start }),
    ask("/session/start", { method: "POST", mode: "no-cors", headers: json, body: typed }),
    ask("/emit", { method: "POST", mode: "no-cors", body: start }),
    ask("/health", { mode: "no-cors" }),
  ]);
}

for (const listener of listeners) {
  posts = [];
  await page.goto(foreign);
  const [started, emitted, health, ...opaque] = await page.evaluate(
    ([learned, listener, start]) => new Function(`return ${learned}`)()(listener, start),
    [learned.toString(), listener, start],
  );
  assert.deepEqual([started, emitted], ["refused", "refused"], listener);
  // Only the agent has this path.
  if (listener === listeners[0]) assert.equal(health, "refused", listener);
  for (const answer of opaque) assert.ok(["opaque", "refused"].includes(answer), `${listener}: ${answer}`);

  // A form sends a body that is JSON, as plain text.
  const shown = await page.evaluate(async ([action, start]) => {
    const frame = document.createElement("iframe");
    frame.name = "frame";
    const form = document.createElement("form");
    Object.assign(form, { method: "post", enctype: "text/plain", action, target: "frame" });
    const field = document.createElement("input");
    [field.name, field.value] = [`${start.slice(0, -1)}, "more": "`, `"}`];
    form.append(field);
    document.body.append(frame, form);
    await new Promise((done) => {
      frame.onload = done;
      form.submit();
    });
    return frame.contentDocument?.body.textContent ?? "";
  }, [`${listener}/session/start`, start]);
  assert.equal(shown, "");
  assert.ok(posts.length >= 2, `${posts}`);
  assert.deepEqual(posts.filter((status) => status !== 403), [], listener);

  // The page of a name that leads to this machine once the page is there: all is of its own origin.
  const own = new URL(listener);
  own.hostname = rebound;
  await page.route(own.href, (route) => route.fulfill({ contentType: "text/html", body: "<title>page</title>" }));
  await page.goto(own.href);
  const read = await page.evaluate(
    ([learned, start]) => new Function(`return ${learned}`)()("", start),
    [learned.toString(), start],
  );
  for (const answer of read) assert.match(answer, /^403 /, listener);
  for (const answer of read) assert.doesNotMatch(answer, /session_|version/, listener);
}
await browser.close();
