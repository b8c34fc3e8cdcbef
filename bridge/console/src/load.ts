import type { Page } from "@forge-bridge/client";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { useLive } from "./live";

export interface Loaded<T> {
  data: T | undefined;
  error: unknown;
  loading: boolean;
  /** False while the data are those of other dependencies. */
  current: boolean;
  reload: () => void;
}

/** Last data of pages by address, shown when a page is opened again until its new data arrive. */
const kept = new Map<string, unknown>();
const MOST_KEPT = 40;

function keep(address: string, data: unknown): void {
  kept.delete(address);
  kept.set(address, data);
  const [oldest] = kept.keys();
  if (kept.size > MOST_KEPT && oldest !== undefined) kept.delete(oldest);
}

/**
 * Loads at once, when `dependencies` or the token change, and every `everyMs`. The last data stay visible while
 * loading; with a `name`, they are shown again when the same address is opened again.
 */
export function useLoad<T>(load: () => Promise<T>, dependencies: unknown[], everyMs?: number, name?: string): Loaded<T> {
  const question = useMemo(() => ({}), dependencies);
  const [state, setState] = useState<Omit<Loaded<T>, "reload" | "current"> & { answered?: object }>(() => {
    const data = name === undefined ? undefined : (kept.get(`${name} ${location.hash}`) as T | undefined);
    return { data, error: undefined, loading: true };
  });
  const turn = useRef(0);
  const reload = useCallback(() => {
    const mine = ++turn.current;
    const address = `${name} ${location.hash}`;
    setState((last) => (last.loading ? last : { ...last, loading: true }));
    load().then(
      (data) => {
        if (turn.current !== mine) return;
        if (name !== undefined) keep(address, data);
        setState({ data, error: undefined, loading: false, answered: question });
      },
      (error: unknown) => turn.current === mine && setState((last) => ({ ...last, error, loading: false })),
    );
  }, dependencies);
  // Requested before the first paint, which can take longer than the answer.
  useLayoutEffect(() => {
    reload();
    window.addEventListener("forge-session", reload);
    const timer = everyMs ? setInterval(() => document.hidden || reload(), everyMs) : undefined;
    return () => {
      turn.current++;
      clearInterval(timer);
      window.removeEventListener("forge-session", reload);
    };
  }, [reload]);
  return { ...state, current: state.answered === question, reload };
}

/** Maximum number of empty pages that are skipped; the bridge scans 50,000 records per page. */
const MOST_EMPTY = 10;

/** Returns the first page with items: a filter that matches few records leaves many pages empty. */
export async function firstFull<T>(load: (cursor: string | undefined) => Promise<Page<T>>, cursor: string | undefined): Promise<Page<T>> {
  let page = await load(cursor);
  for (let more = 1; more < MOST_EMPTY && page.items.length === 0 && page.nextCursor; more += 1) page = await load(page.nextCursor);
  return page;
}

/** Delay of a reload after an event, and minimum interval between two reloads. */
const SOON_MS = 300;
const APART_MS = 1500;

/** Returns a function that calls `reload` soon, at most once per `APART_MS`. */
export function useSoon(reload: () => void): () => void {
  const latest = useRef(reload);
  latest.current = reload;
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const last = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const run = () => {
    if (document.hidden) document.addEventListener("visibilitychange", run, { once: true });
    else latest.current();
  };
  return () => {
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      last.current = Date.now();
      run();
    }, Math.max(SOON_MS, last.current + APART_MS - Date.now()));
  };
}

/** Calls `reload` soon after an event of these kinds. */
export function useReloadOn(kinds: string[], reload: () => void): void {
  const soon = useSoon(reload);
  useLive((events) => {
    if (events.some((event) => kinds.some((kind) => event.type.startsWith(kind)))) soon();
  });
}
