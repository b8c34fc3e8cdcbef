import type { BridgeEvent } from "@forge-bridge/client";
import { useRef, useState } from "preact/hooks";
import { number, time } from "../format";
import { useLive } from "../live";
import { Empty } from "../parts/notice";
import { link } from "../router";

const KEPT = 1000;
const SHOWN = 200;

/** The live tail. While it pauses, what arrives is counted and kept as far as there is room. */
export function Events() {
  const kept = useRef<BridgeEvent[]>([]);
  const [, draw] = useState(0);
  const [paused, setPaused] = useState<BridgeEvent[] | undefined>();
  const [filter, setFilter] = useState({ type: "", text: "" });
  const seen = useRef(0);
  useLive((events) => {
    seen.current += events.length;
    kept.current = [...kept.current, ...events].slice(-KEPT);
    draw(seen.current);
  });
  const matches = (event: BridgeEvent) =>
    event.type.startsWith(filter.type) && (!filter.text || JSON.stringify(event).includes(filter.text));
  const shown = (paused ?? kept.current).filter(matches).slice(-SHOWN).reverse();
  return (
    <>
      <h1>Events</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <label>
          Kind
          <select value={filter.type} onChange={(event) => setFilter({ ...filter, type: event.currentTarget.value })}>
            <option value="">all</option>
            {["execution.", "assistant.", "tool.", "usage", "callback.", "adapter."].map((kind) => <option key={kind} value={kind}>{kind}</option>)}
          </select>
        </label>
        <label>Containing <input type="search" value={filter.text} onInput={(event) => setFilter({ ...filter, text: event.currentTarget.value })} /></label>
        <button type="button" aria-pressed={paused !== undefined} onClick={() => setPaused(paused ? undefined : kept.current)}>
          {paused ? "Go on" : "Pause"}
        </button>
        <span class="dim number">{number(seen.current)} since this page was opened</span>
      </form>
      {shown.length === 0 ? (
        <Empty>Nothing has happened yet. <a href={link("try")}>Send a dispatch</a>.</Empty>
      ) : (
        <ol class="tail" aria-label="Events, newest first">
          {shown.map((event) => (
            <li key={event.id}>
              <span class="number dim">{time(event.timestamp)}</span>
              <code class="kind">{event.type}</code>
              {event.dispatchId ? <a href={link("dispatch", event.dispatchId)}>{event.taskId}</a> : <span class="dim">{event.provider}</span>}
              <span class="data">{event.data ? JSON.stringify(event.data) : ""}</span>
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
