import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

const here = new URL("..", import.meta.url).pathname;
const consumer = mkdtempSync(join(tmpdir(), "forge-bridge-client-"));
const installed = join(consumer, "node_modules/@forge-bridge/client");

function run(program: string, args: string[], folder: string): string {
  return execFileSync(program, args, { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}

// Installs the packed client as a user would, from its tarball.
beforeAll(() => {
  run("npm", ["pack", "--silent", "--pack-destination", consumer], here);
  const { version } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
  writeFileSync(join(consumer, "package.json"), '{"type": "module"}');
  const tarball = `forge-bridge-client-${version}.tgz`;
  run("npm", ["install", "--offline", "--no-audit", "--no-fund", `./${tarball}`], consumer);
}, 120_000);

afterAll(() => rmSync(consumer, { recursive: true, force: true }));

test("the tarball can be imported and run", () => {
  const script = `
    import { createServer } from "node:http";
    import { Bridge, BridgeError } from "@forge-bridge/client";
    const server = createServer((_, response) => response.end('{"dispatchId": "dsp_1", "status": "accepted"}'));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const bridge = new Bridge({ baseUrl: "http://127.0.0.1:" + server.address().port });
    const accepted = await bridge.dispatch({ taskId: "t", agentId: "a", message: "m", callbackUrl: null });
    console.log(accepted.dispatchId, typeof BridgeError);
    process.exit(0);`;
  writeFileSync(join(consumer, "use.js"), script);
  expect(run(process.execPath, ["use.js"], consumer)).toBe("dsp_1 function\n");
});

test("the tarball has types that a strict project of Node accepts", () => {
  const source = `
    import { Bridge } from "@forge-bridge/client";
    const bridge = new Bridge({ baseUrl: "http://127.0.0.1:7420" });
    export const id: Promise<string> = bridge
      .dispatch({ taskId: "t", agentId: "a", message: "m", callbackUrl: null })
      .then((accepted) => accepted.dispatchId);
    bridge.dispatch({
      taskId: "t", agentId: "a", message: "m", callbackUrl: null,
      // @ts-expect-error -- misspelt: the bridge would ignore it.
      timeoutSecs: 5,
    });
    // @ts-expect-error -- misspelt: the bridge would refuse it.
    bridge.retryAll({ sinse: "2026-01-01T00:00:00Z" });`;
  mkdirSync(join(consumer, "src"));
  writeFileSync(join(consumer, "src/use.ts"), source);
  const options = { module: "NodeNext", target: "ES2022", lib: ["ES2022", "DOM"], types: [], strict: true, noEmit: true };
  writeFileSync(join(consumer, "tsconfig.json"), JSON.stringify({ compilerOptions: options, include: ["src"] }));
  run(process.execPath, [join(here, "node_modules/typescript/bin/tsc"), "-p", "."], consumer);
}, 120_000);

test("the tarball holds the licences and no sources", () => {
  const files = run("find", [".", "-type", "f"], installed).trim().split("\n").sort();
  expect(files).toEqual(expect.arrayContaining(["./LICENSE-APACHE", "./LICENSE-MIT", "./README.md", "./dist/index.js"]));
  expect(files.filter((file) => !/^\.\/(dist\/(wire\/)?\w+\.(js|d\.ts)|LICENSE-\w+|README\.md|package\.json)$/.test(file))).toEqual([]);
});

test("a generated client compiles with the tarball and names only entries that exist", () => {
  const source = `
    import { api, createClient } from "./client.js";
    const client = createClient({ baseUrl: "http://127.0.0.1:7420" });
    export const invoices = client.externalQuery<string[]>(api.external.queries["billing.listInvoices"], {});
    export const invoice = client.externalCommand("billing.createInvoice", { title: "Invoice" });
    // @ts-expect-error -- there is no such query.
    api.external.queries["billing.nothing"];`;
  const folder = join(consumer, "generated");
  mkdirSync(folder);
  copyFileSync(join(here, "../../tests/fixtures/external/client.ts"), join(folder, "client.ts"));
  writeFileSync(join(folder, "use.ts"), source);
  const options = { module: "NodeNext", target: "ES2022", lib: ["ES2022", "DOM"], types: [], strict: true, noEmit: true };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: options, include: ["."] }));
  run(process.execPath, [join(here, "node_modules/typescript/bin/tsc"), "-p", "."], folder);
}, 120_000);

test("the samples of the public design of runs compile under the alias @forge/sdk", () => {
  const { version } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
  const alias = `@forge/sdk@file:./forge-bridge-client-${version}.tgz`;
  run("npm", ["install", "--offline", "--no-audit", "--no-fund", alias], consumer);
  const folder = join(consumer, "samples");
  mkdirSync(folder);
  copyFileSync(join(here, "test/samples.ts"), join(folder, "samples.ts"));
  const options = { module: "NodeNext", target: "ES2022", lib: ["ES2022", "DOM"], types: [], strict: true, noEmit: true };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: options, include: ["."] }));
  run(process.execPath, [join(here, "node_modules/typescript/bin/tsc"), "-p", "."], folder);
}, 120_000);
