import type { BridgeError } from "./errors.js";
import { type ExternalReference, splitReference } from "./external.js";
import type {
  ApprovalFilter,
  DeliveryFilter,
  DispatchFilter,
  EventFilter,
  InterventionFilter,
  Page,
  ReplayFilter,
  SignalSessionFilter,
} from "./filters.js";
import { Management } from "./management.js";
import {
  type BridgeOptions,
  type CallOptions,
  type Init,
  type KeyedOptions,
  ask,
  body,
  call,
  json,
  openStream,
  query,
} from "./request.js";
import { type StreamOptions, resume } from "./stream.js";
import type {
  Accepted,
  Adapter,
  AdapterList,
  Approval,
  BridgeEvent,
  Cost,
  Delivery,
  Destination,
  Dispatch,
  DispatchRequest,
  DispatchRequestBase,
  ExternalServices,
  Health,
  Intervention,
  NodeList,
  OutputFile,
  Result,
  SignalRecord,
  SignalRule,
  SignalSession,
  SignalTotalsList,
  StreamTicket,
  Throughput,
} from "./wire/index.js";

/** Request of {@link Bridge.run}: without a callback, unless one is named. */
export type AwaitedRequest = DispatchRequestBase & { callbackUrl?: string | null | undefined };

export interface AwaitOptions extends KeyedOptions {
  /**
   * True: an abort of `signal` cancels the dispatch, too. Default false: it ends the waiting alone, and the same request
   * waits for the same dispatch again.
   */
  cancelOnAbort?: boolean | undefined;
  /** Called with each event of the dispatch, from its acceptance to its result. */
  onEvent?: ((event: BridgeEvent) => void) | undefined;
}

export type SignalProperty = "user" | "project" | "adapter" | "model";

/** Client of the HTTP interface of a bridge. Every method throws a {@link BridgeError}, or the reason of its `signal`. */
export class Bridge {
  readonly #options: BridgeOptions;

  constructor(options: BridgeOptions) {
    this.#options = options;
  }

  /**
   * Posts a dispatch, waits for its end and returns the result, also one with the status `error`. Waits as long as it
   * takes, over disconnects and restarts of the bridge. Without a callback unless `callbackUrl` is given.
   */
  async run(request: AwaitedRequest, options: AwaitOptions = {}): Promise<Result> {
    const { signal, cancelOnAbort, onEvent, ...rest } = options;
    signal?.throwIfAborted();
    // Submitted in any case if it is to be cancelled: without an answer its outcome would not be known.
    const submission = { ...rest, signal: cancelOnAbort ? undefined : signal };
    const { dispatchId } = await this.dispatch({ ...request, callbackUrl: request.callbackUrl ?? null }, submission);
    try {
      for await (const event of this.dispatchEvents(dispatchId, { signal })) onEvent?.(event);
      for (;;) {
        const { result } = await this.show(dispatchId, { ...rest, signal, wait: 60 });
        if (result) return result;
      }
    } catch (error) {
      if (signal?.aborted && cancelOnAbort) await this.cancel(dispatchId, rest);
      throw error;
    }
  }

  /**
   * Posts a dispatch. The same task id (or idempotency key) with the same body is answered from the record, so that an
   * unanswered request is repeated safely. One that has ended with an error is dispatched again, unless there is a key.
   */
  dispatch(request: DispatchRequest, options: KeyedOptions = {}): Promise<Accepted> {
    return this.#json("/api/v2/dispatch", { ...body("POST", request, options), isSafe: true });
  }

  /** Returns one dispatch, by its own id or its task id; with `wait` once it has ended, or after that many seconds (at most 60). */
  show(id: string, options: CallOptions & { wait?: number | undefined } = {}): Promise<Dispatch> {
    const { wait, timeoutMs = this.#options.timeoutMs ?? 60_000, signal } = options;
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}${query({ wait })}`;
    return this.#json(path, call({ signal, timeoutMs: timeoutMs + (wait ?? 0) * 1000 }));
  }

  /** Returns all dispatches of a task, newest first. */
  async showAll(taskId: string, options: CallOptions = {}): Promise<Dispatch[]> {
    const path = `/api/v2/dispatch/${encodeURIComponent(taskId)}?all=true`;
    return (await this.#json<{ dispatches: Dispatch[] }>(path, call(options))).dispatches;
  }

  /** Returns the request as it can be posted again, without headers, bearer and secret of the callback. */
  request(id: string, options: CallOptions = {}): Promise<DispatchRequest> {
    return this.#json(`/api/v2/dispatch/${encodeURIComponent(id)}/request`, call(options));
  }

  /**
   * Dispatches the request of a dispatch again, with these changes, as a new task that names it as `retryOf`. `notBefore`
   * and `deadline` are left out, and so are headers, bearer and secret of the callback. `id` is a dispatch id.
   */
  async runAgain(id: string, changes: Partial<DispatchRequest> = {}, options: CallOptions = {}): Promise<Accepted> {
    const { notBefore, deadline, ...request } = await this.request(id, options);
    const taskId = `${[...request.taskId].slice(0, 50).join("")}-retry-${crypto.randomUUID()}`;
    return this.dispatch({ ...request, taskId, retryOf: id, ...changes }, options);
  }

  /** Returns the whole output; a result has at most its first MiB. */
  output(id: string, options: CallOptions = {}): Promise<string> {
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/output`;
    return ask(this.#options, path, call(options), (response) => response.text());
  }

  /** Returns the files that the run produced, without their content. */
  async files(id: string, options: CallOptions = {}): Promise<OutputFile[]> {
    return (await this.show(id, options)).result?.outputFiles ?? [];
  }

  /** Downloads one of {@link files}. */
  file(id: string, name: string, options: CallOptions = {}): Promise<Blob> {
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/files/${encodeURIComponent(name)}`;
    return ask(this.#options, path, call(options), (response) => response.blob());
  }

  dispatches(filter: DispatchFilter = {}, options: CallOptions = {}): Promise<Page<Dispatch>> {
    return this.#page("/api/v2/dispatches", "dispatches", filter, options);
  }

  /** Cancels a dispatch. Returns true if that was still possible. */
  async cancel(id: string, options: CallOptions = {}): Promise<boolean> {
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/cancel`;
    return (await this.#post<{ cancelled: boolean }>(path, options, true)).cancelled;
  }

  deliveries(filter: DeliveryFilter = {}, options: CallOptions = {}): Promise<Page<Delivery>> {
    return this.#page("/api/v2/deliveries", "deliveries", filter, options);
  }

  delivery(id: string, options: CallOptions = {}): Promise<Delivery> {
    return this.#json(`/api/v2/deliveries/${encodeURIComponent(id)}`, call(options));
  }

  /** Sends a delivery again, with the same `webhook-id`. Returns the number of deliveries made due. */
  async retry(id: string, options: CallOptions = {}): Promise<number> {
    return (await this.#post<{ retried: number }>(`/api/v2/deliveries/${encodeURIComponent(id)}/retry`, options)).retried;
  }

  /**
   * Sends all dead letters again, or those to a host or of results since a time; with `status`, deliveries in that
   * state. Returns their number; with `dryRun` nothing is sent.
   */
  async retryAll(filter: ReplayFilter = {}, options: CallOptions = {}): Promise<number> {
    return (await this.#post<{ retried: number }>(`/api/v2/deliveries/retry${query({ ...filter })}`, options)).retried;
  }

  /** Returns the receivers whose circuit breaker is open or half-open; receivers not listed are called normally. */
  destinations(options: CallOptions = {}): Promise<Destination[]> {
    return this.#list("/api/v2/deliveries/destinations", "destinations", options);
  }

  /** Closes the circuit breaker of a receiver, so that everything due there is sent at once. */
  async closeDestination(origin: string, options: CallOptions = {}): Promise<void> {
    await this.#post(`/api/v2/deliveries/destinations/${encodeURIComponent(origin)}/close`, options, true);
  }

  /** Returns the bridges that share the store, and the one that answers. */
  nodes(options: CallOptions = {}): Promise<NodeList> {
    return this.#json("/api/v2/nodes", call(options));
  }

  /** Returns the last hour of the bridge, or the time since its start, in steps of 10 s. */
  throughput(options: CallOptions = {}): Promise<Throughput> {
    return this.#json("/api/v2/throughput", call(options));
  }

  /**
   * Adds up what dispatches used by day, adapter, agent and model, of those that ended since a time (RFC 3339, or an
   * age such as `7d`), the most expensive first.
   */
  cost(since?: string, options: CallOptions = {}): Promise<Cost> {
    return this.#json(`/api/v2/cost${query({ since })}`, call(options));
  }

  adapters(options: CallOptions = {}): Promise<AdapterList> {
    return this.#json("/api/v2/adapters", call(options));
  }

  adapter(provider: string, options: CallOptions = {}): Promise<Adapter> {
    return this.#json(`/api/v2/adapters/${encodeURIComponent(provider)}`, call(options));
  }

  /** Loads the library file of an adapter again; running executions finish on the old generation. */
  reload(provider: string, options: CallOptions = {}): Promise<Adapter> {
    return this.#post(`/api/v2/adapters/${encodeURIComponent(provider)}/reload`, options);
  }

  /** Pauses an adapter, also across restarts of the bridge: running executions continue, accepted dispatches wait. */
  pause(provider: string, options: CallOptions = {}): Promise<Adapter> {
    return this.#post(`/api/v2/adapters/${encodeURIComponent(provider)}/pause`, options, true);
  }

  resume(provider: string, options: CallOptions = {}): Promise<Adapter> {
    return this.#post(`/api/v2/adapters/${encodeURIComponent(provider)}/resume`, options, true);
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
  externalCommand<Result = unknown>(ref: ExternalReference, args: unknown = {}, options: KeyedOptions = {}): Promise<Result> {
    return this.#external("commands", ref, body("POST", { args }, options));
  }

  /** Calls a query of an external service and returns its result. */
  externalQuery<Result = unknown>(ref: ExternalReference, args: unknown = {}, options: CallOptions = {}): Promise<Result> {
    return this.#external("queries", ref, { ...body("POST", { args }, options), isSafe: true });
  }

  /** Returns the external services that are known, and findings in their files. */
  externalServices(options: CallOptions = {}): Promise<ExternalServices> {
    return this.#json("/api/v2/external", call(options));
  }

  /** Returns the commands that wait for an approval, or those that were decided, newest first. */
  approvals(filter: ApprovalFilter = {}, options: CallOptions = {}): Promise<Page<Approval>> {
    return this.#page("/api/v2/approvals", "approvals", filter, options);
  }

  /** Lets a held command start. */
  approve(dispatchId: string, reason?: string, options: CallOptions = {}): Promise<void> {
    return this.#decide(dispatchId, "approve", reason, options);
  }

  /** Ends a held command as `blocked_by_policy`. */
  reject(dispatchId: string, reason?: string, options: CallOptions = {}): Promise<void> {
    return this.#decide(dispatchId, "reject", reason, options);
  }

  /** Returns sessions of tools that send signals, newest first. */
  signalSessions(filter: SignalSessionFilter = {}, options: CallOptions = {}): Promise<Page<SignalSession>> {
    return this.#page("/api/v2/signals/sessions", "sessions", filter, options);
  }

  /** Returns a session with its last 100 records, newest first. */
  signalSession(id: string, options: CallOptions = {}): Promise<SignalSession & { records: SignalRecord[] }> {
    return this.#json(`/api/v2/signals/sessions/${encodeURIComponent(id)}`, call(options));
  }

  /**
   * Adds up the signals by user, project, adapter or model, since a time (RFC 3339, or an age such as `7d`), the most
   * expensive first.
   */
  signalTotals<By extends SignalProperty>(
    by: By,
    since?: string,
    options: CallOptions = {},
  ): Promise<SignalTotalsList & { totals: Record<By, string | null>[] }> {
    return this.#json(`/api/v2/signals/totals${query({ by, since })}`, call(options));
  }

  /** Returns interventions of rules, newest first. */
  interventions(filter: InterventionFilter = {}, options: CallOptions = {}): Promise<Page<Intervention>> {
    return this.#page("/api/v2/signals/interventions", "interventions", filter, options);
  }

  /** Returns the rules and budgets in force, with their fullest windows. */
  signalRules(options: CallOptions = {}): Promise<SignalRule[]> {
    return this.#list("/api/v2/signals/rules", "rules", options);
  }

  /**
   * Returns the health of the bridge; with `verbose` the profiles of the adapters as well, for a token with the scope `read`.
   * An offline bridge answers 503 with the same body, which is no error here.
   */
  health(options: CallOptions & { verbose?: boolean | undefined } = {}): Promise<Health> {
    const path = `/api/health${query({ verbose: options.verbose })}`;
    return this.#json(path, { ...call(options), expects: (status) => status === 200 || status === 503 });
  }

  /** Returns a ticket that opens one stream within a minute in place of a token: `?ticket=` for `EventSource`. */
  ticket(options: CallOptions = {}): Promise<StreamTicket> {
    return this.#post("/api/v2/stream-tickets", options, true);
  }

  /** Returns the HTTP interface as OpenAPI 3.1. */
  reference(options: CallOptions = {}): Promise<unknown> {
    return this.#json("/openapi.json", call(options));
  }

  /** Yields all events, starting now unless `after` is given. */
  events(filter: EventFilter = {}, options: StreamOptions = {}): AsyncGenerator<BridgeEvent, void, void> {
    // Resolves "now" to a cursor once: a stream disconnected before its first event resumes there.
    let now: string | undefined;
    const open = async (after: string | undefined, signal: AbortSignal): Promise<Response> => {
      if (after === "now") after = now ??= await this.#now(signal);
      return openStream(this.#options, `/api/v2/events${query({ ...filter, after })}`, signal);
    };
    return resume(open, { after: "now", ...options }, cursor);
  }

  /** Returns up to `count` of the newest events (at most 1000), oldest first, and the cursor after them. */
  async recentEvents(count = 100, options: CallOptions = {}): Promise<Page<BridgeEvent>> {
    const headers = { Accept: "application/json" };
    const path = `/api/v2/events${query({ last: count, limit: count })}`;
    const page = await this.#json<{ events: BridgeEvent[]; nextCursor: string }>(path, { ...call(options), headers });
    // As in streams, where an event without data has an empty object.
    for (const event of page.events as { data?: object }[]) event.data ??= {};
    return { items: page.events, nextCursor: page.nextCursor };
  }

  /** Yields the events of one dispatch, from its acceptance to its result, or to the end of its delivery. */
  dispatchEvents(
    id: string,
    options: StreamOptions & { until?: "finished" | "delivered" | undefined } = {},
  ): AsyncGenerator<BridgeEvent, void, void> {
    const { until, ...rest } = options;
    const path = `/api/v2/dispatch/${encodeURIComponent(id)}/events`;
    return resume((after, signal) => openStream(this.#options, `${path}${query({ until, after })}`, signal), rest, cursor);
  }

  async #decide(dispatchId: string, decision: "approve" | "reject", reason: string | undefined, options: CallOptions): Promise<void> {
    const path = `/api/v2/approvals/${encodeURIComponent(dispatchId)}/${decision}`;
    await this.#json(path, body("POST", { reason: reason ?? null }, options));
  }

  async #external<Result>(kind: string, ref: ExternalReference, init: Init): Promise<Result> {
    const { service, name } = splitReference(ref);
    const path = `/external/${encodeURIComponent(service)}/${kind}/${encodeURIComponent(name)}`;
    // A call that is held for approval is answered 202 and has no result either.
    return (await this.#json<{ result: Result }>(path, { ...init, expects: (status) => status === 200 })).result;
  }

  async #now(signal: AbortSignal): Promise<string> {
    const headers = { Accept: "application/json" };
    return (await this.#json<{ nextCursor: string }>("/api/v2/events?after=now&limit=1", { headers, signal })).nextCursor;
  }

  #post<T>(path: string, options: CallOptions, isSafe = false): Promise<T> {
    return this.#json(path, { ...call(options), method: "POST", isSafe });
  }

  async #page<T>(path: string, name: string, filter: object, options: CallOptions): Promise<Page<T>> {
    const page = await this.#json<Record<string, unknown>>(`${path}${query({ ...filter })}`, call(options));
    return { items: page[name] as T[], nextCursor: (page["nextCursor"] ?? null) as string | null };
  }

  async #list<T>(path: string, name: string, options: CallOptions): Promise<T[]> {
    return (await this.#json<Record<string, T[]>>(path, call(options)))[name] ?? [];
  }

  #json<T>(path: string, init: Init): Promise<T> {
    return ask(this.#options, path, init, json<T>);
  }
}

function cursor(event: BridgeEvent): string {
  return event.id;
}
