// Sends one signal to the remote engine: FORG_ENGINE_URL, with the token of FORG_TOKEN. Fails open.
import { createHmac } from "node:crypto";

/** HMAC-SHA256 of a body, in hexadecimal digits: the key is the first 32 bytes of the token. */
export function sign(token: string, body: string): string {
  const key = Buffer.from(token.slice(0, 32), "utf8");
  return createHmac("sha256", key).update(body, "utf8").digest("hex");
}

/** The engine's answer; `undefined` if there is none. */
export async function send(engine: string, token: string, signal: object): Promise<unknown> {
  const body = JSON.stringify(signal);
  const headers = {
    "Content-Type": "application/json",
    Authorization: `Bearer ${token}`,
    "X-Forg-Adapter-Protocol": "v1",
    "X-Forg-Signature": `sha256=${sign(token, body)}`,
  };
  try {
    const timeout = AbortSignal.timeout(3000);
    const request = { method: "POST", headers, body, redirect: "manual", signal: timeout } as const;
    const response = await fetch(`${engine}/engine/v1/signals`, request);
    if (!response.ok) throw new Error(`status ${response.status}`);
    return await response.json();
  } catch (error) {
    console.warn(`[forg] signal failed, the tool continues: ${(error as Error).message}`);
    return undefined;
  }
}

const { FORG_ENGINE_URL: engine, FORG_TOKEN: token } = process.env;
if (engine && token) {
  const heartbeat = { type: "adapter-heartbeat", ts: new Date().toISOString(), adapter_id: "my-tool", latency_ms: 4 };
  console.log(JSON.stringify(await send(engine, token.trim(), heartbeat)));
}
