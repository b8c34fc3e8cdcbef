import type { Dispatch } from "@forge-bridge/client";

const TONES: Record<string, string> = {
  healthy: "good",
  ok: "good",
  delivered: "good",
  open: "good",
  running: "busy",
  pending: "busy",
  queued: "wait",
  waiting: "wait",
  ended: "good",
  accepted: "wait",
  connecting: "wait",
  superseded: "wait",
  cancelled: "wait",
  degraded: "warn",
  retrying: "warn",
  paused: "warn",
  warning: "warn",
  critical: "bad",
  input_required: "warn",
  offline: "bad",
  quarantined: "bad",
  error: "bad",
  dead: "bad",
  refused: "bad",
  planning: "busy",
  executing: "busy",
  plan_review: "warn",
  completed: "good",
  failed: "bad",
  approved: "good",
  applied: "good",
  rejected: "wait",
  RUNNING: "busy",
  DONE: "busy",
  MERGE_READY: "good",
  MERGED: "good",
  FAILED: "bad",
  STALE: "warn",
};

/** Class of the colour of a state. */
export function tone(state: string): string {
  return TONES[state] ?? "wait";
}

/** State as a word with a colour: never colour alone. */
export function Badge({ state, label }: { state: string; label?: string }) {
  return <span class={`badge ${tone(state)}`}>{label ?? state}</span>;
}

/** State of a dispatch, or its outcome once finished. */
export function DispatchBadge({ dispatch }: { dispatch: Dispatch }) {
  if (dispatch.status !== "finished") return <Badge state={dispatch.status} />;
  if (dispatch.outcome === "ok") return <Badge state="ok" />;
  const code = dispatch.errorCode ?? "error";
  return <Badge state={code in TONES ? code : "error"} label={code} />;
}
