import type { BridgeEvent } from "@forge-bridge/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { number, time } from "../format";
import { useKeys } from "../keys";
import { live, useLive } from "../live";
import { useLoad } from "../load";
import { Empty, Problem } from "../parts/notice";
import { link } from "../router";
import { bridge } from "../session";

/** Number of events kept, newest of all kinds, so that another filter has matches at once. */
const KEPT = 5000;
const SHOWN = 150;
/** Newest events that are shown when the page is opened. */
const RECENT = 100;
const KINDS = ["execution.", "execution.failed", "assistant.", "tool.", "usage", "callback.", "callback.dead", "adapter.", "run.", "captain.", "task.", "refinery."];

interface Filter {
  kind: string;
  provider: string;
  text: string;
}

function matches(event: BridgeEvent, { kind, provider, text }: Filter): boolean {
  return event.type.startsWith(kind) && (!provider || event.provider === provider) && (!text || JSON.stringify(event).includes(text));
}

/** Live tail of the events. While paused, new events are counted, and kept up to the limit. */
export function Events() {
  const kept = useRef<BridgeEvent[]>([]);
  const shown = useRef<BridgeEvent[]>([]);
  const filter = useRef<Filter>({ kind: "", provider: "", text: "" });
  const counted = useRef({ seen: 0, matched: 0, whilePaused: 0 });
  /** Events kept at the time of the pause; newer ones are not searched until the tail is resumed. */
  const stopped = useRef<BridgeEvent[] | undefined>(undefined);
  const recent = useLoad(() => bridge.recentEvents(RECENT), []);
  const [, draw] = useState(0);
  const again = () => draw((turn) => turn + 1);
  useLive((events) => {
    const count = counted.current;
    count.seen += events.length;
    kept.current = newest(kept.current, events, KEPT);
    if (stopped.current) count.whilePaused += events.length;
    else take(events);
    again();
  });
  const take = (events: BridgeEvent[]) => {
    const found = events.filter((event) => matches(event, filter.current));
    counted.current.matched += found.length;
    shown.current = newest(shown.current, found, SHOWN);
  };
  /** Applies the filter to all kept events. */
  const sift = () => {
    shown.current = [];
    counted.current.matched = 0;
    take(stopped.current ?? kept.current);
    again();
  };
  useEffect(() => {
    // Events that came while these were read are in both.
    const known = new Set(kept.current.map((event) => event.id));
    const before = recent.data?.items.filter((event) => !known.has(event.id)) ?? [];
    if (before.length === 0) return;
    kept.current = [...before, ...kept.current];
    if (stopped.current) stopped.current = [...before, ...stopped.current];
    sift();
  }, [recent.data]);
  const set = (name: keyof Filter) => (event: Event) => {
    filter.current = { ...filter.current, [name]: (event.currentTarget as HTMLInputElement).value };
    sift();
  };
  const pause = () => {
    stopped.current = stopped.current ? undefined : kept.current;
    counted.current.whilePaused = 0;
    if (stopped.current) again();
    else sift();
  };
  useKeys((key) => key === "p" && pause());
  const { seen, matched, whilePaused } = counted.current;
  const providers = [...new Set(kept.current.slice(-500).map((event) => event.provider))].filter((name) => name !== null);
  return (
    <>
      <h1>Events</h1>
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          Kind
          <select value={filter.current.kind} onChange={set("kind")}>
            <option value="">all</option>
            {KINDS.map((kind) => <option key={kind} value={kind}>{kind.endsWith(".") ? `${kind}*` : kind}</option>)}
          </select>
        </label>
        <label>
          Adapter
          <input list="seen" value={filter.current.provider} onInput={set("provider")} />
          <datalist id="seen">{providers.map((name) => <option key={name} value={name} />)}</datalist>
        </label>
        <label class="grow">Containing <input type="search" value={filter.current.text} onInput={set("text")} placeholder="a task, an error, a word" /></label>
        <button type="button" aria-pressed={stopped.current !== undefined} onClick={pause}>{stopped.current ? "Resume" : "Pause"}</button>
      </form>
      <Problem error={recent.error} />
      <p class="dim number counts">
        {number(seen)} since this page was opened
        {matched > shown.current.length && `, showing the newest ${number(shown.current.length)} of ${number(matched)} matches`}
        {stopped.current && `, ${number(whilePaused)} while paused`}
        {live.dropped > 0 && `, ${number(live.dropped)} dropped because they arrived too fast`}
      </p>
      {shown.current.length === 0 ? (
        <Empty>{kept.current.length === 0 ? <>No events so far. <a href={link("try")}>Send a dispatch</a>.</> : "No matches so far."}</Empty>
      ) : (
        <ol class="tail" aria-label="Events, newest first">
          {/* Keyed by position, not by event: in a flood every row changes, and its elements are reused. */}
          {shown.current.slice().reverse().map((event, place) => <Row key={place} event={event} />)}
        </ol>
      )}
    </>
  );
}

function Row({ event }: { event: BridgeEvent }) {
  const bad = event.type === "execution.failed" || event.type === "callback.dead";
  return (
    <li class={bad ? "bad" : ""}>
      <span class="number dim" title={event.timestamp}>{time(event.timestamp)}</span>
      <code class="kind">{event.type}</code>
      <Subject event={event} />
      <span class="data">{said(event.data)}</span>
    </li>
  );
}

/** Dispatch or run that the event belongs to, else its adapter. */
function Subject({ event: { dispatchId, runId, taskId, provider } }: { event: BridgeEvent }) {
  if (dispatchId) return <a href={link("dispatch", dispatchId)} title={taskId ?? ""}>{taskId}</a>;
  if (runId) return <a href={link("run", runId, { task: taskId ?? undefined })} title={runId}>{taskId ?? runId}</a>;
  return <span class="dim">{provider}</span>;
}

/** Data left out of a line: redundant or of no interest. */
const UNSAID = ["deliveryId", "provider", "taskId"];

/** Formats text as it is, other data with their names. */
function said(data: BridgeEvent["data"]): string {
  if ("delta" in data && typeof data.delta === "string") return data.delta;
  const pairs = Object.entries(data).filter(([name, value]) => value !== null && !UNSAID.includes(name));
  return pairs.map(([name, value]) => `${name} ${word(value)}`).join(" · ");
}

function word(value: unknown): string {
  if (typeof value === "string") return value;
  // Rounded, since sums of small amounts have rounding errors.
  return typeof value === "number" ? String(Number(value.toFixed(6))) : JSON.stringify(value);
}

function newest(old: BridgeEvent[], more: BridgeEvent[], most: number): BridgeEvent[] {
  if (more.length >= most) return more.slice(-most);
  return [...old.slice(Math.max(0, old.length + more.length - most)), ...more];
}
