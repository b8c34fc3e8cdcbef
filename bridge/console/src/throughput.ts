import type { BridgeEvent, Health } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { live } from "./live";
import { useLoad } from "./load";
import { bridge } from "./session";

/** Seconds that the newest rate is averaged over, the length of a step of the history. */
const STEP = 10;
const COUNTED = ["execution.accepted", "execution.completed", "execution.failed", "callback.delivered"];

/** Counts by second of the bridge's clock: one number per counted kind. */
const counts = new Map<number, number[]>();
/** Running, queued and pending callbacks, as of the last health. */
let levels: number[] | undefined;

/** First counted second; counts before it are unknown, not zero. */
let began = Number.POSITIVE_INFINITY;

/** Starts counting; returns a function that stops it. */
export function countEvents(): () => void {
  began = Math.floor(Date.now() / 1000);
  return live.listen(count);
}

function count(events: BridgeEvent[]): void {
  for (const event of events) {
    const place = COUNTED.indexOf(event.type);
    if (place < 0) continue;
    const second = Math.floor(Date.parse(event.timestamp) / 1000);
    let row = counts.get(second);
    if (!row) counts.set(second, (row = [0, 0, 0, 0]));
    row[place] = (row[place] ?? 0) + 1;
  }
}

export function sample(health: Health): void {
  const adapters = Object.values(health.adapters);
  const sum = (pick: (of: (typeof adapters)[number]) => number) => adapters.reduce((all, of) => all + pick(of), 0);
  levels = [sum((of) => of.running), sum((of) => of.queued), health.deliveries.pending];
}

interface Present {
  second: number;
  /** Per second, one number per counted kind; null until events are counted. */
  rates: (number | null)[];
  levels: (number | null)[];
}

function present(): Present {
  const second = Math.floor(Date.now() / 1000);
  const first = Math.max(began, second - STEP);
  for (const kept of counts.keys()) if (kept < second - 2 * STEP) counts.delete(kept);
  const rate = (place: number) => {
    let sum = 0;
    for (let one = first; one < second; one += 1) sum += counts.get(one)?.[place] ?? 0;
    return first < second ? Math.round((sum * 10) / (second - first)) / 10 : null;
  };
  return { second, rates: COUNTED.map((_, place) => rate(place)), levels: levels ?? [null, null, null] };
}

/** Rates and levels of the present, updated each second. */
export function usePresent(): Present {
  const [now, setNow] = useState(present);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setNow(present()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** The last hour of the bridge, or the time since its start, followed by the present. */
export function useHour(): { seconds: number[]; rates: (number | null)[][]; levels: (number | null)[][] } {
  const page = useLoad(() => bridge.throughput(), [], STEP * 1000, "throughput");
  const { second, rates, levels: now } = usePresent();
  const past = page.data;
  const step = past?.stepSeconds ?? STEP;
  const from = past ? Date.parse(past.from) / 1000 : second;
  const columns = past ? [past.accepted, past.ok, past.error, past.delivered] : [[], [], [], []];
  const seconds = columns[0]!.map((_, index) => from + (index + 1) * step);
  return {
    seconds: [...seconds, Math.max(second, (seconds.at(-1) ?? 0) + 1)],
    rates: columns.map((column, place) => [...column.map((count) => count / step), rates[place] ?? null]),
    levels: [past?.running ?? [], past?.waiting ?? [], past?.pending ?? []].map((column, place) => [...column, now[place] ?? null]),
  };
}
