import { BridgeError } from "./errors.js";
import { type EventFilter, type StreamOptions, resume } from "./stream.js";
import type {
  Accepted,
  Adapter,
  BridgeEvent,
  Delivery,
  Destination,
  Dispatch,
  DispatchRequest,
  Health,
  Page,
} from "./wire.js";

export interface BridgeOptions {
  /** Where the bridge is, such as `http://127.0.0.1:7420`; empty for the page's own origin. */
  baseUrl: string;
  /** The bearer token, or who knows it at the time of a request. */
  token?: string | (() => string | undefined);
  fetch?: typeof globalThis.fetch;
}

export interface DispatchFilter {
  status?: "accepted" | "queued" | "running" | "ok" | "error";
  provider?: string;
  agentId?: string;
  runId?: string;
  since?: string;
  limit?: number;
  cursor?: string;
}

export interface DeliveryFilter {
  status?: "pending" | "delivered" | "dead" | "superseded";
  host?: string;
  limit?: number;
  cursor?: string;
}

type Query = Record<string, string | number | undefined>;

/** The HTTP interface of a bridge. Every method throws a {@link BridgeError}. */
export class Bridge {
  readonly #options: BridgeOptions;

  constructor(options: BridgeOptions) {
    this.#options = options;
  }

  /** Accepts a step. The same task id with the same body is answered from the record. */
  dispatch(request: DispatchRequest, options: { idempotencyKey?: string } = {}): Promise<Accepted> {
    const headers = new Headers({ "Content-Type": "application/json" });
    if (options.idempotencyKey) headers.set("Idempotency-Key", options.idempotencyKey);
    return this.#json("/api/v2/dispatch", { method: "POST", headers, body: JSON.stringify(request) });
  }

  /** One dispatch, by its own id or its task id. */
  show(id: string): Promise<Dispatch> {
    return this.#json(`/api/v2/dispatch/${encodeURIComponent(id)}`);
  }

  async dispatches(filter: DispatchFilter = {}): Promise<Page<Dispatch>> {
    const page = await this.#json<{ dispatches: Dispatch[]; nextCursor: string | null }>(
      `/api/v2/dispatches${query({ ...filter })}`,
    );
    return { items: page.dispatches, nextCursor: page.nextCursor };
  }

  /** Whether it was still possible. */
  async cancel(id: string): Promise<boolean> {
    const answer = await this.#json<{ cancelled: boolean }>(`/api/v2/dispatch/${encodeURIComponent(id)}/cancel`, {
      method: "POST",
    });
    return answer.cancelled;
  }

  async deliveries(filter: DeliveryFilter = {}): Promise<Page<Delivery>> {
    const page = await this.#json<{ deliveries: Delivery[]; nextCursor: string | null }>(
      `/api/v2/deliveries${query({ ...filter })}`,
    );
    return { items: page.deliveries, nextCursor: page.nextCursor };
  }

  delivery(id: string): Promise<Delivery> {
    return this.#json(`/api/v2/deliveries/${encodeURIComponent(id)}`);
  }

  /** Sends it again, with the same `webhook-id`. */
  async retry(id: string): Promise<number> {
    const path = `/api/v2/deliveries/${encodeURIComponent(id)}/retry`;
    return (await this.#json<{ retried: number }>(path, { method: "POST" })).retried;
  }

  /** Sends all dead ones again, or those of a host or since a time. */
  async retryAll(filter: { host?: string; since?: string; status?: string } = {}): Promise<number> {
    const path = `/api/v2/deliveries/retry${query(filter)}`;
    return (await this.#json<{ retried: number }>(path, { method: "POST" })).retried;
  }

  /** Receivers that are not called for the time being. One that is not listed is called. */
  async destinations(): Promise<Destination[]> {
    return (await this.#json<{ destinations: Destination[] }>("/api/v2/deliveries/destinations")).destinations;
  }

  async adapters(): Promise<{ adapters: Adapter[]; default: string | null }> {
    return this.#json("/api/v2/adapters");
  }

  /** Serves the library file as it is now; what runs ends on the one it began on. */
  reload(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "reload");
  }

  /** Nothing new starts there, also after a restart of the bridge. What is accepted waits. */
  pause(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "pause");
  }

  resume(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "resume");
  }

  /** How all is. A bridge that is offline says so with 503 and the same body. */
  async health(): Promise<Health> {
    const response = await this.#send("/api/health", {});
    if (response.ok || response.status === 503) return (await response.json()) as Health;
    throw await BridgeError.of(response);
  }

  /** The HTTP interface as OpenAPI 3.1. */
  reference(): Promise<unknown> {
    return this.#json("/openapi.json");
  }

  /** Everything that happens, from now on unless `after` says otherwise. */
  events(filter: EventFilter = {}, options: StreamOptions = {}): AsyncGenerator<BridgeEvent, void, void> {
    // "Now" is asked for once: a stream that is cut before its first event goes on from there.
    let now: string | undefined;
    return resume(
      async (after, signal) => {
        if (after === "now") now ??= await this.#now();
        return this.#open("/api/v2/events", { ...filter, after: after === "now" ? now : after }, signal);
      },
      { after: "now", ...options },
    );
  }

  /** What happens to one dispatch, from its beginning to its result, or to the end of its delivery. */
  dispatchEvents(
    id: string,
    options: StreamOptions & { until?: "finished" | "delivered" } = {},
  ): AsyncGenerator<BridgeEvent, void, void> {
    const { until, ...rest } = options;
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/events`;
    return resume((after, signal) => this.#open(path, { until, after }, signal), rest);
  }

  #onAdapter(provider: string, action: "reload" | "pause" | "resume"): Promise<Adapter> {
    return this.#json(`/api/v2/adapters/${encodeURIComponent(provider)}/${action}`, { method: "POST" });
  }

  async #now(): Promise<string> {
    const headers = { Accept: "application/json" };
    const page = await this.#json<{ nextCursor: string }>("/api/v2/events?after=now&limit=1", { headers });
    return page.nextCursor;
  }

  async #open(path: string, parameters: Query, signal: AbortSignal): Promise<Response> {
    const headers = { Accept: "application/x-ndjson" };
    const response = await this.#send(`${path}${query(parameters)}`, { headers, signal });
    if (!response.ok) throw await BridgeError.of(response);
    return response;
  }

  async #json<T>(path: string, init: RequestInit = {}): Promise<T> {
    const response = await this.#send(path, init);
    if (!response.ok) throw await BridgeError.of(response);
    return (await response.json()) as T;
  }

  async #send(path: string, init: RequestInit): Promise<Response> {
    const { baseUrl, token, fetch = globalThis.fetch } = this.#options;
    const headers = new Headers(init.headers);
    const secret = typeof token === "function" ? token() : token;
    if (secret) headers.set("Authorization", `Bearer ${secret}`);
    try {
      return await fetch(`${baseUrl.replace(/\/+$/, "")}${path}`, { ...init, headers });
    } catch (error) {
      throw BridgeError.unreachable(error);
    }
  }
}

function query(values: Query): string {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}
