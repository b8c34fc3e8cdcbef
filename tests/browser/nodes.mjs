// Tests the page of the bridges that share a database: what they run, and what one takes over from another.
// Arguments: the folder with playwright-core and axe-core, the URL of a bridge, the URL of another one with the same
// database, which runs one dispatch of the adapter echo, and the id of its process, which is killed.
// Writes screenshots to the folder named by `SCREENSHOTS`, if set.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, url, other, process_] = process.argv.slice(2);
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
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
page.setDefaultTimeout(20_000);
const main = page.getByRole("main");
const rows = page.getByRole("table", { name: "Nodes" }).getByRole("row");

async function photo(name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: path.join(process.env.SCREENSHOTS, `${name}.png`), fullPage: true });
}

async function accessible(place) {
  const { violations } = await page.evaluate(`(() => { ${axe}; return axe.run({ resultTypes: ["violations"] }); })()`);
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" ")}`), [], place);
}

await page.goto(url);
await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Nodes", exact: true }).click();
await main.getByRole("heading", { level: 1, name: "Nodes" }).waitFor();
const own = rows.filter({ hasText: "this one" });
const first = rows.filter({ hasText: other });
await first.getByText("live", { exact: true }).waitFor();
await first.getByText("echo 1 of").waitFor();
await own.getByText("other 0 of").waitFor();
await photo("nodes");
for (const colorScheme of ["light", "dark"]) {
  await page.emulateMedia({ colorScheme });
  await accessible(colorScheme);
}
process.kill(Number(process_), "SIGKILL");
await first.getByText("gone", { exact: true }).waitFor();
await own.getByText(/^last \d/).waitFor();
await photo("nodes-dark");
await page.setViewportSize({ width: 360, height: 740 });
await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Nodes", exact: true }).waitFor();
const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
assert.ok(over <= 0, `${over} px too wide`);
await photo("nodes-phone");
await browser.close();
