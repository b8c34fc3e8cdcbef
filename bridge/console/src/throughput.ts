import type { BridgeEvent, Health } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { live } from "./live";

/** Seconds of history kept for the charts of the page Now, also while another page is shown. */
const SECONDS = 120;
/** Seconds that the charts show at first; they grow with the history. */
const AT_FIRST = 30;
const COUNTED = ["execution.accepted", "execution.completed", "execution.failed", "callback.delivered"];

/** Counts by second of the bridge's clock: one number per counted kind. */
const counts = new Map<number, number[]>();
/** Samples by second of the browser's clock: running, queued, pending callbacks. */
const levels = new Map<number, number[]>();

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
  const row = [sum((of) => of.running), sum((of) => of.queued), health.deliveries.pending];
  levels.set(Math.floor(Date.now() / 1000), row);
}

export interface Window {
  seconds: number[];
  /** One array per counted kind; null before counting began. */
  counts: (number | null)[][];
  /** Running, queued, pending callbacks; the last known value for seconds without a sample, null before the first. */
  levels: (number | null)[][];
}

function read(): Window {
  const last = Math.floor(Date.now() / 1000) - 1;
  for (const kept of [counts, levels]) {
    for (const second of kept.keys()) if (second < last - SECONDS) kept.delete(second);
  }
  const counted = Math.min(SECONDS, Math.max(AT_FIRST, last - began + 1));
  const seconds = Array.from({ length: counted }, (_, index) => last - counted + 1 + index);
  let known: number[] | undefined;
  const rows = seconds.map((second) => (known = levels.get(second) ?? known));
  return {
    seconds,
    counts: COUNTED.map((_, place) => seconds.map((second) => counts.get(second)?.[place] ?? (second < began ? null : 0))),
    levels: [0, 1, 2].map((place) => rows.map((row) => row?.[place] ?? null)),
  };
}

/** The last two minutes at most, updated each second. */
export function useWindow(): Window {
  const [window_, setWindow] = useState(read);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setWindow(read()), 1000);
    return () => clearInterval(timer);
  }, []);
  return window_;
}
