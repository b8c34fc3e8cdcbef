// Submits a dispatch with the SDK, follows its events and prints the result. Node 22 or newer runs this file as it is.
//
//     npm --prefix sdk/typescript ci && npm --prefix sdk/typescript run build    # once
//     target/release/forge-bridge dev                                            # in another terminal
//     node --experimental-strip-types examples/callers/dispatch.ts "Hello"       # from Node 23.6 without the option
//
// BRIDGE_URL (http://127.0.0.1:7420) and BRIDGE_TOKEN select another bridge. CALLBACK_URL and WEBHOOK_SECRET (whsec_…)
// request a signed callback, for example to examples/receivers/receive.ts.

import { randomUUID } from "node:crypto";
import process from "node:process";

import { Bridge, BridgeError } from "../../sdk/typescript/dist/index.js";

const { BRIDGE_URL, BRIDGE_TOKEN, CALLBACK_URL, WEBHOOK_SECRET, TASK_ID } = process.env;
const bridge = new Bridge({
  baseUrl: BRIDGE_URL ?? "http://127.0.0.1:7420",
  ...(BRIDGE_TOKEN ? { token: BRIDGE_TOKEN } : {}),
});

try {
  // The task id is the idempotency key: a repeated submission with the same body returns the same dispatch.
  const accepted = await bridge.dispatch({
    taskId: TASK_ID ?? `typescript-${randomUUID()}`,
    agentId: "example",
    message: process.argv[2] ?? "Hello",
    model: "stream:3", // of the echo adapter
    callbackUrl: CALLBACK_URL ?? null,
    ...(CALLBACK_URL && WEBHOOK_SECRET ? { callback: { secret: WEBHOOK_SECRET } } : {}),
  });
  console.log(`${accepted.dispatchId} on ${accepted.provider}`);

  // The SDK re-opens a broken stream after the last event, so each event comes once.
  for await (const event of bridge.dispatchEvents(accepted.dispatchId)) {
    console.log(event.type, JSON.stringify(event.data ?? {}));
  }
  const { result } = await bridge.show(accepted.dispatchId);
  console.log(result?.status, result?.output ?? result?.error);
  process.exitCode = result?.status === "ok" ? 0 : 1;
} catch (error) {
  if (!(error instanceof BridgeError)) throw error;
  console.error(`${error.status} ${error.code}: ${error.message}`);
  process.exitCode = 1;
}
