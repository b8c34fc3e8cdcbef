import { BridgeError } from "./errors.js";
import { type BridgeOptions, type Query, ask, body, query } from "./request.js";
import type {
  ChangeRequest,
  ForgeEvent,
  Run,
  RunEventFilter,
  RunFilter,
  RunOptions,
  RunState,
  RunStreamOptions,
  RunSummary,
  RunVerification,
  TaskDetail,
  TaskSummary,
} from "./runs.js";
import { resume } from "./stream.js";
import type { Page } from "./wire.js";

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

  /** `baseUrl` is that of the bridge, with or without `/api/v1`. */
  constructor(baseUrl: string, options: Omit<BridgeOptions, "baseUrl"> = {}) {
    this.#options = { ...options, baseUrl: baseUrl.replace(/(\/api\/v1)?\/*$/, "") };
  }

  /** Attaches a repository and begins the interview with the Captain. */
  createRun(repoUrl: string, options: RunOptions = {}): Promise<Run> {
    const { idempotencyKey, ...request } = options;
    return this.#json(["runs"], body("POST", { ...request, repoUrl }, idempotencyKey));
  }

  getRun(runId: string): Promise<RunState> {
    return this.#json(["runs", runId]);
  }

  /** Returns runs, newest first. A page can have fewer items than `limit`. */
  async listRuns(filter: RunFilter = {}): Promise<Page<RunSummary>> {
    const page = await this.#json<{ runs: RunSummary[]; nextCursor: string | null }>(["runs"], {}, { ...filter });
    return { items: page.runs, nextCursor: page.nextCursor };
  }

  /**
   * Yields the events of a run once each, over as many connections as needed: from the first one, or after `after`,
   * to `run.completed`.
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
      const headers = { Accept: "application/x-ndjson" };
      return this.#ask(async (answer) => answer, ["runs", runId, "stream"], { headers, signal }, { after, events });
    };
    for await (const event of resume(open, rest, (event: ForgeEvent) => event.eventId)) {
      yield event;
      if (event.type === "run.completed") return;
    }
  }

  /** Returns a page of the events of a run, oldest first; `nextCursor` is the `after` of the next page. */
  async listEvents(runId: string, filter: RunEventFilter = {}): Promise<{ items: ForgeEvent[]; nextCursor: string }> {
    const path = ["runs", runId, "events"];
    const page = await this.#json<{ events: ForgeEvent[]; nextCursor: string }>(path, {}, { ...filter });
    return { items: page.events, nextCursor: page.nextCursor };
  }

  /**
   * Starts nothing new. Agents are asked to end with what they have, if their adapter takes messages, and run to their end
   * if not; `abort` cancels them, and a resume repeats them. Code `INVALID_STATE`: paused before, or ended.
   */
  async pauseRun(runId: string, mode?: "abort"): Promise<void> {
    await this.#json(["runs", runId, "pause"], mode === undefined ? { method: "POST" } : body("POST", { mode }));
  }

  resumeRun(runId: string): Promise<void> {
    return this.#post("runs", runId, "resume");
  }

  /** Cancels what runs, then ends the run as `cancelled`. */
  cancelRun(runId: string): Promise<void> {
    return this.#post("runs", runId, "cancel");
  }

  /** Starts the execution of a plan that waits for its review. */
  approvePlan(runId: string): Promise<void> {
    return this.#post("runs", runId, "plan", "approve");
  }

  /** Returns to the interview from a plan that waits for its review. */
  reopenPlan(runId: string): Promise<void> {
    return this.#post("runs", runId, "plan", "reopen");
  }

  /** Folds the events of a run and compares the result with the stored state. */
  verifyRun(runId: string): Promise<RunVerification> {
    return this.#json(["runs", runId, "verify"]);
  }

  /** Sends a message to the Captain; its answer is an event. */
  async sendCaptainMessage(runId: string, message: string): Promise<void> {
    await this.#json(["captain", "message"], body("POST", { runId, message }));
  }

  /** Returns the tasks in the order of the plan. */
  listTasks(runId: string): Promise<TaskSummary[]> {
    return this.#json(["runs", runId, "tasks"]);
  }

  getTask(runId: string, taskId: string): Promise<TaskDetail> {
    return this.#json(["runs", runId, "tasks", taskId]);
  }

  /** Starts another attempt of a task that failed or became stale. */
  retryTask(runId: string, taskId: string): Promise<void> {
    return this.#post("runs", runId, "tasks", taskId, "retry");
  }

  /** Returns the content of an artifact, such as `tasks/a.md`. */
  getArtifact(runId: string, path: string): Promise<string> {
    return this.#ask((answer) => answer.text(), ["runs", runId, "artifacts", ...path.split("/")]);
  }

  listChangeRequests(runId: string): Promise<ChangeRequest[]> {
    return this.#json(["runs", runId, "change-requests"]);
  }

  /** Lets the plan be changed as requested. Code `INVALID_STATE`: the change request is not pending. */
  approveChangeRequest(runId: string, crId: string): Promise<void> {
    return this.#post("runs", runId, "change-requests", crId, "approve");
  }

  /** Leaves the plan as it is. Code `INVALID_STATE`: the change request is not pending. */
  async rejectChangeRequest(runId: string, crId: string, reason?: string): Promise<void> {
    const init = reason === undefined ? { method: "POST" } : body("POST", { reason });
    await this.#json(["runs", runId, "change-requests", crId, "reject"], init);
  }

  async #post(...path: string[]): Promise<void> {
    await this.#json(path, { method: "POST" });
  }

  #json<T>(path: string[], init?: RequestInit, parameters?: Query): Promise<T> {
    return this.#ask((answer) => answer.json() as Promise<T>, path, init, parameters);
  }

  /** Asks a route and reads its answer. */
  async #ask<T>(
    read: (answer: Response) => Promise<T>,
    path: string[],
    init: RequestInit = {},
    parameters: Query = {},
  ): Promise<T> {
    // A URL cannot have these as parts: it would name another route.
    const dots = path.find((part) => part === "." || part === "..");
    if (dots) throw new ForgeAPIError(400, "INVALID_REQUEST", `"${dots}" cannot be part of a path`);
    try {
      const route = path.map(encodeURIComponent).join("/");
      return await read(await ask(this.#options, `/api/v1/${route}${query(parameters)}`, init));
    } catch (error) {
      const failure = error instanceof BridgeError ? error : BridgeError.unreachable(error);
      throw new ForgeAPIError(failure.status, failure.code, failure.message, failure.details, failure);
    }
  }
}
