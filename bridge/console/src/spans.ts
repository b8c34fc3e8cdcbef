import type { Delivery, Dispatch, Usage } from "@forge-bridge/client";
import type { Occurrence } from "./parts/timeline";

/** Part of a dispatch with a start and an end. */
export interface Span {
  key: string;
  name: string;
  kind: "wait" | "attempt" | "model" | "tool" | "delivery";
  depth: number;
  /** Milliseconds since 1970; without `to` it is not over. */
  from: number;
  to: number | undefined;
  tokens?: number | undefined;
  costUsd?: number | null | undefined;
  /** Word about its outcome. */
  note?: string | undefined;
  bad?: boolean | undefined;
  href?: string | undefined;
}

/** What the events of one attempt have shown so far. */
interface AttemptLog {
  spans: Span[];
  /** Turn of the model that is not over. */
  turn: Span | undefined;
  /** Turn that usage is counted for: the last one. */
  last: Span | undefined;
  tools: Map<string, Span>;
  tokens: number;
  costUsd: number | undefined;
}

/** Fold of the events of a dispatch by attempt. */
export type SpanLog = Map<number, AttemptLog>;

/** Most turns and tools of one attempt. */
const MOST = 300;
const ENDS = ["execution.retrying", "execution.completed", "execution.failed"];

/** Returns a new log with these events; spans that they end are changed in place. */
export function traced(log: SpanLog, events: Occurrence[]): SpanLog {
  const next = new Map(log);
  for (const event of events) {
    const number = event.attempt;
    if (!number) continue;
    const at = Date.parse(event.timestamp);
    const known = next.get(number) ?? { spans: [], turn: undefined, last: undefined, tools: new Map(), tokens: 0, costUsd: undefined };
    const one = { ...known };
    next.set(number, one);
    step(one, event, at, number);
  }
  return next;
}

function step(log: AttemptLog, { id, type, data = {} }: Occurrence, at: number, number: number): void {
  const add = (span: Span) => {
    if (log.spans.length < MOST) log.spans = [...log.spans, span];
    return span;
  };
  const begin = () => {
    log.turn = log.last = { key: `${number} ${id}`, name: "model", kind: "model", depth: 2, from: at, to: undefined };
  };
  /** Ends the turn; one without any answer of the model is left out. */
  const end = (answered: boolean) => {
    if (!log.turn) return;
    log.turn.to = at;
    if (answered && !log.spans.includes(log.turn)) add(log.turn);
    log.turn = undefined;
  };
  if (type === "execution.started") begin();
  else if (type.startsWith("assistant.") || type === "usage") {
    if (!log.turn && log.tools.size === 0 && type !== "usage") begin();
    if (log.turn && !log.spans.includes(log.turn)) add(log.turn);
    if (type === "usage") spend(log, data);
  } else if (type === "tool.invoked") {
    end(true);
    const tool: Span = { key: `${number} ${id}`, name: String(data["name"]), kind: "tool", depth: 2, from: at, to: undefined };
    log.tools = new Map(log.tools).set(String(data["toolCallId"]), add(tool));
  } else if (type === "tool.completed") {
    const tool = log.tools.get(String(data["toolCallId"]));
    if (tool) {
      tool.to = at;
      tool.bad = data["isError"] === true;
    }
    log.tools = new Map([...log.tools].filter(([, other]) => other !== tool));
    if (log.tools.size === 0) begin();
  } else if (type === "model.retrying" && log.turn) {
    log.turn.note = "asked again";
  } else if (ENDS.includes(type)) {
    end(false);
    for (const tool of log.tools.values()) tool.to = at;
    log.tools = new Map();
  }
}

/** Adds to the last turn what the totals of the attempt have grown by. */
function spend(log: AttemptLog, data: Record<string, unknown>): void {
  const tokens = sum(data as unknown as Usage);
  if (log.last && tokens > log.tokens) log.last.tokens = (log.last.tokens ?? 0) + tokens - log.tokens;
  log.tokens = Math.max(tokens, log.tokens);
  const cost = data["costUsd"];
  if (typeof cost === "number") {
    if (log.last) log.last.costUsd = (log.last.costUsd ?? 0) + cost - (log.costUsd ?? 0);
    log.costUsd = cost;
  }
}

/** Input and output tokens; 0 if none are reported. */
export function sum(usage: Usage | null | undefined): number {
  return usage?.totalTokens ?? (usage?.inputTokens ?? 0) + (usage?.outputTokens ?? 0);
}

function time(iso: string | undefined): number | undefined {
  return iso ? Date.parse(iso) : undefined;
}

/** Parts of a dispatch, in the order of their start. */
export function spans(dispatch: Dispatch, deliveries: Delivery[], log: SpanLog): Span[] {
  const all: Span[] = [];
  const attempts = dispatch.attempts ?? [];
  const begins = [...attempts.map((attempt) => Date.parse(attempt.startedAt)), time(dispatch.finishedAt)];
  let since = Date.parse(dispatch.notBefore && dispatch.notBefore > dispatch.acceptedAt ? dispatch.notBefore : dispatch.acceptedAt);
  attempts.forEach((attempt, index) => {
    const { number } = attempt;
    const events = log.get(number);
    const from = Date.parse(attempt.startedAt);
    const to = time(attempt.endedAt);
    const isLast = index === attempts.length - 1;
    const result = isLast ? dispatch.result : undefined;
    all.push({ key: `wait ${number}`, name: index ? "queued again" : "queued", kind: "wait", depth: 0, from: since, to: from });
    all.push({
      key: `attempt ${number}`,
      name: attempts.length > 1 ? `attempt ${number}` : `attempt on ${dispatch.provider}`,
      kind: "attempt",
      depth: 1,
      from,
      to,
      // Totals of the result are those of all attempts.
      tokens: events?.tokens || (attempts.length === 1 ? sum(result?.usage) : 0) || undefined,
      costUsd: events?.costUsd ?? (attempts.length === 1 ? result?.costUsd : undefined),
      note: attempt.retriedBecause ?? (isLast ? dispatch.errorCode ?? undefined : undefined),
      bad: attempt.retriedBecause !== undefined || (isLast && dispatch.outcome === "error"),
    });
    for (const span of events?.spans ?? []) all.push({ ...span, to: span.to ?? to });
    since = to ?? from;
  });
  if (attempts.length === 0) all.push({ key: "wait", name: "queued", kind: "wait", depth: 0, from: since, to: begins.at(-1) });
  for (const delivery of deliveries) {
    for (const attempt of delivery.attempts) {
      const from = Date.parse(attempt.at);
      const isDone = attempt.status !== undefined && attempt.status !== null && attempt.status < 300;
      const note = attempt.status ? `HTTP ${attempt.status}` : (attempt.error ?? undefined);
      all.push({ key: `${delivery.id} ${attempt.number}`, name: `callback ${attempt.number}`, kind: "delivery", depth: 0, from, to: from + attempt.durationMs, note, bad: !isDone });
    }
  }
  return all;
}
