import { BridgeError } from "./errors.js";
import { Management } from "./management.js";
import { type BridgeOptions, type Query, ask, body, query, send } from "./request.js";
import { type EventFilter, type StreamOptions, resume } from "./stream.js";
import type {
  Accepted,
  Adapter,
  Approval,
  ApprovalFilter,
  BridgeEvent,
  Delivery,
  DeliveryStatus,
  Destination,
  Dispatch,
  DispatchRequest,
  ExternalReference,
  ExternalServices,
  Health,
  Intervention,
  InterventionFilter,
  Page,
  SignalProperty,
  SignalRecord,
  SignalRule,
  SignalSession,
  SignalSessionFilter,
  SignalTotals,
} from "./wire.js";

export interface DispatchFilter {
  status?: "accepted" | "queued" | "running" | "finished" | "ok" | "error";
  provider?: string;
  agentId?: string;
  runId?: string;
  /** RFC 3339, or an age such as `30m`, `1h` or `7d`. */
  since?: string;
  limit?: number;
  cursor?: string;
}

export interface DeliveryFilter {
  status?: "pending" | "delivered" | "dead" | "superseded";
  host?: string;
  /** RFC 3339, or an age such as `30m`, `1h` or `7d`. */
  since?: string;
  limit?: number;
  cursor?: string;
}

export interface ReplayFilter {
  host?: string;
  since?: string;
  status?: DeliveryStatus;
  /** Only count the deliveries. */
  dryRun?: boolean;
}

/** Client of the HTTP interface of a bridge. Every method throws a {@link BridgeError}. */
export class Bridge {
  readonly #options: BridgeOptions;

  constructor(options: BridgeOptions) {
    this.#options = options;
  }

  /** Posts a dispatch. The same task id (or idempotency key) with the same body is answered from the record. */
  dispatch(request: DispatchRequest, options: { idempotencyKey?: string } = {}): Promise<Accepted> {
    return this.#json("/api/v2/dispatch", body("POST", request, options.idempotencyKey));
  }

  /** Returns one dispatch, by its own id or its task id. */
  show(id: string): Promise<Dispatch> {
    return this.#json(`/api/v2/dispatch/${encodeURIComponent(id)}`);
  }

  /** Downloads a file of `outputFiles`. */
  async outputFile(id: string, name: string): Promise<Blob> {
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/files/${encodeURIComponent(name)}`;
    return (await ask(this.#options, path, {})).blob();
  }

  async dispatches(filter: DispatchFilter = {}): Promise<Page<Dispatch>> {
    const page = await this.#json<{ dispatches: Dispatch[]; nextCursor: string | null }>(
      `/api/v2/dispatches${query({ ...filter })}`,
    );
    return { items: page.dispatches, nextCursor: page.nextCursor };
  }

  /** Cancels a dispatch. Returns true if that was still possible. */
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

  /** Sends a delivery again, with the same `webhook-id`. Returns the number of deliveries made due. */
  async retry(id: string): Promise<number> {
    const path = `/api/v2/deliveries/${encodeURIComponent(id)}/retry`;
    return (await this.#json<{ retried: number }>(path, { method: "POST" })).retried;
  }

  /**
   * Sends all dead letters again, or those to a host or of results since a time; with `status`, deliveries in that
   * state. Returns their number; with `dryRun` nothing is sent.
   */
  async retryAll(filter: ReplayFilter = {}): Promise<number> {
    const path = `/api/v2/deliveries/retry${query({ ...filter })}`;
    return (await this.#json<{ retried: number }>(path, { method: "POST" })).retried;
  }

  /** Returns the receivers whose circuit breaker is open or half-open; receivers not listed are called normally. */
  async destinations(): Promise<Destination[]> {
    return (await this.#json<{ destinations: Destination[] }>("/api/v2/deliveries/destinations")).destinations;
  }

  /** Closes the circuit breaker of a receiver, so that everything due there is sent at once. */
  async closeDestination(origin: string): Promise<void> {
    await this.#json(`/api/v2/deliveries/destinations/${encodeURIComponent(origin)}/close`, { method: "POST" });
  }

  async adapters(): Promise<{ adapters: Adapter[]; default: string | null }> {
    return this.#json("/api/v2/adapters");
  }

  /** Loads the library file of an adapter again; running executions finish on the old generation. */
  reload(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "reload");
  }

  /** Pauses an adapter, also across restarts of the bridge: running executions continue, accepted dispatches wait. */
  pause(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "pause");
  }

  resume(provider: string): Promise<Adapter> {
    return this.#onAdapter(provider, "resume");
  }

  /**
   * Management of the agents, skills and models of an adapter's runtime; needs a token with the scope `admin`. Without a
   * provider the default adapter answers if it supports the method, else the only adapter that does.
   */
  management(provider?: string): Management {
    return new Management((path, init) => this.#json(`${path}${query({ provider })}`, init));
  }

  /**
   * Calls a command of an external service and returns its result. It is never sent twice; with an `idempotencyKey` the
   * same call is answered with the same result, also after a restart of the bridge. A command that waits for an approval
   * is an error with the code `FORGE_APPROVAL_REQUIRED` and its `dispatchId`.
   */
  externalCommand<Result = unknown>(
    ref: ExternalReference,
    args: unknown = {},
    options: { idempotencyKey?: string } = {},
  ): Promise<Result> {
    return this.#external("commands", ref, args, options.idempotencyKey);
  }

  /** Calls a query of an external service and returns its result. */
  externalQuery<Result = unknown>(ref: ExternalReference, args: unknown = {}): Promise<Result> {
    return this.#external("queries", ref, args);
  }

  /** Returns sessions of tools that send signals, newest first. A page can have fewer items than `limit`. */
  async signalSessions(filter: SignalSessionFilter = {}): Promise<Page<SignalSession>> {
    const page = await this.#json<{ sessions: SignalSession[]; nextCursor: string | null }>(
      `/api/v2/signals/sessions${query({ ...filter })}`,
    );
    return { items: page.sessions, nextCursor: page.nextCursor };
  }

  /** Returns a session with its last 100 records, newest first. */
  signalSession(id: string): Promise<SignalSession & { records: SignalRecord[] }> {
    return this.#json(`/api/v2/signals/sessions/${encodeURIComponent(id)}`);
  }

  /** Adds up the signals by user, project, adapter or model, since a time (RFC 3339, or an age such as `7d`). */
  signalTotals<By extends SignalProperty>(by: By, since?: string): Promise<SignalTotals<By>> {
    return this.#json(`/api/v2/signals/totals${query({ by, since })}`);
  }

  /** Returns interventions of rules, newest first. */
  async interventions(filter: InterventionFilter = {}): Promise<Page<Intervention>> {
    const page = await this.#json<{ interventions: Intervention[]; nextCursor: string | null }>(
      `/api/v2/signals/interventions${query({ ...filter })}`,
    );
    return { items: page.interventions, nextCursor: page.nextCursor };
  }

  /** Returns the rules and budgets in force, with their fullest windows. */
  async signalRules(): Promise<SignalRule[]> {
    return (await this.#json<{ rules: SignalRule[] }>("/api/v2/signals/rules")).rules;
  }

  /** Returns the health of the bridge. An offline bridge answers 503 with the same body, which is no error here. */
  async health(): Promise<Health> {
    const response = await send(this.#options, "/api/health", {});
    if (response.ok || response.status === 503) return (await response.json()) as Health;
    throw await BridgeError.of(response);
  }

  /** Returns the HTTP interface as OpenAPI 3.1. */
  reference(): Promise<unknown> {
    return this.#json("/openapi.json");
  }

  /** Yields all events, starting now unless `after` is given. */
  events(filter: EventFilter = {}, options: StreamOptions = {}): AsyncGenerator<BridgeEvent, void, void> {
    // Resolves "now" to a cursor once: a stream disconnected before its first event resumes there.
    let now: string | undefined;
    return resume(
      async (after, signal) => {
        if (after === "now") now ??= await this.#now();
        return this.#open("/api/v2/events", { ...filter, after: after === "now" ? now : after }, signal);
      },
      { after: "now", ...options },
      cursor,
    );
  }

  /** Yields the events of one dispatch, from its acceptance to its result, or to the end of its delivery. */
  dispatchEvents(
    id: string,
    options: StreamOptions & { until?: "finished" | "delivered" } = {},
  ): AsyncGenerator<BridgeEvent, void, void> {
    const { until, ...rest } = options;
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/events`;
    return resume((after, signal) => this.#open(path, { until, after }, signal), rest, cursor);
  }

  #onAdapter(provider: string, action: "reload" | "pause" | "resume"): Promise<Adapter> {
    return this.#json(`/api/v2/adapters/${encodeURIComponent(provider)}/${action}`, { method: "POST" });
  }

  /** Returns the external services that are known, and findings in their files. */
  externalServices(): Promise<ExternalServices> {
    return this.#json("/api/v2/external");
  }

  /** Returns the commands that wait for an approval, or those that were decided, newest first. */
  async approvals(filter: ApprovalFilter = {}): Promise<Page<Approval>> {
    const page = await this.#json<{ approvals: Approval[]; nextCursor: string | null }>(
      `/api/v2/approvals${query({ ...filter })}`,
    );
    return { items: page.approvals, nextCursor: page.nextCursor };
  }

  /** Lets a held command start. */
  approve(dispatchId: string, reason?: string): Promise<void> {
    return this.#decide(dispatchId, "approve", reason);
  }

  /** Ends a held command as `blocked_by_policy`. */
  reject(dispatchId: string, reason?: string): Promise<void> {
    return this.#decide(dispatchId, "reject", reason);
  }

  async #decide(dispatchId: string, decision: "approve" | "reject", reason?: string): Promise<void> {
    const path = `/api/v2/approvals/${encodeURIComponent(dispatchId)}/${decision}`;
    await this.#json(path, body("POST", { reason: reason ?? null }));
  }

  async #external<Result>(kind: string, ref: ExternalReference, args: unknown, key?: string): Promise<Result> {
    const { service, name } = typeof ref === "string" ? split(ref) : ref;
    const path = `/external/${encodeURIComponent(service)}/${kind}/${encodeURIComponent(name)}`;
    const response = await send(this.#options, path, body("POST", { args }, key));
    // A call that is held for approval is answered 202 and has no result either.
    if (response.status !== 200) throw await BridgeError.of(response);
    return ((await response.json()) as { result: Result }).result;
  }

  async #now(): Promise<string> {
    const headers = { Accept: "application/json" };
    const page = await this.#json<{ nextCursor: string }>("/api/v2/events?after=now&limit=1", { headers });
    return page.nextCursor;
  }

  #open(path: string, parameters: Query, signal: AbortSignal): Promise<Response> {
    const headers = { Accept: "application/x-ndjson" };
    return ask(this.#options, `${path}${query(parameters)}`, { headers, signal });
  }

  async #json<T>(path: string, init: RequestInit = {}): Promise<T> {
    const response = await ask(this.#options, path, init);
    return (response.status === 204 ? undefined : await response.json()) as T;
  }
}

function cursor(event: BridgeEvent): string {
  return event.id;
}

/** `service.entry`, split at the first dot. */
function split(ref: string): { service: string; name: string } {
  const dot = ref.indexOf(".");
  if (dot < 1) {
    const message = `"${ref}" is not a reference: write service.entry`;
    throw new BridgeError({ status: 0, code: "FORGE_EXTERNAL_RUNTIME_NOT_FOUND", message });
  }
  return { service: ref.slice(0, dot), name: ref.slice(dot + 1) };
}
