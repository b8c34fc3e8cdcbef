import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { Bridge, BridgeError, type BridgeEvent } from "../src/index.js";

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

let server: Server | undefined;

async function serve(handler: Handler): Promise<Bridge> {
  server = createServer(handler);
  await new Promise<void>((resolve) => server?.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return new Bridge({ baseUrl: `http://127.0.0.1:${port}/`, token: () => "secret", maxRetries: 0 });
}

afterEach(async () => {
  server?.closeAllConnections();
  await new Promise((resolve) => (server ? server.close(resolve) : resolve(undefined)));
  server = undefined;
});

function event(id: number): BridgeEvent {
  const data = { delta: "x" };
  return { id: `log-${id}`, seq: id, type: "assistant.text", taskId: "t", agentId: "a", dispatchId: "d", provider: "echo", timestamp: "", data };
}

function line(...events: BridgeEvent[]): string {
  return events.map((one) => `${JSON.stringify(one)}\n`).join("");
}

async function ids(stream: AsyncIterable<BridgeEvent>): Promise<string[]> {
  const seen: string[] = [];
  for await (const one of stream) seen.push(one.id);
  return seen;
}

describe("requests", () => {
  test("carry the token, and filters that are given", async () => {
    const seen: (string | undefined)[] = [];
    const bridge = await serve((request, response) => {
      seen.push(request.url, request.headers.authorization);
      response.end('{"dispatches": [], "nextCursor": "7"}');
    });
    const page = await bridge.dispatches({ status: "running", provider: "", limit: 5 });
    expect(page).toEqual({ items: [], nextCursor: "7" });
    expect(seen).toEqual(["/api/v2/dispatches?status=running&limit=5", "Bearer secret"]);
  });

  test("name the adapter and the action", async () => {
    const seen: string[] = [];
    const bridge = await serve((request, response) => {
      seen.push(`${request.method} ${request.url}`);
      response.end('{"provider": "acme ai", "destinations": []}');
    });
    for (const ask of [bridge.pause, bridge.resume, bridge.reload]) {
      expect(await ask.call(bridge, "acme ai")).toMatchObject({ provider: "acme ai" });
    }
    expect(await bridge.destinations()).toEqual([]);
    expect(seen).toEqual([
      "POST /api/v2/adapters/acme%20ai/pause",
      "POST /api/v2/adapters/acme%20ai/resume",
      "POST /api/v2/adapters/acme%20ai/reload",
      "GET /api/v2/deliveries/destinations",
    ]);
  });

  test("fail with the message of the envelope", async () => {
    const bridge = await serve((_, response) => {
      response.writeHead(429, { "Retry-After": "3" });
      response.end('{"error": "too many", "code": "RATE_LIMITED", "requestId": "req_1"}');
    });
    const error = await bridge.show("x").catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(BridgeError);
    expect(error).toMatchObject({ status: 429, code: "RATE_LIMITED", message: "too many", retryAfterMs: 3000, requestId: "req_1" });
  });

  test("fail clearly when an intermediary answers, and when there is no answer", async () => {
    const bridge = await serve((_, response) => {
      response.writeHead(502);
      response.end("<html>");
    });
    await expect(bridge.adapters()).rejects.toMatchObject({ code: "HTTP_502", isTemporary: true });
    const unreachable = new Bridge({ baseUrl: "http://127.0.0.1:9", maxRetries: 0 });
    await expect(unreachable.adapters()).rejects.toMatchObject({ status: 0, code: "UNREACHABLE" });
  });
});

describe("a stream", () => {
  test("disconnected at any byte resumes after the last complete event", async () => {
    const whole = line(event(1), event(2), event(3));
    for (let cut = 1; cut < whole.length; cut += 17) {
      let connections = 0;
      const bridge = await serve((request, response) => {
        const after = new URL(request.url ?? "", "http://x").searchParams.get("after");
        if (after === "log-3") {
          response.writeHead(204).end();
          return;
        }
        const from = after ? Number(after.slice(4)) : 0;
        const rest = line(...[event(1), event(2), event(3)].slice(from));
        connections += 1;
        const first = connections === 1;
        response.write(first ? whole.slice(0, cut) : rest);
        if (first) setImmediate(() => response.destroy());
        else response.end();
      });
      expect(await ids(bridge.dispatchEvents("d", { maxPauseMs: 1 }))).toEqual(["log-1", "log-2", "log-3"]);
      server?.closeAllConnections();
      server?.close();
    }
  });

  test("of all events resolves now once, also when disconnected before its first event", async () => {
    const asked: string[] = [];
    const bridge = await serve((request, response) => {
      const url = new URL(request.url ?? "", "http://x");
      asked.push(`${request.headers.accept?.split("/")[1]} ${url.searchParams.get("after")}`);
      if (request.headers.accept === "application/json") response.end('{"events": [], "nextCursor": "log-4"}');
      else if (asked.length === 2) response.destroy();
      else response.write(line(event(5)));
    });
    const controller = new AbortController();
    for await (const one of bridge.events({}, { signal: controller.signal, maxPauseMs: 1 })) {
      expect(one.id).toBe("log-5");
      controller.abort();
    }
    expect(asked).toEqual(["json now", "x-ndjson log-4", "x-ndjson log-4"]);
  });

  test("that is silent for too long counts as disconnected; heartbeats keep it open", async () => {
    let connections = 0;
    const bridge = await serve((_, response) => {
      connections += 1;
      if (connections === 1) response.write("\n");
      else response.end(line(event(1)));
    });
    const controller = new AbortController();
    for await (const one of bridge.events({}, { after: "0", idleMs: 50, maxPauseMs: 1, signal: controller.signal })) {
      expect(one.id).toBe("log-1");
      controller.abort();
    }
    expect(connections).toBe(2);
  });

  test("throws permanent errors", async () => {
    const bridge = await serve((_, response) => {
      response.writeHead(410);
      response.end('{"error": "removed", "code": "CURSOR_EXPIRED", "details": {"firstSafeCursor": "log-9"}}');
    });
    const failure = ids(bridge.events({}, { after: "log-1" }));
    await expect(failure).rejects.toMatchObject({ code: "CURSOR_EXPIRED", details: { firstSafeCursor: "log-9" } });
  });

  test("whose token was revoked ends with the reason, and without a made-up event", async () => {
    let connections = 0;
    const bridge = await serve((_, response) => {
      connections += 1;
      if (connections === 1) return void response.end(`${line(event(1))}{"type": "unauthorized", "error": "revoked", "code": "UNAUTHORIZED"}\n`);
      response.writeHead(401);
      response.end('{"error": "this token is not known", "code": "UNAUTHORIZED"}');
    });
    const seen: string[] = [];
    const reading = (async () => {
      for await (const one of bridge.dispatchEvents("t")) seen.push(one.id);
    })();
    await expect(reading).rejects.toMatchObject({ status: 401, code: "UNAUTHORIZED" });
    expect(seen).toEqual(["log-1"]);
  });
});

describe("signals", () => {
  test("are read by the filters that are given", async () => {
    const seen: (string | undefined)[] = [];
    const bridge = await serve((request, response) => {
      seen.push(request.url);
      response.end('{"sessions": [1], "interventions": [2], "rules": [3], "totals": [4], "nextCursor": "n", "leftOutUntil": null}');
    });
    expect(await bridge.signalSessions({ active: true, user: "ana b", cursor: "c" })).toEqual({ items: [1], nextCursor: "n" });
    expect(await bridge.interventions({ session: "s", limit: 3 })).toEqual({ items: [2], nextCursor: "n" });
    expect(await bridge.signalRules()).toEqual([3]);
    expect(await bridge.signalTotals("model", "7d")).toMatchObject({ totals: [4], leftOutUntil: null });
    await bridge.signalSession("a/b");
    expect(seen).toEqual([
      "/api/v2/signals/sessions?active=true&user=ana+b&cursor=c",
      "/api/v2/signals/interventions?session=s&limit=3",
      "/api/v2/signals/rules",
      "/api/v2/signals/totals?by=model&since=7d",
      "/api/v2/signals/sessions/a%2Fb",
    ]);
  });
});

describe("external services", () => {
  test("are called by name or reference, and the result is returned", async () => {
    const seen: unknown[] = [];
    const bridge = await serve(async (request, response) => {
      let body = "";
      for await (const piece of request) body += piece;
      seen.push(`${request.method} ${request.url}`, JSON.parse(body));
      response.end('{"ok": true, "result": {"id": "inv_1"}, "diagnostics": [], "traceId": "t"}');
    });
    expect(await bridge.externalCommand("billing.create.it", { title: "x" })).toEqual({ id: "inv_1" });
    expect(await bridge.externalQuery({ service: "a/b", name: "c d" })).toEqual({ id: "inv_1" });
    expect(seen).toEqual([
      "POST /external/billing/commands/create.it",
      { args: { title: "x" } },
      "POST /external/a%2Fb/queries/c%20d",
      { args: {} },
    ]);
  });

  test("fail with the code, the diagnostics and the trace of the answer", async () => {
    const bridge = await serve((_, response) => {
      response.statusCode = 403;
      response.end('{"ok": false, "error": "no", "code": "FORGE_POLICY_DENIED", "diagnostics": [1], "traceId": "t"}');
    });
    const error = await bridge.externalCommand("a.b").catch((error: unknown) => error);
    expect(error).toMatchObject({ code: "FORGE_POLICY_DENIED", details: [1], traceId: "t", status: 403 });
    await expect(bridge.externalQuery("nodot")).rejects.toMatchObject({ code: "FORGE_EXTERNAL_RUNTIME_NOT_FOUND" });
  });

  test("a held call is no result", async () => {
    const bridge = await serve((_, response) => {
      response.statusCode = 202;
      response.end('{"ok": false, "error": "held", "code": "HELD", "dispatchId": "dsp_1"}');
    });
    await expect(bridge.externalCommand("a.b")).rejects.toMatchObject({ status: 202, code: "HELD" });
  });
});
