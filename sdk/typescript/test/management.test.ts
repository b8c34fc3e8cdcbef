import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { Bridge } from "../src/index.js";

let server: Server | undefined;
let seen: unknown[] = [];

/** Starts a server that records each request and answers all with this status and body. */
async function serve(status: number, answer = ""): Promise<Bridge> {
  server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    seen.push(`${request.method} ${request.url}`);
    if (body) seen.push([request.headers["content-type"], JSON.parse(body)]);
    response.writeHead(status).end(answer);
  });
  await new Promise<void>((resolve) => server?.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  return new Bridge({ baseUrl: `http://127.0.0.1:${port}` });
}

afterEach(async () => {
  server?.closeAllConnections();
  await new Promise((resolve) => (server ? server.close(resolve) : resolve(undefined)));
  server = undefined;
  seen = [];
});

test("every reading method asks its route, of the adapter that is named", async () => {
  const bridge = await serve(200, "[1]");
  const named = bridge.management("acme ai");
  const asked = [
    named.agents(), named.agent("a/b"), named.files("a"), named.file("a", "notes/x y.md"), named.bindings("a"),
    named.skills(), named.skill("s/t"), named.skillStatus("s"), named.models(), named.systemModels(), named.securityPosture(),
  ];
  for (const answer of asked) expect(await answer).toEqual([1]);
  await bridge.management().agents();
  expect(seen.sort()).toEqual(
    [
      "GET /api/v2/agents?provider=acme+ai",
      "GET /api/v2/agents/a%2Fb?provider=acme+ai",
      "GET /api/v2/agents/a/files?provider=acme+ai",
      "GET /api/v2/agents/a/files/notes/x%20y.md?provider=acme+ai",
      "GET /api/v2/agents/a/bindings?provider=acme+ai",
      "GET /api/v2/skills?provider=acme+ai",
      "GET /api/v2/skills/s%2Ft?provider=acme+ai",
      "GET /api/v2/skills/s/status?provider=acme+ai",
      "GET /api/v2/models?provider=acme+ai",
      "GET /api/v2/system/models?provider=acme+ai",
      "GET /api/v2/system/security?provider=acme+ai",
      "GET /api/v2/agents",
    ].sort(),
  );
});

test("every change sends its body, and an answer without content is undefined", async () => {
  const runtime = (await serve(204)).management();
  const json = "application/json";
  expect(await runtime.createAgent({ agentId: "a", colour: "blue" })).toBeUndefined();
  await runtime.updateAgent({ agentId: "a/b", name: "A" });
  await runtime.writeFile("a", "notes/x.md", "hi");
  await runtime.removeFile("a", "notes/x.md");
  await runtime.setBindings("a", [{ channel: "slack", team: "t" }]);
  await runtime.removeAgent("a");
  await runtime.createSkill({ skillKey: "s" });
  await runtime.updateSkill({ skillKey: "s", enabled: false });
  await runtime.installDependencies("s");
  await runtime.removeSkill("s");
  await runtime.reloadConfig();
  expect(seen).toEqual([
    "POST /api/v2/agents", [json, { agentId: "a", colour: "blue" }],
    "PUT /api/v2/agents/a%2Fb", [json, { agentId: "a/b", name: "A" }],
    "PUT /api/v2/agents/a/files/notes/x.md", [json, { content: "hi" }],
    "DELETE /api/v2/agents/a/files/notes/x.md",
    "PUT /api/v2/agents/a/bindings", [json, { bindings: [{ channel: "slack", team: "t" }] }],
    "DELETE /api/v2/agents/a",
    "POST /api/v2/skills", [json, { skillKey: "s" }],
    "PUT /api/v2/skills/s", [json, { skillKey: "s", enabled: false }],
    "POST /api/v2/skills/s/dependencies",
    "DELETE /api/v2/skills/s",
    "POST /api/v2/system/reload",
  ]);
});

test("a method that the adapter does not have fails with its own code", async () => {
  const bridge = await serve(404, '{"error": "the adapter \\"echo\\" does not support this", "code": "NOT_SUPPORTED"}');
  await expect(bridge.management("echo").bindings("a")).rejects.toMatchObject({ status: 404, code: "NOT_SUPPORTED" });
});
