import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Webhook } from "standardwebhooks";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Bridge, verifyWebhook } from "../src/index.js";
import { Process, SECRET } from "./process.js";
import { listen, text } from "./server.js";

const here = new URL("..", import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), "forge-bridge-examples-"));

/** Blocks of README.md by the heading before them. */
const examples = new Map<string, string>();
for (const section of readFileSync(join(here, "README.md"), "utf8").split("\n### ").slice(1)) {
  const [, title, code] = /^(.*)\n[^]*?```ts\n([^]*?)```/.exec(section) ?? [];
  if (title && code) examples.set(title, code);
}

function tsc(project: string, ...options: string[]): void {
  execFileSync(process.execPath, [join(here, "node_modules/typescript/bin/tsc"), "-p", project, ...options], { encoding: "utf8" });
}

beforeAll(() => {
  // The package under its name, built here: another test builds it anew in its own folder.
  const client = join(folder, "node_modules/@forge-bridge/client");
  mkdirSync(client, { recursive: true });
  copyFileSync(join(here, "package.json"), join(client, "package.json"));
  tsc(here, "--outDir", join(client, "dist"));
  mkdirSync(join(folder, "node_modules/@types"));
  for (const name of ["@types/node", "undici-types"]) symlinkSync(join(here, "node_modules", name), join(folder, "node_modules", name));
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
}, 60_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("the examples compile in a strict project of Node", () => {
  expect(examples.size).toBe(10);
  const source = join(folder, "strict");
  mkdirSync(source);
  let number = 0;
  for (const code of examples.values()) writeFileSync(join(source, `${(number += 1)}.ts`), code);
  const options = {
    module: "NodeNext", target: "ES2022", lib: ["ES2023", "DOM", "DOM.Iterable"], types: ["node"], strict: true,
    exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, noEmit: true, skipLibCheck: true,
  };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: options, include: ["strict"] }));
  tsc(folder);
}, 60_000);

const program = process.env["FORGE_BRIDGE"];

// Without the program there is no bridge to run them against: `tests/e2e/sdk.rs` names it.
describe.skipIf(!program)("against a bridge, the example", () => {
  const bridge = new Process(program ?? "");
  let client: Bridge;

  beforeAll(async () => {
    await bridge.start();
    client = new Bridge({ baseUrl: bridge.url });
  }, 60_000);
  afterAll(() => bridge.end());

  /** Starts an example with these replacements. */
  function start(title: string, replaced: Record<string, string> = {}): { child: ChildProcess; output: Promise<string> } {
    let code = examples.get(title);
    if (!code) throw new Error(`README.md has no example "${title}"`);
    for (const [from, to] of Object.entries(replaced)) {
      if (!code.includes(from)) throw new Error(`"${title}" does not have ${from}`);
      code = code.replaceAll(from, to);
    }
    code = code.replaceAll("http://127.0.0.1:7420", bridge.url);
    const file = join(folder, `${title.replace(/\W+/g, "-")}.ts`);
    writeFileSync(file, code);
    const env = { ...process.env, WEBHOOK_SECRET: SECRET, NODE_NO_WARNINGS: "1" };
    const child = spawn(process.execPath, [file], { cwd: folder, env, stdio: ["ignore", "pipe", "pipe"] });
    const output = new Promise<string>((resolve, reject) => {
      let text = "";
      let errors = "";
      child.stdout?.on("data", (piece) => (text += piece));
      child.stderr?.on("data", (piece) => (errors += piece));
      child.once("close", (code) => (code === 0 || child.killed ? resolve(text) : reject(new Error(text + errors))));
    });
    return { child, output };
  }

  const run = (title: string, replaced?: Record<string, string>) => start(title, replaced).output;

  test.each([
    ["Run a dispatch and print its result", "Hello\n"],
    ["Stream output as it comes", "Once upon a time 1\nOnce upon a time 2\nOnce upon a time 3\nOnce upon a time 4\nOnce upon a time 5\n"],
    ["Structured output by a schema", "Plums 250\n"],
    ["Repeat a request safely", "true true\n"],
    ["Cancel and run again", "true\ncancelled\ntrue\n"],
    ["Attachments in, files out", "note.txt 9 Buy plums\nnote.txt text/plain 9\n\n"],
    ["Errors, and which are worth a retry", "priority: must be a whole number from -10 to 10\n400 INVALID_REQUEST not again\nrate_limited true 1\n"],
  ])("%s", async (title, expected) => {
    expect(await run(title)).toBe(expected);
  }, 60_000);

  /** Resolves once the example has printed this. */
  function printed(child: ChildProcess, text: string): Promise<void> {
    let said = "";
    return new Promise((resolve) => child.stdout?.on("data", (piece) => (said += piece).includes(text) && resolve()));
  }

  test("Receive a callback and verify it", async () => {
    const port = await freePort();
    const { child, output } = start("Receive a callback and verify it", { "8080": String(port) });
    await printed(child, "listening");
    const request = { agentId: "me", message: "Hello", callbackUrl: `http://127.0.0.1:${port}/` };
    const forged = { ...request, taskId: "forged", callback: { secret: "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD" } };
    await client.dispatch(forged);
    for await (const event of client.dispatchEvents("forged", { until: "delivered" })) {
      if (event.type !== "callback.attempted") continue;
      expect(event.data.status).toBe(401);
      break;
    }
    const signed = printed(child, "signed ok");
    await client.dispatch({ ...request, taskId: "signed" });
    await signed;
    for await (const event of client.dispatchEvents("signed", { until: "delivered" })) void event;
    // The same delivery once more.
    const [delivery] = (await client.show("signed")).deliveries ?? [];
    await client.retry(delivery?.id ?? "");
    for await (const event of client.events({ taskId: "signed" }, { after: "0" })) {
      if (event.type === "callback.attempted" && event.data.attempt === 2) break;
    }
    child.kill();
    expect(await output).toBe("listening\nsigned ok\n");
  }, 60_000);

  test("and the library of Standard Webhooks verifies a callback as well", async () => {
    let received: (callback: { body: string; headers: IncomingHttpHeaders }) => void;
    const callback = new Promise<Parameters<typeof received>[0]>((resolve) => (received = resolve));
    const callbackUrl = await listen(async (request, response) => {
      received({ body: await text(request), headers: request.headers });
      response.end();
    });
    await client.run({ taskId: "standard", agentId: "me", message: "Hello €", callbackUrl });
    const { body, headers } = await callback;
    const result = await verifyWebhook(body, headers, SECRET);
    expect(result).toMatchObject({ taskId: "standard", status: "ok", output: "Hello €" });
    expect(new Webhook(SECRET).verify(body, headers as Record<string, string>)).toEqual(result);
  }, 60_000);

  test("Follow all events, over a restart", async () => {
    const title = "Follow all events, over a restart";
    const request = { agentId: "me", message: "Hello" };
    const { events } = await client.run({ ...request, taskId: "zeroth" });
    writeFileSync(join(folder, "cursor"), events.lastCursor ?? "");
    await client.run({ ...request, taskId: "first" });
    const first = await run(title);
    // The second run of the example is open while the bridge restarts.
    const { child, output } = start(title);
    const failed = printed(child, "execution.failed second");
    await client.run({ ...request, taskId: "second", model: "fail" });
    await failed;
    await bridge.stop();
    await bridge.start();
    await client.run({ ...request, taskId: "third" });
    const lines = (first + (await output)).trim().split("\n").filter((line) => /^\d+ execution.* (first|second|third)$/.test(line));
    const each = (task: string, end: string) => ["accepted", "queued", "started", end].map((kind) => `execution.${kind} ${task}`);
    const expected = [...each("first", "completed"), ...each("second", "failed"), ...each("third", "completed")];
    expect(lines.map((line) => line.replace(/^\d+ /, ""))).toEqual(expected);
  }, 60_000);

  test("A run on a repository", async () => {
    const git = (...args: string[]) => execFileSync("git", args, {
      cwd: bridge.home,
      env: { ...process.env, GIT_CONFIG_GLOBAL: "/dev/null", GIT_AUTHOR_NAME: "t", GIT_AUTHOR_EMAIL: "t@example.org", GIT_COMMITTER_NAME: "t", GIT_COMMITTER_EMAIL: "t@example.org" },
    });
    git("init", "--quiet", "--initial-branch=main", "work");
    git("-C", "work", "commit", "--quiet", "--allow-empty", "-m", "first");
    git("clone", "--quiet", "--bare", "work", "origin.git");
    const plan = { tasks: [{ id: "hello", title: "Say hello", type: 1, dependencies: [], instructions: "write hello.txt hi" }] };
    const said = await run("A run on a repository", {
      "https://github.com/org/repo": `file://${bridge.home}/origin.git`,
      '"Build a REST API"': JSON.stringify(JSON.stringify(plan)),
    });
    expect(said).toBe("captain: The plan has 1 task.\nmerged: 1\ncompleted\n");
  }, 60_000);
});

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
