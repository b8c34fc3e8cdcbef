import type { BridgeEvent } from "@forge-bridge/client";
import { duration, json, millis, time } from "../format";

/** What is shown for one or several events: text that came in pieces is one piece here. */
export interface Entry {
  key: string;
  kind: string;
  at: string;
  text?: string;
  data?: unknown;
  bad?: boolean;
}

const KEPT = 4000;
/** Said elsewhere on the page. */
const KNOWN = ["provider", "deliveryId"];

/** Adds events to what is shown; text goes on where the last text ended. */
export function grow(entries: Entry[], events: BridgeEvent[]): Entry[] {
  const next = entries.slice();
  for (const event of events) {
    const delta = event.data?.["delta"];
    const last = next.at(-1);
    if (typeof delta === "string") {
      if (last?.kind === event.type) next[next.length - 1] = { ...last, text: last.text + delta };
      else next.push({ key: event.id, kind: event.type, at: event.timestamp, text: delta });
      continue;
    }
    const bad = event.type === "execution.failed" || event.type === "callback.dead" || event.data?.["isError"] === true;
    next.push({ key: event.id, kind: event.type, at: event.timestamp, data: event.data, bad });
  }
  return next.length > KEPT ? next.slice(-KEPT) : next;
}

export function Timeline({ entries, since }: { entries: Entry[]; since: string }) {
  return (
    <ol class="timeline" aria-label="What happened">
      {entries.map((entry) => (
        <li key={entry.key} class={entry.bad ? "bad" : ""}>
          <span class="number dim" title={time(entry.at)}>+{duration(millis(since, entry.at))}</span>
          <div>
            <code class="kind">{entry.kind}</code> <Summary entry={entry} />
          </div>
        </li>
      ))}
    </ol>
  );
}

function Summary({ entry }: { entry: Entry }) {
  if (entry.text !== undefined) {
    return <pre class={entry.kind === "assistant.thinking" ? "said thought" : "said"}>{entry.text}</pre>;
  }
  const data = entry.data as Record<string, unknown> | undefined;
  if (!data || Object.keys(data).length === 0) return null;
  if (entry.kind === "tool.invoked") return <Tool name={data["name"]} body={data["input"]} />;
  if (entry.kind === "tool.completed") return <Tool name={data["name"]} body={data["output"]} />;
  const all = Object.entries(data).filter(([name]) => !KNOWN.includes(name));
  const flat = all.filter(([, value]) => typeof value !== "object" || value === null);
  if (flat.length === all.length && flat.length <= 5) {
    return <span class="dim">{flat.map(([name, value]) => `${name} ${value}`).join("   ")}</span>;
  }
  return (
    <details>
      <summary>{flat.slice(0, 3).map(([name, value]) => `${name} ${value}`).join("   ") || "data"}</summary>
      <pre>{json(data)}</pre>
    </details>
  );
}

function Tool({ name, body }: { name: unknown; body: unknown }) {
  return (
    <>
      <strong>{String(name)}</strong>
      <pre class="said">{json(body)}</pre>
    </>
  );
}
