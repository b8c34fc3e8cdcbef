import type { BridgeEvent } from "@forge-bridge/client";
import { duration, json, millis, number, plural } from "../format";

/** Entry for one or several events: streamed text is joined into one entry. */
export interface Entry {
  key: string;
  kind: string;
  at: string;
  attempt: number | undefined;
  text?: string;
  /** Message that `text` belongs to. */
  message?: unknown;
  /** True if the adapter withdrew `text`, or the bridge that of the attempt. */
  retracted?: boolean;
  /** Characters cut off before `text`. */
  cut?: number;
  data?: Record<string, unknown>;
  bad?: boolean;
}

export interface History {
  entries: Entry[];
  /** Number of entries removed for newer ones. */
  dropped: number;
}

const KEPT = 2000;
/** Characters of one text; the output has the complete text. */
const LONGEST = 20_000;
const BAD = ["execution.failed", "model.retrying", "callback.dead", "events.dropped"];

/** Appends events; text is added to the last entry if that is text of the same kind, attempt and message. */
export function grow(history: History, events: BridgeEvent[]): History {
  const next = history.entries.slice();
  for (const event of events) {
    const delta = event.data?.["delta"];
    const last = next.at(-1);
    const { id: key, type: kind, timestamp: at, attempt } = event;
    const message = event.data?.["messageId"];
    if (kind === "assistant.retracted") {
      const whole = event.data?.["attempt"];
      const isMeant = (entry: Entry) => (typeof whole === "number" ? entry.attempt === whole : message !== undefined && entry.message === message && entry.attempt === attempt);
      next.forEach((entry, index) => { if (entry.text !== undefined && isMeant(entry)) next[index] = { ...entry, retracted: true }; });
      continue;
    }
    if (typeof delta === "string") {
      if (last?.kind === kind && last.attempt === attempt && last.message === message && !last.retracted) next[next.length - 1] = { ...last, text: last.text + delta };
      else next.push({ key, kind, at, attempt, text: delta, message });
      continue;
    }
    const bad = BAD.includes(kind) || event.data?.["isError"] === true;
    next.push({ key, kind, at, attempt, bad, ...(event.data && { data: event.data }) });
  }
  const entries = next.slice(-KEPT).map(trim);
  return { entries, dropped: history.dropped + next.length - entries.length };
}

function trim(entry: Entry): Entry {
  const over = (entry.text?.length ?? 0) - LONGEST;
  // Cut only at twice the limit, so that not every piece causes a cut.
  return over > LONGEST ? { ...entry, text: entry.text?.slice(over) ?? "", cut: (entry.cut ?? 0) + over } : entry;
}

export function Timeline({ history, since }: { history: History; since: string }) {
  return (
    <>
      {history.dropped > 0 && <p class="dim">{plural(history.dropped, "earlier entry", "earlier entries")} are not shown.</p>}
      <ol class="timeline" aria-label="Events of the dispatch">
        {history.entries.map((entry, index) => (
          <li key={entry.key} class={entry.bad ? "bad" : entry.kind.split(".")[0]}>
            <span class="number dim" title={entry.at}>+{duration(millis(since, entry.at))}</span>
            <div>
              <code class="kind">{entry.kind}</code>{" "}
              {(entry.attempt ?? 1) > 1 && entry.attempt !== history.entries[index - 1]?.attempt && <span class="dim">attempt {entry.attempt} </span>}
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
        <pre class={"said" + (entry.kind === "assistant.thinking" ? " thought" : "") + (entry.retracted ? " retracted" : "")}>{entry.text}</pre>
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
    case "callback.attempted":
      return <span>{data["status"] ? `HTTP ${data["status"]}` : String(data["error"] ?? "")} <span class="dim">in {duration(Number(data["durationMs"] ?? 0))}</span></span>;
    case "execution.failed":
      return <span><b>{String(data["errorCode"] ?? "")}</b> {String(data["error"] ?? "")}</span>;
    case "model.retrying":
      return <span>the model is asked again in {duration(Number(data["delayMs"] ?? 0))} <span class="dim">{String(data["reason"] ?? "")}</span></span>;
    case "usage":
      return <span class="dim">input {number(data["inputTokens"] as number | null)}, output {number(data["outputTokens"] as number | null)}</span>;
    default:
      return <Data data={data} />;
  }
}

/** Data shown elsewhere on the page. */
const KNOWN = ["deliveryId"];

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
