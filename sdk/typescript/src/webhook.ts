import type { Result } from "./wire/index.js";

/** Callback that failed the verification, with the reason. Answer it with 401. */
export class WebhookError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "WebhookError";
  }
}

export interface WebhookOptions {
  /**
   * Largest difference between `webhook-timestamp` and the clock, in seconds, so that a recorded request cannot be sent
   * again later. Default 300.
   */
  toleranceSeconds?: number;
  /** Default: the current time. */
  now?: Date;
}

export type WebhookHeaders = Headers | Record<string, string | string[] | undefined>;

/**
 * Verifies the signature of a callback (Standard Webhooks, `v1`) and returns the result in it. Throws a
 * {@link WebhookError}.
 *
 * @param body The raw body, as it was received: parsed and written again it has another signature.
 * @param secret Secret `whsec_…`, or several while it is rotated. `forge-bridge secrets` shows it.
 *
 * A callback can come more than once: process each `webhook-id` once.
 */
export async function verifyWebhook(
  body: string | Uint8Array,
  headers: WebhookHeaders,
  secret: string | readonly string[],
  options: WebhookOptions = {},
): Promise<Result> {
  const { toleranceSeconds = 300, now = new Date() } = options;
  const id = header(headers, "webhook-id");
  const timestamp = header(headers, "webhook-timestamp");
  if (!id || !/^\d{1,15}$/.test(timestamp)) throw new WebhookError("webhook-id or webhook-timestamp is missing or malformed");
  if (!(Math.abs(now.getTime() / 1000 - Number(timestamp)) <= toleranceSeconds)) {
    throw new WebhookError("webhook-timestamp is too old or in the future");
  }
  const bytes = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const content = new Uint8Array(head.length + bytes.length);
  content.set(head);
  content.set(bytes, head.length);
  const signatures = header(headers, "webhook-signature").split(" ");
  const given = signatures.flatMap((one) => (one.startsWith("v1,") ? (decode(one.slice(3)) ?? []) : []));
  for (const text of typeof secret === "string" ? [secret] : secret) {
    const key = decode(text.replace(/^whsec_/, ""));
    if (!key || key.length === 0) throw new TypeError("the secret is not `whsec_` and base64");
    const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of given) {
      // Compares in constant time.
      if (await crypto.subtle.verify("HMAC", imported, signature, content)) return JSON.parse(new TextDecoder().decode(bytes));
    }
  }
  throw new WebhookError("no signature fits");
}

function header(headers: WebhookHeaders, name: string): string {
  if (headers instanceof Headers) return headers.get(name) ?? "";
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  return (Array.isArray(found) ? found.join(" ") : found) ?? "";
}

function decode(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return undefined;
  }
}
