import type { BridgeEvent, Health } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { live } from "./live";

/** What is kept for the charts of Now, also while another page is shown. */
const SECONDS = 120;
/** What the charts show of it at first; they grow with what was counted. */
const AT_FIRST = 30;
const COUNTED = ["execution.accepted", "execution.completed", "execution.failed", "callback.delivered"];

/** By second of the bridge's clock: a number for each of the counted kinds. */
const counts = new Map<number, number[]>();
/** By second of ours: running, queued, owed. */
const levels = new Map<number, number[]>();

/** Before this second nobody counted, which is not the same as nothing. */
let began = Number.POSITIVE_INFINITY;

/** Listens from here on. */
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
  /** One array for each counted kind; null where nobody counted. */
  counts: (number | null)[][];
  /** Running, queued, owed; the last known value where nothing was asked, null before the first. */
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

/** The last two minutes, anew each second. */
export function useWindow(): Window {
  const [window_, setWindow] = useState(read);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setWindow(read()), 1000);
    return () => clearInterval(timer);
  }, []);
  return window_;
}
