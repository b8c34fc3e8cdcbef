import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { ForgAdapter } from "./adapter.ts";
import { sign } from "./engine.ts";

const KEY = Buffer.from(Array.from({ length: 32 }, (_, byte) => byte));
const CALL = { model: "claude-opus-4-5", tokensIn: 100, tokensOut: 50 };

interface Received {
  path: string;
  signature: string;
  body: string;
}

/** An agent that answers each signal with this text. */
async function agent(answer: string): Promise<{ server: Server; url: string; received: Received[] }> {
  const received: Received[] = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    const path = request.url ?? "";
    received.push({ path, signature: String(request.headers["x-forg-signature"]), body });
    const session = { session_id: "sess_1", session_key: KEY.toString("base64"), expires_at: "2030-01-01T00:00:00Z" };
    response.end(path === "/session/start" ? JSON.stringify(session) : answer);
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, received };
}

test("a signal has the fields of the protocol and is signed over its bytes", async () => {
  const { server, url, received } = await agent('{"blocked": false}');
  const forg = new ForgAdapter("a", undefined, { FORG_AGENT_URL: url });
  assert.equal((await forg.emit(CALL)).blocked, false);
  await forg.endSession();
  server.close();
  assert.deepEqual(received.map(({ path }) => path), ["/session/start", "/emit", "/emit"]);
  for (const { signature, body } of received.slice(1)) {
    assert.equal(signature, `sha256=${createHmac("sha256", KEY).update(body).digest("hex")}`);
  }
  const [usage, end] = received.slice(1).map(({ body }) => JSON.parse(body));
  const { adapter, model, tokens_in, tokens_out, session_id } = usage;
  assert.deepEqual([adapter, model, tokens_in, tokens_out, session_id], ["a", "claude-opus-4-5", 100, 50, "sess_1"]);
  assert.deepEqual([end.hook, end.session_id], ["SessionEnd", "sess_1"]);
});

test("only the boolean true blocks", async () => {
  for (const [answer, blocked] of [['{"blocked": true, "message": "m"}', true], ['{"blocked": "true"}', false], ["<p>", false]] as const) {
    const { server, url } = await agent(answer);
    const verdict = await new ForgAdapter("a", undefined, { FORG_AGENT_URL: url }).emit(CALL);
    server.close();
    assert.equal(verdict.blocked, blocked, answer);
  }
});

test("without an agent the tool continues", async () => {
  const { server, url } = await agent("");
  await new Promise((closed) => server.close(closed));
  const verdict = await new ForgAdapter("a", undefined, { FORG_AGENT_URL: url }).emit(CALL);
  assert.equal(verdict.blocked, false);
});

test("a signal to the engine is signed with the first 32 bytes of the token", () => {
  const body = '{"type":"adapter-heartbeat","adapter_id":"my-tool","latency_ms":4}';
  const digits = "a91fa1e7983b730f1ecb925ed99bf5ad6d2b27b6508dfbf14a0d0bbbde1de571";
  assert.equal(sign("forg_live_a3f9e2c1b84d7f6e0a2c1d8e9f0b3c4d", body), digits);
  const short = "eff3bdcfe7f8f72874e0114f05375e1835c2dcdb91b9d36de2576c6cb6d1024e";
  assert.equal(sign("lic_a3f9e2c1b84d7f6e0a2c", body), short);
});
