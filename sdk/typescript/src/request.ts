import { BridgeError } from "./errors.js";

export interface BridgeOptions {
  /** Base URL of the bridge, such as `http://127.0.0.1:7420`; empty for the page's own origin. */
  baseUrl: string;
  /** Bearer token, or a function that returns it for each request. */
  token?: string | (() => string | undefined);
  fetch?: typeof globalThis.fetch;
}

export type Query = Record<string, string | number | boolean | undefined>;

/** Sends a request and returns the answer, also one that is an error. */
export async function send(options: BridgeOptions, path: string, init: RequestInit): Promise<Response> {
  const { baseUrl, token, fetch = globalThis.fetch } = options;
  const headers = new Headers(init.headers);
  const secret = typeof token === "function" ? token() : token;
  if (secret) headers.set("Authorization", `Bearer ${secret}`);
  try {
    return await fetch(`${baseUrl.replace(/\/+$/, "")}${path}`, { ...init, headers });
  } catch (error) {
    throw BridgeError.unreachable(error);
  }
}

/** Sends a request and returns its answer; throws an answer that is an error. */
export async function ask(options: BridgeOptions, path: string, init: RequestInit): Promise<Response> {
  const response = await send(options, path, init);
  if (!response.ok) throw await BridgeError.of(response);
  return response;
}

/** Request with a JSON body. */
export function body(method: string, value: unknown, idempotencyKey?: string): RequestInit {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
  return { method, headers, body: JSON.stringify(value) };
}

export function query(values: Query): string {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}
