import { BridgeError } from "./errors.js";
import { backoff, pause } from "./pause.js";

export interface BridgeOptions {
  /** Base URL of the bridge, such as `http://127.0.0.1:7420`; empty for the page's own origin. */
  baseUrl: string;
  /** Bearer token, or a function that returns it for each request. */
  token?: string | (() => string | undefined) | undefined;
  fetch?: typeof globalThis.fetch | undefined;
  /** Time for the whole answer to a request, in milliseconds. Default 60,000. Streams have `idleMs` instead. */
  timeoutMs?: number | undefined;
  /**
   * Repetitions of a request that is safe to repeat, after no answer, 408, 429 and 5xx. Default 2. The pauses double
   * from 250 ms; `Retry-After` takes precedence, and above 30 s the error is thrown at once.
   */
  maxRetries?: number | undefined;
}

/** Options of every method. */
export interface CallOptions {
  /** Ends the request; the method rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** In place of that of the client. */
  timeoutMs?: number | undefined;
}

export interface KeyedOptions extends CallOptions {
  /** The same key with the same body is the same request. */
  idempotencyKey?: string | undefined;
}

/** A request, and how to treat it. */
export interface Init extends RequestInit, Omit<CallOptions, "signal"> {
  /** True if a second execution changes nothing. Default: a GET is. */
  isSafe?: boolean;
  /** True for a status that is no error. Default: 2xx. */
  expects?: (status: number) => boolean;
}

export type Query = Record<string, string | number | boolean | undefined>;

const LONGEST_PAUSE_MS = 30_000;

/** Sends a request and reads its answer; throws an answer that is an error. */
export async function ask<T>(
  options: BridgeOptions,
  path: string,
  init: Init,
  read: (response: Response) => Promise<T>,
): Promise<T> {
  const isSafe = init.isSafe ?? (init.method ?? "GET") === "GET";
  for (let failures = 1; ; failures += 1) {
    try {
      return await attempt(options, path, init, read);
    } catch (error) {
      if (init.signal?.aborted) throw init.signal.reason;
      const failure = error instanceof BridgeError ? error : BridgeError.unreachable(error);
      // What was refused as too much was not begun.
      const isRepeatable = failure.status === 429 || (isSafe && failure.isTemporary);
      const wait = failure.retryAfterMs ?? backoff(failures, LONGEST_PAUSE_MS);
      if (!isRepeatable || failures > (options.maxRetries ?? 2) || wait > LONGEST_PAUSE_MS) throw failure;
      await pause(wait, init.signal);
    }
  }
}

async function attempt<T>(
  options: BridgeOptions,
  path: string,
  init: Init,
  read: (response: Response) => Promise<T>,
): Promise<T> {
  const { expects = (status) => status >= 200 && status < 300, timeoutMs = options.timeoutMs ?? 60_000 } = init;
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), timeoutMs);
  const signal = init.signal ? AbortSignal.any([init.signal, limit.signal]) : limit.signal;
  try {
    const response = await open(options, path, { ...init, signal });
    if (!expects(response.status)) throw await BridgeError.of(response);
    return await read(response);
  } catch (error) {
    throw limit.signal.aborted && !(error instanceof BridgeError) ? BridgeError.timeout(timeoutMs, error) : error;
  } finally {
    clearTimeout(timer);
  }
}

/** Sends a request once, and returns the answer as soon as it begins. */
export async function open(options: BridgeOptions, path: string, init: RequestInit): Promise<Response> {
  // A URL cannot have these as parts: it would name another route.
  const dots = path.split("?", 1)[0]?.split("/").find((part) => part === "." || part === "..");
  if (dots) {
    throw new BridgeError({ status: 400, code: "INVALID_REQUEST", message: `"${dots}" cannot be part of a path` });
  }
  const { baseUrl, token, fetch = globalThis.fetch } = options;
  const headers = new Headers(init.headers);
  const secret = typeof token === "function" ? token() : token;
  if (secret) headers.set("Authorization", `Bearer ${secret}`);
  return fetch(`${baseUrl.replace(/\/+$/, "")}${path}`, { ...init, headers });
}

/** Opens a stream: its errors are thrown, and its end is left to the reader. */
export async function openStream(options: BridgeOptions, path: string, signal: AbortSignal): Promise<Response> {
  const response = await open(options, path, { headers: { Accept: "application/x-ndjson" }, signal });
  if (!response.ok) throw await BridgeError.of(response);
  return response;
}

/** Reads an answer; `undefined` if it has no content. */
export async function json<T>(response: Response): Promise<T> {
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Request with a JSON body. One with a key is safe to repeat. */
export function body(method: string, value: unknown, options: KeyedOptions = {}): Init {
  const { idempotencyKey, ...rest } = options;
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
  return { ...call(rest), method, headers, body: JSON.stringify(value), isSafe: idempotencyKey !== undefined };
}

/** The options of a call, as far as they are given. */
export function call({ signal, timeoutMs }: CallOptions): Init {
  return { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) };
}

export function query(values: Query): string {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}
