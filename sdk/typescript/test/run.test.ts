import { expect, test } from "vitest";
import { Bridge } from "../src/index.js";
import { type Handler, listen, text } from "./server.js";

const request = { taskId: "t", agentId: "a", message: "m" };

/** A bridge with one dispatch of two events, whose first stream is cut after the first one. `asked` has all requests. */
function bridge(asked: string[], ends: boolean): Handler {
  const line = (n: number) => `${JSON.stringify({ id: `log-${n}`, seq: n, type: n === 2 ? "execution.completed" : "execution.queued" })}\n`;
  return async (request, response) => {
    const body = await text(request);
    asked.push(`${request.method} ${request.url}${body}`);
    if (request.method === "POST") response.end('{"dispatchId": "dsp_1", "cancelled": true}');
    else if (request.url === "/api/v2/dispatch/dsp_1/events") response.write(line(1), () => ends && setImmediate(() => response.destroy()));
    else if (request.url?.endsWith("after=log-1")) response.end(line(2));
    else if (request.url?.includes("/events")) response.writeHead(204).end();
    else response.end('{"result": {"status": "ok", "output": "done"}}');
  };
}

const stream = "GET /api/v2/dispatch/dsp_1/events";

test("a run posts the dispatch, follows its events over a cut stream and returns the result", async () => {
  const asked: string[] = [];
  const seen: string[] = [];
  const client = new Bridge({ baseUrl: await listen(bridge(asked, true)) });
  const result = await client.run(request, { onEvent: (event) => seen.push(`${event.type} ${JSON.stringify(event.data)}`) });
  expect(result).toEqual({ status: "ok", output: "done" });
  expect(seen).toEqual(["execution.queued {}", "execution.completed {}"]);
  expect(asked).toEqual([
    'POST /api/v2/dispatch{"taskId":"t","agentId":"a","message":"m","callbackUrl":null}',
    stream,
    `${stream}?after=log-1`,
    `${stream}?after=log-2`,
    "GET /api/v2/dispatch/dsp_1?wait=60",
  ]);
});

test("an abort ends the waiting alone, and cancels the dispatch only if that is asked for", async () => {
  for (const cancelOnAbort of [false, true]) {
    const asked: string[] = [];
    const client = new Bridge({ baseUrl: await listen(bridge(asked, false)) });
    const controller = new AbortController();
    const onEvent = () => controller.abort(new Error("enough"));
    await expect(client.run(request, { signal: controller.signal, cancelOnAbort, onEvent })).rejects.toThrow("enough");
    const cancels = cancelOnAbort ? ["POST /api/v2/dispatch/dsp_1/cancel"] : [];
    expect(asked.slice(1)).toEqual([stream, ...cancels]);
  }
});

test("nothing is posted after an abort", async () => {
  const asked: string[] = [];
  const client = new Bridge({ baseUrl: await listen(bridge(asked, true)) });
  await expect(client.run(request, { signal: AbortSignal.abort(new Error("before")), cancelOnAbort: true })).rejects.toThrow("before");
  expect(asked).toEqual([]);
});
