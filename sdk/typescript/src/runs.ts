/** Types of the routes for runs, with their names. Times are RFC 3339. */
import type { StreamOptions } from "./stream.js";
import type { DispatchRequest } from "./wire.js";

export type RunStatus = "planning" | "plan_review" | "executing" | "paused" | "completed" | "failed" | "cancelled";
export type TaskStatus = "PENDING" | "RUNNING" | "DONE" | "MERGE_READY" | "MERGED" | "FAILED" | "STALE";

/** 1 small task, 2 task, 3 task with subtasks, `refinery`: merges its dependencies. */
export type AgentType = 1 | 2 | 3 | "refinery";

export interface RunOptions {
  /** Branch or tag to begin with; default: the default branch. */
  ref?: string;
  /** Model of all steps; default: `runs.model` of the bridge. */
  model?: string;
  /** Adapter of all steps; default: `runs.provider` of the bridge, else routing chooses. */
  provider?: string;
  /** True: the plan waits for `approvePlan` before it is executed. Default false. */
  planReview?: boolean;
  /** `auto`: change requests are approved at once. Default `user`: they wait, and hold the run. */
  approval?: "user" | "auto";
  /** Limit of all steps together. */
  budget?: NonNullable<DispatchRequest["budget"]>;
  /** The same key with the same request returns the same run. */
  idempotencyKey?: string;
}

export interface RunFilter {
  status?: RunStatus;
  /** At most 200; default 50. */
  limit?: number;
  cursor?: string;
}

export interface RunEventFilter {
  /** `eventId` to start after. */
  after?: string;
  /** At most 1,000; default 100. */
  limit?: number;
  /** Time to wait for the first event, in seconds: at most 60, default 0. */
  wait?: number;
}

export interface RunStreamOptions extends StreamOptions {
  /** `core` leaves out the types that the public design of runs does not name. Default `all`. */
  events?: "all" | "core";
}

export interface Run {
  runId: string;
  status: RunStatus;
}

/** Run in a list. */
export interface RunSummary extends Run {
  repoUrl: string | null;
  model: string | null;
  createdAt: string;
  completedAt: string | null;
  lastEventSeq: number;
}

/** Run with its tasks, its graph and the list of its artifacts. */
export interface RunState extends RunSummary {
  currentPhase: "captain_interview" | "plan_review" | "execution" | "paused" | "completed";
  /** Start of the execution. */
  startedAt: string | null;
  /** Reason of a failed run. */
  error: string | null;
  /** Branch or tag, and its commit, that the run began with. */
  ref: string | null;
  commit: string | null;
  /** Branch that results are merged into. */
  target: string;
  totalTasks: number;
  completedTasks: number;
  mergedTasks: number;
  /** Tasks whose attempts have all failed. */
  failedTasks: number;
  runningTasks: number;
  /** Ids of the change requests that are pending, which hold the run, or approved and not applied yet. */
  activeCRs: string[];
  lastEventId: string;
  tokens: number;
  costUsd: number;
  traceId: string | null;
  tasks: Record<string, TaskSummary>;
  dag: RunGraph;
  /** By path. */
  artifacts: Record<string, ArtifactInfo>;
}

export interface RunGraph {
  version: 1;
  runId: string;
  nodes: GraphNode[];
}

export interface GraphNode {
  id: string;
  type: "task" | "refinery";
  agentType: AgentType;
  dependencies: string[];
  status: TaskStatus;
}

export interface ArtifactInfo {
  type: string;
  /** Bytes. */
  size: number;
  updatedAt: string;
}

export interface TaskSummary {
  taskId: string;
  title: string;
  type: AgentType;
  status: TaskStatus;
  dependencies: string[];
  /** Branch, number, dispatch and checkout of the current attempt. */
  branch?: string;
  attemptId?: string;
  agentId?: string;
  sandboxId?: string;
  startedAt?: string;
  completedAt?: string;
  /** Commit of the branch, once it was pushed and read back. */
  commit?: string;
  error?: string;
}

export interface TaskDetail extends TaskSummary {
  /** Report of the last attempt. */
  walkthrough?: string | null;
  subtasks?: { title: string; done: boolean }[];
  /** Agents that the current attempt has started, by their number; `parent` is 0 for the attempt's own agent. */
  agents: { agent: number; type: AgentType; title: string; parent: number | null; status: "waiting" | "running" | "ended" }[];
  /** Files that were in conflict. */
  conflicts?: string[];
  artifacts: string[];
}

/** Task as it was written. */
export interface TaskDocument {
  id: string;
  title: string;
  type: AgentType;
  dependencies: string[];
  acceptance_criteria?: string[];
  description?: string;
  context?: string;
  instructions?: string;
}

/** Addition to the graph. Edges are from a dependency to the task that waits for it. */
export type RunOverlay = {
  addedNodes: TaskDocument[];
  addedEdges: { from: string; to: string }[];
};

/** Request of a refinery to change the plan. */
export interface ChangeRequest {
  crId: string;
  title: string;
  /** Task that made the request. */
  emittedBy: string;
  /** `applied`: approved, and the plan is changed. */
  status: "pending" | "approved" | "rejected" | "applied";
  description: string;
  /** Tasks that wait for the change of the plan. */
  impact: string[];
  createdAt: string;
  suggestedChanges: string;
  /** Addition that the agent proposes; without one, the Captain writes it after the approval. */
  overlay: RunOverlay | null;
  rejectedBecause: string | null;
}

/** Comparison of the stored state of a run with the fold of its events. */
export interface RunVerification {
  ok: boolean;
  seq: number;
  /** At most 100. */
  differences: string[];
}

type Args = Record<string, unknown>;
type Empty = Record<string, never>;
type HoldReason = "user" | "cr";

/** Data of an event, by its type. */
export interface EventData {
  "run.started": { repoUrl: string };
  /** The repository was fetched. */
  "run.attached": { ref: string; commit: string };
  "run.executing": Empty;
  /** `crId` with the reason `cr`. */
  "run.paused": { reason: HoldReason; crId?: string };
  "run.resumed": { reason: HoldReason; crId?: string };
  "run.cancelling": Empty;
  /** The last event of every run. `duration` is in milliseconds. */
  "run.completed": {
    totalCompleted: number;
    totalFailed: number;
    duration: number;
    status: "completed" | "failed" | "cancelled";
    error?: string;
  };
  "captain.user_message": { content: string };
  "captain.message": { content: string; role: "assistant" };
  "captain.tool_call": { toolName: string; args: Args; callId: string };
  "captain.tool_result": { toolName: string; result: unknown; callId: string; isError: boolean };
  "plan.finalized": { totalTasks: number; totalRefineries: number; specCount: number };
  "plan.approved": Empty;
  "plan.reopened": Empty;
  "task.scheduled": { taskId: string; agentType: AgentType };
  "task.started": { taskId: string; agentId: string; sandboxId: string; branch: string };
  "task.heartbeat": { taskId: string; agentId: string; uptimeSeconds: number; agent?: number };
  "task.progress": { taskId: string; content: string; contentType: "text" | "thinking"; agent?: number };
  "task.completed": { taskId: string; walkthroughPath: string };
  "task.failed": { taskId: string; error: string; canRetry: boolean };
  "task.stale": { taskId: string; error: string };
  "task.status": { taskId: string; previousStatus: TaskStatus; newStatus: TaskStatus; attempt: number; reason?: string };
  /** An agent was asked to end because of a pause, was cancelled, or runs to its end. */
  "task.pause_ack": { taskId: string; effect: "wrapping_up" | "cancelled" | "unsupported"; agent?: number };
  "task.retried": { taskId: string };
  "task.exhausted": { taskId: string };
  "tool.call": { taskId: string; toolName: string; args: Args; callId: string; agent?: number };
  "tool.result": { taskId: string; toolName: string; result: unknown; isError: boolean; callId: string; agent?: number };
  /** An agent of the attempt started another one. `agent` is its number, which its own events have as well. */
  "agent.started": { taskId: string; agent: number; agentType: AgentType; title: string; branch: string };
  "agent.ended": { taskId: string; agent: number; error?: string };
  "artifact.written": { path: string; type: "spec" | "task" | "walkthrough" | "cr" | "dag" };
  /** `ref` is the commit that was read back. */
  "branch.pushed": { taskId: string; branch: string; ref: string };
  "refinery.started": { taskId: string; dependencyCount: number };
  "refinery.conflict": { taskId: string; branch: string; paths: string[] };
  /** Result of the checks of the repository; `report` is the one that failed, and the end of its output. */
  "refinery.tests": { taskId: string; passed: number; failed: number; skipped: number; report?: string };
  /** `resultRef` is the commit of the target that was read back; `proof` says how each input was found in it. */
  "refinery.merged": {
    taskId: string;
    mergedBranches: string[];
    conflicts: string[];
    resultRef: string;
    proof: { branch: string; commit: string; by: "ancestor" | "patch" }[];
  };
  "cr.emitted": { crId: string; title: string; emittedBy: string };
  "cr.resolved": { crId: string; status: "approved" | "rejected" | "applied"; reason?: string };
  /** The graph was changed as requested. */
  "dag.overlay_applied": RunOverlay & { crId: string };
  /** End of one dispatch of the run. */
  usage: { dispatchId: string; taskId?: string; sessionId?: string; tokens: number; costUsd: number; agent?: number };
}

export type EventType = keyof EventData;

interface EventBase<Type, Data> {
  /** Cursor; opaque. */
  eventId: string;
  /** Counts 1, 2, 3 … without a gap inside the run. */
  seq: number;
  timestamp: string;
  type: Type;
  runId: string;
  taskId?: string;
  attemptId?: string;
  data: Data;
}

/** Texts that this version does not name. An enum, because `type === "…"` would also select events of the type `string`. */
declare enum OtherType {
  Unnamed = "",
}

/** Event of a type that this version does not name; compare `String(event.type)`. */
export type OtherEvent = EventBase<OtherType, Record<string, unknown>>;

/** Event of a run. Comparing `type` selects the `data`; ignore types that you do not know. */
export type ForgeEvent = { [Type in EventType]: EventBase<Type, EventData[Type]> }[EventType] | OtherEvent;
