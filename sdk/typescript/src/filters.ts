/** Arguments of the methods that list, and the pages that they return. */
import type { Budget, DeliveryStatus, RunStatus } from "./wire/index.js";

export interface Page<T> {
  items: T[];
  /** `cursor` of the next page; `null` after the last one. */
  nextCursor: string | null;
}

interface PageFilter {
  /** At most 200; default 50. A page can have fewer items and still have a `nextCursor`. */
  limit?: number | undefined;
  /** `nextCursor` of the previous page. */
  cursor?: string | undefined;
}

export interface DispatchFilter extends PageFilter {
  status?: "accepted" | "queued" | "running" | "finished" | "ok" | "error" | undefined;
  provider?: string | undefined;
  agentId?: string | undefined;
  runId?: string | undefined;
  /** First letters of the task id. */
  taskPrefix?: string | undefined;
  /** State of the callback. */
  callback?: DeliveryStatus | undefined;
  /** RFC 3339, or an age such as `30m`, `1h` or `7d`. */
  since?: string | undefined;
}

export interface DeliveryFilter extends PageFilter {
  status?: DeliveryStatus | undefined;
  /** Host or host:port. */
  host?: string | undefined;
  /** RFC 3339, or an age such as `30m`, `1h` or `7d`. */
  since?: string | undefined;
}

export interface ReplayFilter {
  /** Host or host:port. */
  host?: string | undefined;
  since?: string | undefined;
  status?: DeliveryStatus | undefined;
  /** Only count the deliveries. */
  dryRun?: boolean | undefined;
}

export interface EventFilter {
  provider?: string | undefined;
  agentId?: string | undefined;
  taskId?: string | undefined;
  type?: string | undefined;
}

export interface ApprovalFilter extends PageFilter {
  /** Default: `waiting`. */
  status?: "waiting" | "approved" | "rejected" | undefined;
}

export interface SignalSessionFilter extends PageFilter {
  adapter?: string | undefined;
  user?: string | undefined;
  project?: string | undefined;
  /** True selects sessions that have not ended, false those that have. */
  active?: boolean | undefined;
}

export interface InterventionFilter extends PageFilter {
  session?: string | undefined;
}

export interface RunFilter extends PageFilter {
  status?: RunStatus | undefined;
}

export interface RunEventFilter {
  /** `eventId` to start after. */
  after?: string | undefined;
  /** At most 1,000; default 100. */
  limit?: number | undefined;
  /** Time to wait for the first event, in seconds: at most 60, default 0. */
  wait?: number | undefined;
}

export interface RunOptions {
  /** Branch, tag or whole id of a commit to begin with; default: the default branch. */
  ref?: string | undefined;
  /** Model of all steps; default: `runs.model` of the bridge. */
  model?: string | undefined;
  /** Adapter of all steps; default: `runs.provider` of the bridge, else routing chooses. */
  provider?: string | undefined;
  /** True: the plan waits for `approvePlan` before it is executed. Default false. */
  planReview?: boolean | undefined;
  /** `auto`: change requests are approved at once. Default `user`: they wait, and hold the run. */
  approval?: "user" | "auto" | undefined;
  /** Limit of all steps together. */
  budget?: Budget | undefined;
  /** First message to the Captain, which then does not speak first. */
  message?: string | undefined;
}
