import { dollars, duration, json, millis, number, plural } from "../format";

/** Entry for one or several events: streamed text is joined into one entry. */
export interface Entry {
  key: string;
  kind: string;
  at: string;
  attempt: number | undefined;
  text?: string;
  /** Message that `text` belongs to. */
  message?: unknown;
  /** Number of an agent that another one of the attempt started. */
  agent?: number | undefined;
  /** True if the adapter withdrew `text`, or the bridge that of the attempt. */
  retracted?: boolean;
  /** Characters cut off before `text`. */
  cut?: number;
  data?: Record<string, unknown>;
  bad?: boolean;
}

/** Event of a dispatch, or of a task of a run. */
export interface Occurrence {
  id: string;
  type: string;
  timestamp: string;
  attempt?: number | undefined;
  /** Text that is streamed is its member `delta`. */
  data?: Record<string, unknown> | undefined;
}

export interface History {
  entries: Entry[];
  /** Number of entries removed for newer ones. */
  dropped: number;
}

const KEPT = 2000;
/** Characters of one text; the output has the complete text. */
const LONGEST = 20_000;
const BAD = ["execution.failed", "model.retrying", "callback.dead", "events.dropped", "task.failed", "task.stale", "task.exhausted", "refinery.conflict"];

/** Appends events; text is added to the last entry if that is text of the same kind, attempt and message. */
export function grow(history: History, events: Occurrence[]): History {
  const next = history.entries.slice();
  for (const event of events) {
    const delta = event.data?.["delta"];
    const last = next.at(-1);
    const { id: key, type: kind, timestamp: at, attempt } = event;
    const message = event.data?.["messageId"];
    const agent = event.data?.["agent"] as number | undefined;
    if (kind === "assistant.retracted") {
      const whole = event.data?.["attempt"];
      const isMeant = (entry: Entry) => (typeof whole === "number" ? entry.attempt === whole : message !== undefined && entry.message === message && entry.attempt === attempt);
      next.forEach((entry, index) => { if (entry.text !== undefined && isMeant(entry)) next[index] = { ...entry, retracted: true }; });
      continue;
    }
    if (typeof delta === "string") {
      if (last?.kind === kind && last.attempt === attempt && last.message === message && last.agent === agent && !last.retracted) next[next.length - 1] = { ...last, text: last.text + delta };
      else next.push({ key, kind, at, attempt, text: delta, message, agent });
      continue;
    }
    const bad = BAD.includes(kind) || event.data?.["isError"] === true;
    const hasData = Object.keys(event.data ?? {}).length > 0;
    next.push({ key, kind, at, attempt, bad, agent, ...(hasData && { data: event.data }) });
  }
  const entries = next.slice(-KEPT).map(trim);
  return { entries, dropped: history.dropped + next.length - entries.length };
}

function trim(entry: Entry): Entry {
  const over = (entry.text?.length ?? 0) - LONGEST;
  // Cut only at twice the limit, so that not every piece causes a cut.
  return over > LONGEST ? { ...entry, text: entry.text?.slice(over) ?? "", cut: (entry.cut ?? 0) + over } : entry;
}

export function Timeline({ history, since, label }: { history: History; since: string; label: string }) {
  return (
    <>
      {history.dropped > 0 && <p class="dim">{plural(history.dropped, "earlier entry", "earlier entries")} are not shown.</p>}
      <ol class="timeline" aria-label={label}>
        {history.entries.map((entry, index) => (
          <li key={entry.key} class={entry.bad ? "bad" : entry.kind.split(".")[0]}>
            <span class="number dim" title={entry.at}>+{duration(millis(since, entry.at))}</span>
            <div>
              <code class="kind">{entry.kind}</code>{" "}
              {(entry.attempt ?? 1) > 1 && entry.attempt !== history.entries[index - 1]?.attempt && <span class="dim">attempt {entry.attempt} </span>}
              {entry.agent !== undefined && <span class="dim">agent {entry.agent} </span>}
              <Summary entry={entry} />
            </div>
          </li>
        ))}
      </ol>
    </>
  );
}

function Summary({ entry }: { entry: Entry }) {
  if (entry.text !== undefined) {
    return (
      <>
        {entry.cut && <span class="dim">{number(entry.cut)} earlier characters are in the output</span>}
        {entry.retracted && <b>withdrawn</b>}
        <pre class={"said" + (entry.kind === "assistant.thinking" || entry.message === "thinking" ? " thought" : "") + (entry.retracted ? " retracted" : "")}>{entry.text}</pre>
      </>
    );
  }
  const data = entry.data;
  if (!data || Object.keys(data).length === 0) return null;
  switch (entry.kind) {
    case "tool.invoked":
      return <Tool name={data["name"]} body={data["input"]} />;
    case "tool.completed":
      return <Tool name={data["name"]} body={data["output"]} />;
    case "tool.call":
      return <Tool name={data["toolName"]} body={data["args"]} />;
    case "tool.result":
      return <Tool name={data["toolName"]} body={data["result"]} />;
    case "task.failed":
    case "task.stale":
      return <span>{String(data["error"] ?? "")}</span>;
    case "task.status":
      return <span>{String(data["previousStatus"])} → <b>{String(data["newStatus"])}</b> <span class="dim">{String(data["reason"] ?? "")}</span></span>;
    case "callback.attempted":
      return <span>{data["status"] ? `HTTP ${data["status"]}` : String(data["error"] ?? "")} <span class="dim">in {duration(Number(data["durationMs"] ?? 0))}</span></span>;
    case "execution.failed":
      return <span><b>{String(data["errorCode"] ?? "")}</b> {String(data["error"] ?? "")}</span>;
    case "model.retrying":
      return <span>the model is asked again in {duration(Number(data["delayMs"] ?? 0))} <span class="dim">{String(data["reason"] ?? "")}</span></span>;
    case "usage":
      if ("dispatchId" in data) return <span class="dim">{number(data["tokens"] as number)} tokens, {dollars(data["costUsd"] as number)}</span>;
      return <span class="dim">input {number(data["inputTokens"] as number | null)}, output {number(data["outputTokens"] as number | null)}</span>;
    default:
      return <Data data={data} />;
  }
}

/** Data shown elsewhere on the page. */
const KNOWN = ["deliveryId", "taskId", "agent"];

function Data({ data }: { data: Record<string, unknown> }) {
  const all = Object.entries(data).filter(([name]) => !KNOWN.includes(name));
  const flat = all.filter(([, value]) => typeof value !== "object" || value === null);
  const line = (pairs: typeof flat) => pairs.map(([name, value]) => `${name} ${value}`).join(" · ");
  if (flat.length === all.length && flat.length <= 5) return <span class="dim">{line(flat)}</span>;
  return (
    <details>
      <summary>{line(flat.slice(0, 3)) || "data"}</summary>
      <pre>{json(data)}</pre>
    </details>
  );
}

function Tool({ name, body }: { name: unknown; body: unknown }) {
  return (
    <>
      <b>{String(name)}</b>
      {body !== undefined && <pre class="said">{json(body)}</pre>}
    </>
  );
}
