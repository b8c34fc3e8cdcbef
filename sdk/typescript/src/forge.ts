import { BridgeError } from "./errors.js";
import type { Page, RunEventFilter, RunFilter, RunOptions } from "./filters.js";
import { backoff, pause } from "./pause.js";
import { type BridgeOptions, type CallOptions, type Init, type KeyedOptions, type Query, ask, body, call, json, openStream, query } from "./request.js";
import { type StreamOptions, resume } from "./stream.js";
import type { Budget, ChangeRequest, ForgeEvent, RunState, RunSummary, RunTask, RunVerification } from "./wire/index.js";

export type Run = Pick<RunState, "runId" | "status">;

/** Task of a list. */
export type TaskSummary = RunTask;

/** Body of an error answer of the routes for runs. */
export interface ForgeError {
  error: string;
  code: string;
  details?: unknown;
}

/** Task as it is shown alone: with the members that lists leave out. */
export type TaskDetail = RunTask & Required<Pick<RunTask, "agents" | "artifacts">>;

export interface RunStreamOptions extends StreamOptions {
  /** `core` leaves out the types that the public design of runs does not name. Default `all`. */
  events?: "all" | "core" | undefined;
}

/** Error answer of the routes for runs, or no answer at all (`statusCode` 0). */
export class ForgeAPIError extends BridgeError {
  readonly statusCode: number;

  constructor(
    statusCode: number,
    code: string,
    message: string,
    details?: unknown,
    origin?: { requestId: string | undefined; retryAfterMs: number | undefined; cause?: unknown },
  ) {
    const { requestId, retryAfterMs, cause } = origin ?? {};
    super({ status: statusCode, code, message: `[${code}] ${message}`, details, requestId, retryAfterMs, cause });
    this.name = "ForgeAPIError";
    this.statusCode = statusCode;
  }
}

/** Client of the routes for runs. Every method throws a {@link ForgeAPIError}. */
export class ForgeSDK {
  readonly #options: BridgeOptions;
  /** Streams in a row that ended without an event, by run. */
  readonly #emptyEnds = new Map<string, number>();

  /** `baseUrl` is that of the bridge, with or without `/api/v1`. */
  constructor(baseUrl: string, options: Omit<BridgeOptions, "baseUrl"> = {}) {
    this.#options = { ...options, baseUrl: baseUrl.replace(/(\/api\/v1)?\/*$/, "") };
  }

  /** Attaches a repository and begins the interview with the Captain. */
  createRun(repoUrl: string, options: RunOptions & KeyedOptions = {}): Promise<Run> {
    const { idempotencyKey, signal, timeoutMs, ...request } = options;
    return this.#json(["runs"], body("POST", { ...request, repoUrl }, { idempotencyKey, signal, timeoutMs }));
  }

  getRun(runId: string, options: CallOptions = {}): Promise<RunState> {
    return this.#json(["runs", runId], call(options));
  }

  /** Returns runs, newest first. A page can have fewer items than `limit`. */
  async listRuns(filter: RunFilter = {}, options: CallOptions = {}): Promise<Page<RunSummary>> {
    const page = await this.#json<{ runs: RunSummary[]; nextCursor: string | null }>(["runs"], call(options), { ...filter });
    return { items: page.runs, nextCursor: page.nextCursor };
  }

  /**
   * Yields the events of a run once each, over as many connections as needed: from the first one, or after `after`,
   * to the next `run.completed`; `after` continues behind it if the run was reopened. After the last event of an ended
   * run it ends after a pause, which doubles each time, so that a reader that begins again in a loop asks rarely.
   */
  async *streamEvents(runId: string, options: RunStreamOptions = {}): AsyncGenerator<ForgeEvent, void, void> {
    const { events, ...rest } = options;
    let now: string | undefined;
    let last: string | undefined;
    const open = async (after: string | undefined, signal: AbortSignal): Promise<Response> => {
      const run = () => this.#json<RunState>(["runs", runId], { signal });
      // Resolves "now" once: a stream disconnected before its first event resumes there.
      if (after === "now") after = now ??= (await run()).lastEventId;
      // The last stream gave nothing: it was disconnected, or `after` is the last event of an ended run.
      if (after !== undefined && after === last) {
        const { completedAt, lastEventId } = await run();
        if (completedAt !== null && lastEventId === after) return new Response(null, { status: 204 });
      }
      last = after;
      const path = route(["runs", runId, "stream"], { after, events });
      return openStream(this.#options, path, signal).catch(rethrow);
    };
    let isEmpty = true;
    for await (const event of resume(open, rest, (event: ForgeEvent) => event.eventId)) {
      if (isEmpty) this.#emptyEnds.delete(runId);
      isEmpty = false;
      yield event;
      if (event.type === "run.completed") return;
    }
    if (!isEmpty) return;
    const ends = (this.#emptyEnds.get(runId) ?? 0) + 1;
    this.#emptyEnds.set(runId, ends);
    await pause(backoff(ends, rest.maxPauseMs ?? 10_000), rest.signal);
  }

  /** Returns a page of the events of a run, oldest first; `nextCursor` is the `after` of the next page. */
  async listEvents(
    runId: string,
    filter: RunEventFilter = {},
    options: CallOptions = {},
  ): Promise<{ items: ForgeEvent[]; nextCursor: string }> {
    const path = ["runs", runId, "events"];
    const page = await this.#json<{ events: ForgeEvent[]; nextCursor: string }>(path, call(options), { ...filter });
    return { items: page.events, nextCursor: page.nextCursor };
  }

  /**
   * Starts nothing new. Agents are asked to end with what they have, if their adapter takes messages, and run to their end
   * if not; `abort` cancels them, and a resume repeats them. Code `INVALID_STATE`: paused before, or ended.
   */
  async pauseRun(runId: string, mode?: "abort", options: CallOptions = {}): Promise<void> {
    await this.#post(["runs", runId, "pause"], options, mode && { mode });
  }

  resumeRun(runId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "resume"], options);
  }

  /** Cancels what runs, then ends the run as `cancelled`. */
  cancelRun(runId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "cancel"], options);
  }

  /** Starts the execution of a plan that waits for its review. */
  approvePlan(runId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "plan", "approve"], options);
  }

  /** Returns to the interview from a plan that waits for its review. */
  reopenPlan(runId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "plan", "reopen"], options);
  }

  /** Folds the events of a run and compares the result with the stored state. */
  verifyRun(runId: string, options: CallOptions = {}): Promise<RunVerification> {
    return this.#json(["runs", runId, "verify"], call(options));
  }

  /** Sends a message to the Captain; its answer is an event. */
  async sendCaptainMessage(runId: string, message: string, options: CallOptions = {}): Promise<void> {
    await this.#post(["captain", "message"], options, { runId, message });
  }

  /** Returns the tasks in the order of the plan. */
  listTasks(runId: string, options: CallOptions = {}): Promise<TaskSummary[]> {
    return this.#json(["runs", runId, "tasks"], call(options));
  }

  getTask(runId: string, taskId: string, options: CallOptions = {}): Promise<TaskDetail> {
    return this.#json(["runs", runId, "tasks", taskId], call(options));
  }

  /**
   * Continues a run that ended without completing, or tries at once what waits. `budget` replaces that of the run.
   * Code `INVALID_STATE`: the run is completed, or nothing of it failed or waits.
   */
  retryRun(runId: string, budget?: Budget, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "retry"], options, budget && { budget });
  }

  /** Starts another attempt of a task that failed or became stale, or tries at once what waits. */
  retryTask(runId: string, taskId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "tasks", taskId, "retry"], options);
  }

  /** Returns the content of an artifact, such as `tasks/a.md`. */
  getArtifact(runId: string, path: string, options: CallOptions = {}): Promise<string> {
    return this.#ask((answer) => answer.text(), ["runs", runId, "artifacts", ...path.split("/")], call(options));
  }

  listChangeRequests(runId: string, options: CallOptions = {}): Promise<ChangeRequest[]> {
    return this.#json(["runs", runId, "change-requests"], call(options));
  }

  /** Lets the plan be changed as requested. Code `INVALID_STATE`: the change request is not pending. */
  approveChangeRequest(runId: string, crId: string, options: CallOptions = {}): Promise<void> {
    return this.#post(["runs", runId, "change-requests", crId, "approve"], options);
  }

  /** Leaves the plan as it is. Code `INVALID_STATE`: the change request is not pending. */
  rejectChangeRequest(runId: string, crId: string, reason?: string, options: CallOptions = {}): Promise<void> {
    const value = reason === undefined ? undefined : { reason };
    return this.#post(["runs", runId, "change-requests", crId, "reject"], options, value);
  }

  async #post(path: string[], options: CallOptions, value?: object): Promise<void> {
    await this.#json(path, value ? body("POST", value, options) : { ...call(options), method: "POST" });
  }

  #json<T>(path: string[], init: Init, parameters?: Query): Promise<T> {
    return this.#ask(json<T>, path, init, parameters);
  }

  /** Asks a route and reads its answer. */
  async #ask<T>(read: (answer: Response) => Promise<T>, path: string[], init: Init, parameters: Query = {}): Promise<T> {
    return ask(this.#options, route(path, parameters), init, read).catch(rethrow);
  }
}

function route(path: string[], parameters: Query): string {
  return `/api/v1/${path.map(encodeURIComponent).join("/")}${query(parameters)}`;
}

function rethrow(error: unknown): never {
  if (!(error instanceof BridgeError)) throw error;
  throw new ForgeAPIError(error.status, error.code, error.message, error.details, error);
}
