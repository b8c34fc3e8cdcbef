// External service in Node, without dependencies: invoices in memory.
//
//     node billing.mjs [port]       serve over HTTP; prints the address
//
// The bridge checks the policy of an entry before it calls; this service trusts what the bridge sends and has to be
// reachable by the bridge alone.

import { createServer } from "node:http";

const BODY_BYTES = 10 * 1024 * 1024;

const invoices = [];

const entries = {
  "/commands/createInvoice": ({ title }, auth) => {
    if (typeof title !== "string" || title === "") throw new Refusal("title must be a text");
    const invoice = { id: `inv_${invoices.length + 1}`, title, tenant: auth.tenantId ?? null };
    invoices.push(invoice);
    return invoice;
  },
  "/queries/listInvoices": (_args, auth) => invoices.filter(({ tenant }) => tenant === (auth.tenantId ?? null)),
};

class Refusal extends Error {}

const manifest = (baseUrl) => ({
  forgeProtocol: "1.0",
  language: "typescript",
  framework: "node:http",
  service: { name: "billing", transport: "http", baseUrl, health: "/health" },
  entries: [
    {
      name: "createInvoice",
      kind: "command",
      description: "Create an invoice",
      path: "/commands/createInvoice",
      policy: "billing.write",
      transaction: "external-managed",
      risk: "write",
      effects: ["invoice.created"],
      inputSchema: { type: "object", required: ["title"], properties: { title: { type: "string" } } },
    },
    {
      name: "listInvoices",
      kind: "query",
      description: "List the invoices of the tenant",
      path: "/queries/listInvoices",
      policy: "billing.read",
      transaction: "read-only",
      risk: "read",
      tenantScoped: true,
    },
  ],
});

function failure(status, code, message, traceId) {
  return [status, { ok: false, diagnostics: [], error: { severity: "error", code, message }, traceId }];
}

async function read(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > BODY_BYTES) return undefined;
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString();
}

async function answer(request, baseUrl) {
  const { method, url } = request;
  if (method === "GET" && url === "/health") return [200, { ok: true, service: "billing" }];
  if (method === "GET" && url === "/manifest") return [200, manifest(baseUrl)];
  const entry = method === "POST" && Object.hasOwn(entries, url) ? entries[url] : undefined;
  if (!entry) return failure(404, "BILLING_NOT_FOUND", "unknown route");
  const text = await read(request);
  if (text === undefined) return failure(413, "BILLING_TOO_LARGE", "the body is too large");
  let envelope;
  try {
    envelope = JSON.parse(text);
  } catch {
    return failure(400, "BILLING_INVALID", "the body is not JSON");
  }
  const traceId = envelope?.forge?.traceId;
  try {
    const result = entry(envelope?.args ?? {}, envelope?.auth ?? { kind: "anonymous" });
    return [200, { ok: true, result, traceId }];
  } catch (error) {
    if (error instanceof Refusal) return failure(400, "BILLING_INVALID", error.message, traceId);
    throw error;
  }
}

const server = createServer((request, response) => {
  const { address, port } = server.address();
  answer(request, `http://${address}:${port}`)
    .catch(() => failure(500, "BILLING_FAILED", "the entry failed"))
    .then(([status, body]) => {
      response.writeHead(status, { "content-type": "application/json" });
      response.end(JSON.stringify(body));
    });
});
server.listen(Number(process.argv[2] ?? 8788), "127.0.0.1", () => {
  const { address, port } = server.address();
  console.log(`http://${address}:${port}`);
});
