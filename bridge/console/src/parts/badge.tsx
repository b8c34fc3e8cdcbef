import type { Dispatch } from "@forge-bridge/client";

const TONES: Record<string, string> = {
  healthy: "good",
  ok: "good",
  delivered: "good",
  open: "good",
  running: "busy",
  pending: "busy",
  queued: "wait",
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
};

/** State as a word with a colour: never colour alone. */
export function Badge({ state, label }: { state: string; label?: string }) {
  return <span class={`badge ${TONES[state] ?? "wait"}`}>{label ?? state}</span>;
}

/** State of a dispatch, or its outcome once finished. */
export function DispatchBadge({ dispatch }: { dispatch: Dispatch }) {
  if (dispatch.status !== "finished") return <Badge state={dispatch.status} />;
  if (dispatch.outcome === "ok") return <Badge state="ok" />;
  const code = dispatch.errorCode ?? "error";
  return <Badge state={code in TONES ? code : "error"} label={code} />;
}
