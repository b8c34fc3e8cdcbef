import { expect, test } from "vitest";
import { Bridge, BridgeError, type BridgeEvent, type BridgeFailure, type CallOptions, ForgeSDK, type Result } from "../src/index.js";
import { type Handler, listen } from "./server.js";

/** Answers the first requests with an error each, in this order, and all further ones with `{"dispatches": []}`. */
function failing(...answers: ("cut" | [number, Record<string, string>?])[]): { handler: Handler; asked: string[] } {
  const asked: string[] = [];
  const handler: Handler = (request, response) => {
    const answer = answers[asked.length];
    asked.push(`${request.method} ${request.url}`);
    if (answer === "cut") response.writeHead(200, { "Content-Length": 99 }).write("{", () => response.destroy());
    else if (answer) response.writeHead(answer[0], answer[1]).end('{"error": "no", "code": "C"}');
    else response.end('{"dispatches": [], "dispatchId": "dsp_1", "retried": 1}');
  };
  return { handler, asked };
}

const request = { taskId: "t", agentId: "a", message: "m", callbackUrl: null };

test("a request that is safe to repeat is repeated after no answer and temporary errors, at most twice", async () => {
  const { handler, asked } = failing("cut", [503]);
  const bridge = new Bridge({ baseUrl: await listen(handler) });
  expect(await bridge.dispatches()).toEqual({ items: [], nextCursor: null });
  expect(asked.length).toBe(3);
  for (const [answers, code, count] of [
    [[[500], [502], [503]], "C", 3],
    [["cut", "cut", "cut"], "UNREACHABLE", 3],
    [[[404]], "C", 1],
    [[[503, { "Retry-After": "31" }]], "C", 1],
  ] as const) {
    const { handler, asked } = failing(...(answers as unknown as Parameters<typeof failing>));
    const bridge = new Bridge({ baseUrl: await listen(handler) });
    await expect(bridge.show("x")).rejects.toMatchObject({ code });
    expect(asked.length).toBe(count);
  }
}, 20_000);

test("a dispatch is repeated, and what could happen twice only if it was refused as too much", async () => {
  for (const [answers, call, count] of [
    [["cut"], (bridge: Bridge) => bridge.dispatch(request), 2],
    [["cut"], (bridge: Bridge) => bridge.externalCommand("a.b", {}, { idempotencyKey: "k" }), 2],
    [["cut"], (bridge: Bridge) => bridge.externalQuery("a.b"), 2],
    [["cut"], (bridge: Bridge) => bridge.externalCommand("a.b"), 1],
    [["cut"], (bridge: Bridge) => bridge.retry("dlv_1"), 1],
    [[[503]], (bridge: Bridge) => bridge.approve("dsp_1"), 1],
    [[[429, { "Retry-After": "0" }]], (bridge: Bridge) => bridge.retry("dlv_1"), 2],
  ] as const) {
    const { handler, asked } = failing(...(answers as unknown as Parameters<typeof failing>));
    const bridge = new Bridge({ baseUrl: await listen(handler) });
    await call(bridge).catch((error: unknown) => expect(error).toBeInstanceOf(BridgeError));
    expect(asked.length, `${call}`).toBe(count);
  }
});

test("an answer that does not come in time is an error of its own", async () => {
  const bridge = new Bridge({ baseUrl: await listen(() => undefined), timeoutMs: 30, maxRetries: 0 });
  await expect(bridge.show("x")).rejects.toMatchObject({ code: "TIMEOUT", status: 0, isTemporary: true });
  const half = new Bridge({ baseUrl: await listen((_, response) => void response.write("{")), maxRetries: 0 });
  await expect(half.show("x", { timeoutMs: 30 })).rejects.toMatchObject({ code: "TIMEOUT" });
});

test("every method ends with its signal, and gives its reason", async () => {
  const { bridge, forge, calls } = await everyMethod();
  const called = new Set(calls.map(([name]) => name));
  const methods = [bridge, bridge.management(), forge].flatMap((one) =>
    Object.getOwnPropertyNames(Object.getPrototypeOf(one)).filter((name) => name !== "constructor"),
  );
  expect(methods.filter((name) => !called.has(name) && !["management", "events", "dispatchEvents", "streamEvents"].includes(name))).toEqual([]);
  for (const [name, call] of calls) {
    const controller = new AbortController();
    const answer = call({ signal: controller.signal });
    controller.abort(new Error(`abort of ${name}`));
    await expect(answer, name).rejects.toThrow(`abort of ${name}`);
  }
});

test("dots are no ids in any method, because they would name another route", async () => {
  const seen: string[] = [];
  const handler: Handler = (request, response) => {
    seen.push(decodeURIComponent(request.url?.split("?", 1)[0] ?? ""));
    response.writeHead(404).end('{"error": "no", "code": "NOT_FOUND"}');
  };
  /** What each method asks for with this id, and its error. */
  const outcomes = async (id: string) => {
    const { bridge, forge, calls } = await everyMethod(handler, id);
    const streams: typeof calls = [
      ["dispatchEvents", async () => bridge.dispatchEvents(id).next()],
      ["streamEvents", async () => forge.streamEvents(id).next()],
    ];
    const found: { name: string; paths: string[]; error: unknown }[] = [];
    for (const [name, call] of [...calls, ...streams]) {
      seen.length = 0;
      const error: unknown = await call({ signal: AbortSignal.timeout(10_000) }).then(() => undefined, (caught: unknown) => caught);
      found.push({ name, paths: [...seen], error });
    }
    return found;
  };
  const takesId = (await outcomes("an-id")).map(({ paths }) => paths.some((path) => path.split("/").includes("an-id")));
  expect(takesId.filter(Boolean).length).toBeGreaterThan(45);
  for (const id of [".", ".."]) {
    for (const [index, { name, paths, error }] of (await outcomes(id)).entries()) {
      if (!takesId[index]) continue;
      if (!BridgeError.is(error)) throw new Error(`${name}("${id}") asked for ${paths}`, { cause: error });
      expect([error.status, error.code, paths], name).toEqual([400, "INVALID_REQUEST", []]);
      expect(error.message).toContain(`"${id}" cannot be part of a path`);
    }
  }
});

test("the code of an error selects its details", async () => {
  const bridge = new Bridge({
    baseUrl: await listen((_, response) => {
      response.writeHead(400).end('{"error": "no", "code": "INVALID_REQUEST", "details": [{"field": "f", "message": "m"}]}');
    }),
  });
  const error: unknown = await bridge.show("x").catch((caught: unknown) => caught);
  if (!BridgeError.is(error)) throw error;
  expect(fields(error)).toEqual(["f"]);
});

/** Compiles only while the union is discriminated; `tsc -p test` checks it. */
function fields(error: BridgeFailure): string[] {
  switch (error.code) {
    case "INVALID_REQUEST":
      return error.details?.map((one) => one.field) ?? [];
    case "CURSOR_EXPIRED":
      return [error.details?.firstSafeCursor ?? ""];
    // @ts-expect-error -- there is no such code.
    case "INVALID_REQUESTS":
      return [];
    default:
      return [];
  }
}

/** The same for events. */
export function delta(event: BridgeEvent): string | undefined {
  // @ts-expect-error -- there is no such type.
  if (event.type === "assistant.txt") return undefined;
  // @ts-expect-error -- the data of this type has no such member.
  if (event.type === "usage") return event.data.delta;
  return event.type === "assistant.text" ? event.data.delta : undefined;
}

/** The same for results. */
export function said(result: Result): string | undefined {
  // @ts-expect-error -- present only with the status "error".
  const code: string = result.errorCode;
  return result.status === "error" ? `${result.errorCode.length}${code}` : result.output;
}

/** A bridge that never answers, and a call of every method. */
async function everyMethod(handler: Handler = () => undefined, id = "x"): Promise<{
  bridge: Bridge;
  forge: ForgeSDK;
  calls: [string, (options: CallOptions) => Promise<unknown>][];
}> {
  const baseUrl = await listen(handler);
  const bridge = new Bridge({ baseUrl, maxRetries: 0 });
  const forge = new ForgeSDK(baseUrl);
  const runtime = bridge.management();
  return {
    bridge,
    forge,
    calls: [
      ["run", (o) => bridge.run(request, o)],
      ["dispatch", (o) => bridge.dispatch(request, o)],
      ["show", (o) => bridge.show(id, o)],
      ["showAll", (o) => bridge.showAll(id, o)],
      ["output", (o) => bridge.output(id, o)],
      ["files", (o) => bridge.files(id, o)],
      ["file", (o) => bridge.file(id, "y", o)],
      ["dispatches", (o) => bridge.dispatches({}, o)],
      ["request", (o) => bridge.request(id, o)],
      ["runAgain", (o) => bridge.runAgain(id, {}, o)],
      ["cancel", (o) => bridge.cancel(id, o)],
      ["deliveries", (o) => bridge.deliveries({}, o)],
      ["delivery", (o) => bridge.delivery(id, o)],
      ["retry", (o) => bridge.retry(id, o)],
      ["retryAll", (o) => bridge.retryAll({}, o)],
      ["destinations", (o) => bridge.destinations(o)],
      ["closeDestination", (o) => bridge.closeDestination(id, o)],
      ["nodes", (o) => bridge.nodes(o)],
      ["throughput", (o) => bridge.throughput(o)],
      ["cost", (o) => bridge.cost("7d", o)],
      ["recentEvents", (o) => bridge.recentEvents(5, o)],
      ["adapters", (o) => bridge.adapters(o)],
      ["adapter", (o) => bridge.adapter(id, o)],
      ["reload", (o) => bridge.reload(id, o)],
      ["pause", (o) => bridge.pause(id, o)],
      ["resume", (o) => bridge.resume(id, o)],
      ["externalCommand", (o) => bridge.externalCommand({ service: "s", name: id }, {}, o)],
      ["externalQuery", (o) => bridge.externalQuery({ service: id, name: "y" }, {}, o)],
      ["externalServices", (o) => bridge.externalServices(o)],
      ["approvals", (o) => bridge.approvals({}, o)],
      ["approve", (o) => bridge.approve(id, undefined, o)],
      ["reject", (o) => bridge.reject(id, undefined, o)],
      ["signalSessions", (o) => bridge.signalSessions({}, o)],
      ["signalSession", (o) => bridge.signalSession(id, o)],
      ["signalTotals", (o) => bridge.signalTotals("user", undefined, o)],
      ["interventions", (o) => bridge.interventions({}, o)],
      ["signalRules", (o) => bridge.signalRules(o)],
      ["health", (o) => bridge.health(o)],
      ["ticket", (o) => bridge.ticket(o)],
      ["reference", (o) => bridge.reference(o)],
      ["agents", (o) => runtime.agents(o)],
      ["agent", (o) => runtime.agent(id, o)],
      ["createAgent", (o) => runtime.createAgent({ agentId: id }, o)],
      ["updateAgent", (o) => runtime.updateAgent({ agentId: id }, o)],
      ["removeAgent", (o) => runtime.removeAgent(id, o)],
      ["files", (o) => runtime.files(id, o)],
      ["writeFile", (o) => runtime.writeFile(id, "y", "z", o)],
      ["removeFile", (o) => runtime.removeFile(id, "y", o)],
      ["bindings", (o) => runtime.bindings(id, o)],
      ["setBindings", (o) => runtime.setBindings(id, [], o)],
      ["skills", (o) => runtime.skills(o)],
      ["skill", (o) => runtime.skill(id, o)],
      ["createSkill", (o) => runtime.createSkill({ skillKey: id }, o)],
      ["updateSkill", (o) => runtime.updateSkill({ skillKey: id }, o)],
      ["removeSkill", (o) => runtime.removeSkill(id, o)],
      ["skillStatus", (o) => runtime.skillStatus(id, o)],
      ["installDependencies", (o) => runtime.installDependencies(id, o)],
      ["models", (o) => runtime.models(o)],
      ["systemModels", (o) => runtime.systemModels(o)],
      ["securityPosture", (o) => runtime.securityPosture(o)],
      ["reloadConfig", (o) => runtime.reloadConfig(o)],
      ["createRun", (o) => forge.createRun("r", o)],
      ["getRun", (o) => forge.getRun(id, o)],
      ["listRuns", (o) => forge.listRuns({}, o)],
      ["listEvents", (o) => forge.listEvents(id, {}, o)],
      ["pauseRun", (o) => forge.pauseRun(id, undefined, o)],
      ["resumeRun", (o) => forge.resumeRun(id, o)],
      ["cancelRun", (o) => forge.cancelRun(id, o)],
      ["approvePlan", (o) => forge.approvePlan(id, o)],
      ["reopenPlan", (o) => forge.reopenPlan(id, o)],
      ["verifyRun", (o) => forge.verifyRun(id, o)],
      ["sendCaptainMessage", (o) => forge.sendCaptainMessage(id, "y", o)],
      ["listTasks", (o) => forge.listTasks(id, o)],
      ["getTask", (o) => forge.getTask(id, "y", o)],
      ["retryRun", (o) => forge.retryRun(id, undefined, o)],
      ["retryTask", (o) => forge.retryTask(id, "y", o)],
      ["getArtifact", (o) => forge.getArtifact(id, "y", o)],
      ["listChangeRequests", (o) => forge.listChangeRequests(id, o)],
      ["approveChangeRequest", (o) => forge.approveChangeRequest(id, "y", o)],
      ["rejectChangeRequest", (o) => forge.rejectChangeRequest(id, "y", undefined, o)],
    ],
  };
}
