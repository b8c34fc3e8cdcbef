import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test, vi } from "vitest";
import { BridgeError, ForgeAPIError, type ForgeEvent, ForgeSDK } from "../src/index.js";

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

let server: Server | undefined;

async function serve(handler: Handler, path = "/api/v1"): Promise<ForgeSDK> {
  server = createServer(handler);
  await new Promise<void>((resolve) => server?.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return new ForgeSDK(`http://127.0.0.1:${port}${path}`, { token: "secret" });
}

async function stop(): Promise<void> {
  server?.closeAllConnections();
  await new Promise((resolve) => (server ? server.close(resolve) : resolve(undefined)));
  server = undefined;
}

afterEach(stop);

const calls: [string, unknown, string, unknown, (forge: ForgeSDK) => Promise<unknown>][] = [
  ["POST /runs", { repoUrl: "r", model: "m", planReview: true }, '{"runId": "run_1"}', { runId: "run_1" }, (forge) =>
    forge.createRun("r", { model: "m", planReview: true, idempotencyKey: "k" })],
  ["GET /runs/run_1", undefined, '{"runId": "run_1"}', { runId: "run_1" }, (forge) => forge.getRun("run_1")],
  ["GET /runs?status=failed&limit=5", undefined, '{"runs": [1], "nextCursor": null}', { items: [1], nextCursor: null }, (forge) =>
    forge.listRuns({ status: "failed", limit: 5 })],
  ["GET /runs/a%2Fb/events?after=7", undefined, '{"events": [1], "nextCursor": "8"}', { items: [1], nextCursor: "8" }, (forge) =>
    forge.listEvents("a/b", { after: "7" })],
  ["POST /runs/a/pause", undefined, '{"status": "paused"}', undefined, (forge) => forge.pauseRun("a")],
  ["POST /runs/a/pause", { mode: "abort" }, '{"status": "paused"}', undefined, (forge) => forge.pauseRun("a", "abort")],
  ["POST /runs/a/resume", undefined, '{"status": "planning"}', undefined, (forge) => forge.resumeRun("a")],
  ["POST /runs/a/cancel", undefined, '{"status": "cancelled"}', undefined, (forge) => forge.cancelRun("a")],
  ["POST /runs/a/plan/approve", undefined, '{"status": "executing"}', undefined, (forge) => forge.approvePlan("a")],
  ["POST /runs/a/plan/reopen", undefined, '{"status": "planning"}', undefined, (forge) => forge.reopenPlan("a")],
  ["GET /runs/a/verify", undefined, '{"ok": true}', { ok: true }, (forge) => forge.verifyRun("a")],
  ["POST /captain/message", { runId: "a", message: "hi" }, '{"acknowledged": true}', undefined, (forge) =>
    forge.sendCaptainMessage("a", "hi")],
  ["GET /runs/a/tasks", undefined, "[1]", [1], (forge) => forge.listTasks("a")],
  ["GET /runs/a/tasks/t%20u", undefined, '{"taskId": "t u"}', { taskId: "t u" }, (forge) => forge.getTask("a", "t u")],
  ["POST /runs/a/retry", { budget: { maxTokens: 9 } }, '{"status": "executing"}', undefined, (forge) => forge.retryRun("a", { maxTokens: 9 })],
  ["POST /runs/a/tasks/t/retry", undefined, '{"status": "executing"}', undefined, (forge) => forge.retryTask("a", "t")],
  ["GET /runs/a/change-requests", undefined, '[{"crId": "cr-1"}]', [{ crId: "cr-1" }], (forge) => forge.listChangeRequests("a")],
  ["POST /runs/a/change-requests/cr-1/approve", undefined, '{"status": "approved"}', undefined, (forge) =>
    forge.approveChangeRequest("a", "cr-1")],
  ["POST /runs/a/change-requests/c%2F1/reject", undefined, '{"status": "rejected"}', undefined, (forge) =>
    forge.rejectChangeRequest("a", "c/1")],
  ["POST /runs/a/change-requests/cr-1/reject", { reason: "too large" }, '{"status": "rejected"}', undefined, (forge) =>
    forge.rejectChangeRequest("a", "cr-1", "too large")],
  ["GET /runs/a/artifacts/specs/x%3F%20%23.md", undefined, "# €", "# €", (forge) => forge.getArtifact("a", "specs/x? #.md")],
];

test.each(calls)("%s is asked, and its answer returned", async (route, body, answer, expected, call) => {
  for (const path of ["", "/", "/api/v1", "/api/v1/"]) {
    const seen: unknown[] = [];
    const forge = await serve(async (request, response) => {
      let text = "";
      for await (const piece of request) text += piece;
      seen.push(`${request.method} ${request.url}`, request.headers.authorization, text ? JSON.parse(text) : undefined);
      seen.push(request.headers["content-type"], request.headers["idempotency-key"]);
      response.end(answer);
    }, path);
    expect(await call(forge)).toEqual(expected);
    const type = body === undefined ? undefined : "application/json";
    expect(seen).toEqual([route.replace(" ", " /api/v1"), "Bearer secret", body, type, route === "POST /runs" ? "k" : undefined]);
    await stop();
  }
});

test("an error has the status, code, details and request of the answer", async () => {
  const forge = await serve((_, response) => {
    response.writeHead(409, { "Retry-After": "2" });
    response.end('{"error": "ended", "code": "INVALID_STATE", "details": {"status": "failed"}, "requestId": "req_1"}');
  });
  const error: unknown = await forge.pauseRun("a").catch((caught: unknown) => caught);
  expect(error).toBeInstanceOf(ForgeAPIError);
  expect(error).toBeInstanceOf(BridgeError);
  expect(error).toMatchObject({
    name: "ForgeAPIError", message: "[INVALID_STATE] ended", statusCode: 409, code: "INVALID_STATE",
    details: { status: "failed" }, requestId: "req_1", retryAfterMs: 2000,
  });
  await expect(forge.streamEvents("a").next()).rejects.toBeInstanceOf(ForgeAPIError);
  await stop();
  const cut = await serve((_, response) => {
    response.writeHead(200, { "Content-Length": 100 }).write('{"runId": ', () => response.destroy());
  });
  await expect(cut.getRun("a")).rejects.toMatchObject({ name: "ForgeAPIError", code: "UNREACHABLE" });
  const unreachable = new ForgeSDK("http://127.0.0.1:9").getRun("a");
  await expect(unreachable).rejects.toMatchObject({ statusCode: 0, code: "UNREACHABLE", isTemporary: true });
});

test("a path with dots is refused before another route is asked", async () => {
  let requests = 0;
  const forge = await serve((_, response) => {
    requests += 1;
    response.end("{}");
  });
  const refused = { statusCode: 400, code: "INVALID_REQUEST" };
  await expect(forge.getArtifact("a", "../../b/artifacts/x")).rejects.toMatchObject(refused);
  await expect(forge.getTask("..", "t")).rejects.toMatchObject(refused);
  await expect(forge.streamEvents(".").next()).rejects.toMatchObject(refused);
  expect(requests).toBe(0);
});

function event(seq: number, type: string, data: object): ForgeEvent {
  return { eventId: `evt-${seq}`, seq, timestamp: "2026-01-01T00:00:00Z", type, runId: "a", data } as unknown as ForgeEvent;
}

const events = [
  event(1, "run.started", { repoUrl: "r" }),
  event(2, "captain.message", { content: "ü€😀\u2028", role: "assistant" }),
  event(3, "later.version", { colour: "blue" }),
  event(4, "run.completed", { totalCompleted: 1, totalFailed: 0, refineriesCompleted: 1, refineriesFailed: 0, duration: 5, status: "completed" }),
];

/** Events after this cursor as the bridge writes them, with keep-alives and empty lines between. */
function written(after: string | null): Buffer {
  const from = events.findIndex((one) => one.eventId === after) + 1;
  return Buffer.from(events.slice(from).map((one) => `: keepalive\n${JSON.stringify(one)}\n\n`).join(""));
}

/** Server of the stream: the first connection ends after `cut` bytes, in this way; the others are whole. */
function stream(cut: number, end: (response: ServerResponse) => void): { handler: Handler; asked: string[] } {
  const asked: string[] = [];
  const handler: Handler = (request, response) => {
    const url = new URL(request.url ?? "", "http://x");
    const bytes = written(url.searchParams.get("after"));
    asked.push(`${url.pathname}${url.search}`);
    if (asked.length > 1) return void response.end(bytes);
    response.flushHeaders();
    response.write(bytes.subarray(0, cut), () => setImmediate(() => end(response)));
  };
  return { handler, asked };
}

async function read(events: AsyncIterable<ForgeEvent>): Promise<ForgeEvent[]> {
  const seen: ForgeEvent[] = [];
  for await (const one of events) seen.push(one);
  return seen;
}

test("a stream cut after any line, in lines and in characters yields each event once", async () => {
  const whole = written(null);
  // Asked again after the last event whose line was complete.
  const isRead = (one: ForgeEvent, cut: number) => whole.subarray(0, cut).includes(`${JSON.stringify(one)}\n`);
  // Beside each end of a line, inside each character of several bytes, and here and there.
  const isSpecial = (byte = 0) => byte === 10 || byte > 127;
  const cuts = [...whole.keys()].filter((at) => at % 53 === 0 || isSpecial(whole[at - 1]) || isSpecial(whole[at]));
  for (const cut of [...cuts, whole.length]) {
    for (const end of [(response: ServerResponse) => response.destroy(), (response: ServerResponse) => response.end()]) {
      const { handler, asked } = stream(cut, end);
      const forge = await serve(handler);
      expect(await read(forge.streamEvents("a", { maxPauseMs: 1 })), `cut ${cut}`).toEqual(events);
      const last = events.findLast((one) => isRead(one, cut))?.eventId;
      const again = last === "evt-4" ? [] : [`/api/v1/runs/a/stream${last ? `?after=${last}` : ""}`];
      expect(asked, `cut ${cut}`).toEqual(["/api/v1/runs/a/stream", ...again]);
      await stop();
    }
  }
}, 60_000);

test("a stream that stays open ends after run.completed and asks no second time", async () => {
  const { handler, asked } = stream(written(null).length, () => undefined);
  const forge = await serve(handler);
  expect(await read(forge.streamEvents("a", { events: "core" }))).toEqual(events);
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(asked).toEqual(["/api/v1/runs/a/stream?events=core"]);
});

test("a reader that begins again after an ended run asks ever more rarely", async () => {
  let streams = 0;
  const forge = await serve((request, response) => {
    const isStream = request.url === "/api/v1/runs/a/stream?after=evt-4";
    if (isStream) streams += 1;
    response.end(isStream ? "" : JSON.stringify({ completedAt: "2026-01-01T00:00:00Z", lastEventId: "evt-4" }));
  });
  const timers = vi.spyOn(globalThis, "setTimeout");
  for (let round = 0; round < 3; round += 1) await read(forge.streamEvents("a", { after: "evt-4", idleMs: 60_000 }));
  // The timers of sockets are whole; a pause with jitter is not.
  const pauses = timers.mock.calls.map(([, ms]) => ms ?? 0).filter((ms) => !Number.isInteger(ms));
  timers.mockRestore();
  expect(streams).toBe(3);
  // Each reader pauses after its empty stream too, before it asks if the run has ended.
  expect(pauses).toHaveLength(6);
  [125, 250, 500].forEach((least, round) => expect(pauses[2 * round + 1]).toBeGreaterThanOrEqual(least));
});

test("a stream after the last event of an ended run ends", async () => {
  for (const after of ["evt-4", "now"]) {
    let streams = 0;
    const forge = await serve((request, response) => {
      const isStream = request.url === "/api/v1/runs/a/stream?after=evt-4";
      if (isStream) streams += 1;
      // The run ends while the second connection is open.
      const completedAt = streams < 2 ? null : "2026-01-01T00:00:00Z";
      response.end(isStream ? "" : JSON.stringify({ completedAt, lastEventId: "evt-4" }));
    });
    expect(await read(forge.streamEvents("a", { after }))).toEqual([]);
    expect(streams).toBe(2);
    await stop();
  }
});
