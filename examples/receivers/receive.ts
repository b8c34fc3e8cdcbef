// Receives callbacks and verifies their signature (Standard Webhooks). No dependencies; Node 22 or newer runs this file
// as it is.
//
//     export WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw          # for this try only: generate your own
//     node --experimental-strip-types examples/receivers/receive.ts          # listens on 127.0.0.1:7422
//     CALLBACK_URL=http://127.0.0.1:7422/callback python3 examples/callers/dispatch.py "Hello"
//
// The last line runs in another terminal with the same WEBHOOK_SECRET and a bridge that may call loopback addresses
// (`forge-bridge dev`, or callback.allow). A bridge in operation signs with the secret that `forge-bridge secrets` shows.
// From Node 23.6 the option is not needed.
//
//     node --experimental-strip-types examples/receivers/receive.ts --self-test

import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { createHmac, timingSafeEqual } from "node:crypto";
import { type IncomingHttpHeaders, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import process from "node:process";

// Refuses recorded requests that are sent again later.
const TOLERANCE_SECONDS = 5 * 60;
// Above the bridge's limit for an output within a result (dispatch.output_inline_bytes, 1 MiB).
const LIMIT_BYTES = 8 << 20;

/** Returns undefined, or the reason why the request is not from the bridge. `body` is raw, before any parsing. */
function verify(secret: string, headers: IncomingHttpHeaders, body: Buffer, now = Date.now() / 1000) {
  const id = headers["webhook-id"];
  const timestamp = headers["webhook-timestamp"];
  if (typeof id !== "string" || typeof timestamp !== "string" || !/^[0-9]+$/.test(timestamp)) {
    return "webhook-id or webhook-timestamp is missing or malformed";
  }
  if (Math.abs(now - Number(timestamp)) > TOLERANCE_SECONDS) return "webhook-timestamp is too old or in the future";
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  // Several signatures, separated by spaces, while a secret is rotated: one of them has to fit.
  for (const signature of String(headers["webhook-signature"] ?? "").split(" ")) {
    const [version, text = ""] = signature.split(",", 2);
    const given = Buffer.from(text, "base64");
    // In constant time, so that the response time reveals nothing about the expected value.
    if (version === "v1" && given.length === expected.length && timingSafeEqual(given, expected)) return undefined;
  }
  return "no signature fits";
}

function serve(secret: string): void {
  // In operation: a table with a unique key, written in the transaction that processes the result.
  const seen = new Set<string>();
  const server = createServer((request, response) => {
    const answer = (status: number) => response.writeHead(status, { "Content-Length": 0 }).end();
    const chunks: Buffer[] = [];
    let length = 0;
    request.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length <= LIMIT_BYTES) chunks.push(chunk);
    });
    request.on("end", () => {
      if (length > LIMIT_BYTES) return answer(413);
      const body = Buffer.concat(chunks);
      const problem = verify(secret, request.headers, body);
      if (problem) {
        console.error(`refused: ${problem}`);
        return answer(401);
      }
      // The same delivery can come more than once; the webhook-id stays the same.
      const id = String(request.headers["webhook-id"]);
      if (!seen.has(id)) {
        seen.add(id);
        const result = JSON.parse(body.toString("utf8"));
        console.log(result.taskId, result.status, result.output ?? result.error);
      }
      // 2xx ends the delivery; 400, 410, 413 and 422 end it as a dead letter; all else is retried.
      answer(204);
    });
  });
  server.listen(Number(process.env.PORT ?? 7422), "127.0.0.1", () => {
    console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}/callback`);
  });
}

function selfTest(): void {
  const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  // The example of the Standard Webhooks reference libraries: known id, time, body and signature.
  const headers = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  };
  const now = 1614265330;
  const body = Buffer.from('{"test": 2432232314}');
  const misfit = "no signature fits";
  assert.equal(verify(secret, headers, body, now), undefined);
  assert.equal(verify(secret, headers, Buffer.from("{}"), now), misfit);
  assert.equal(verify("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", headers, body, now), misfit);
  assert.equal(verify(secret, { ...headers, "webhook-id": "other" }, body, now), misfit);
  const rotated = { ...headers, "webhook-signature": `v1,AAAA v2,x ${headers["webhook-signature"]}` };
  assert.equal(verify(secret, rotated, body, now), undefined);
  assert.match(String(verify(secret, headers, body, now + TOLERANCE_SECONDS + 1)), /too old/);
  assert.match(String(verify(secret, { ...headers, "webhook-timestamp": "x" }, body, now)), /malformed/);
  console.log("ok");
}

if (process.argv.includes("--self-test")) {
  selfTest();
} else if (process.env.WEBHOOK_SECRET) {
  serve(process.env.WEBHOOK_SECRET);
} else {
  console.error("set WEBHOOK_SECRET to whsec_… (see this file)");
  process.exitCode = 1;
}
