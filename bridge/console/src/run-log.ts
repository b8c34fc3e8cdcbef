import type { ForgeEvent, ForgeEventData, TaskStatus } from "@forge-bridge/client";
import { plural } from "./format";
import { grow, type History, type Occurrence } from "./parts/timeline";

/** Line of the interview. */
export interface Line {
  key: string;
  at: string;
  from: "user" | "captain" | "tool" | "plan";
  text: string;
  /** Result of a tool call; a refused one says what is wrong with the plan. */
  result?: string;
  bad?: boolean;
}

/** One attempt of a task. */
export interface Attempt {
  id: string;
  status: TaskStatus;
  since: string;
  branch?: string;
  dispatches: string[];
  error?: string;
}

/** Fold of the events of a run, as far as they were read. */
export interface RunLog {
  seq: number;
  lines: Line[];
  /** State of each task by its last event. */
  statuses: Map<string, TaskStatus>;
  attempts: Map<string, Attempt[]>;
  histories: Map<string, History>;
  merges: { at: string; data: ForgeEventData["refinery.merged"] }[];
  /** Number of events about change requests. */
  changes: number;
}

export const EMPTY: RunLog = { seq: 0, lines: [], statuses: new Map(), attempts: new Map(), histories: new Map(), merges: [], changes: 0 };

/** Returns the log with these events, without a change of `log`. */
export function append(log: RunLog, events: ForgeEvent[]): RunLog {
  const next: RunLog = {
    ...log,
    lines: [...log.lines],
    statuses: new Map(log.statuses),
    attempts: new Map(log.attempts),
    histories: new Map(log.histories),
    merges: [...log.merges],
  };
  const byTask = new Map<string, Occurrence[]>();
  for (const event of events) {
    next.seq = event.seq;
    interview(next.lines, event);
    if (event.type === "refinery.merged") next.merges.push({ at: event.timestamp, data: event.data });
    if (String(event.type).startsWith("cr.")) next.changes += 1;
    if (!event.taskId) continue;
    if (event.type === "task.status") next.statuses.set(event.taskId, event.data.newStatus);
    if (event.attemptId) next.attempts.set(event.taskId, attempts(next.attempts.get(event.taskId) ?? [], event, event.attemptId));
    const of = byTask.get(event.taskId) ?? [];
    of.push(occurrence(event));
    byTask.set(event.taskId, of);
  }
  for (const [task, more] of byTask) next.histories.set(task, grow(next.histories.get(task) ?? { entries: [], dropped: 0 }, more));
  return next;
}

function occurrence(event: ForgeEvent): Occurrence {
  const { eventId: id, timestamp, data } = event;
  const attempt = Number(event.attemptId ?? 1);
  if (event.type !== "task.progress") return { id, type: String(event.type), timestamp, attempt, data };
  return { id, type: event.type, timestamp, attempt, data: { delta: event.data.content, messageId: event.data.contentType, agent: event.data.agent } };
}

function attempts(known: Attempt[], event: ForgeEvent, id: string): Attempt[] {
  const last = known.find((one) => one.id === id) ?? { id, status: "PENDING" as const, since: event.timestamp, dispatches: [] };
  const next: Attempt = { ...last };
  const dispatch = (id: string) => { if (!next.dispatches.includes(id)) next.dispatches = [...next.dispatches, id]; };
  switch (event.type) {
    case "task.started":
      next.branch = event.data.branch;
      dispatch(event.data.agentId);
      break;
    case "usage":
      dispatch(event.data.dispatchId);
      break;
    case "task.failed":
    case "task.stale":
      next.error = event.data.error;
      break;
    case "task.status":
      // An attempt that failed keeps its state: the task waits for the next one.
      if (event.data.newStatus === "PENDING") break;
      next.status = event.data.newStatus;
      next.since = event.timestamp;
      break;
  }
  return [...known.filter((one) => one.id !== id), next];
}

function interview(lines: Line[], event: ForgeEvent): void {
  const add = (from: Line["from"], text: string) => lines.push({ key: event.eventId, at: event.timestamp, from, text });
  switch (event.type) {
    case "captain.user_message":
      add("user", event.data.content);
      break;
    case "captain.message":
      add("captain", event.data.content);
      break;
    case "captain.tool_call": {
      const { args, toolName, callId: key } = event.data;
      lines.push({ key, at: event.timestamp, from: "tool", text: [toolName, args["id"] ?? args["name"]].filter(Boolean).join(" ") });
      break;
    }
    case "captain.tool_result": {
      const { result, isError, callId } = event.data;
      const call = lines.findIndex((line) => line.key === callId);
      const text = typeof result === "string" ? result : JSON.stringify(result);
      // Another key, since ids of calls are repeated in later turns.
      if (call >= 0) lines[call] = { ...lines[call]!, key: event.eventId, result: text, bad: isError };
      break;
    }
    case "plan.finalized": {
      const { totalTasks, totalRefineries, specCount } = event.data;
      add("plan", `The plan is final: ${plural(totalTasks, "task")}, ${plural(totalRefineries, "refinery", "refineries")}, ${plural(specCount, "specification")}.`);
      break;
    }
    case "dag.overlay_applied": {
      const { crId, addedNodes } = event.data;
      add("plan", `The plan was changed by ${crId}: ${plural(addedNodes.length, "further task")}.`);
      break;
    }
    case "plan.approved":
      add("plan", "The plan was approved.");
      break;
    case "plan.reopened":
      add("plan", "The plan was reopened.");
      break;
  }
}
