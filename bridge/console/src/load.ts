import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { useLive } from "./live";

export interface Loaded<T> {
  data: T | undefined;
  error: unknown;
  loading: boolean;
  reload: () => void;
}

/** Loads now, when `dependencies` change, when the token changes, and every `everyMs`. The last data stay while it loads. */
export function useLoad<T>(load: () => Promise<T>, dependencies: unknown[], everyMs?: number): Loaded<T> {
  const [state, setState] = useState<Omit<Loaded<T>, "reload">>({ data: undefined, error: undefined, loading: true });
  const turn = useRef(0);
  const reload = useCallback(() => {
    const mine = ++turn.current;
    setState((last) => ({ ...last, loading: true }));
    load().then(
      (data) => turn.current === mine && setState({ data, error: undefined, loading: false }),
      (error: unknown) => turn.current === mine && setState((last) => ({ ...last, error, loading: false })),
    );
  }, dependencies);
  useEffect(() => {
    reload();
    window.addEventListener("forge-session", reload);
    const timer = everyMs ? setInterval(() => document.hidden || reload(), everyMs) : undefined;
    return () => {
      turn.current++;
      clearInterval(timer);
      window.removeEventListener("forge-session", reload);
    };
  }, [reload]);
  return { ...state, reload };
}

/** After something happened, and between two times. */
const SOON_MS = 300;
const APART_MS = 1500;

/** Calls `reload` soon after something of these kinds happened, and not again for a while. */
export function useReloadOn(kinds: string[], reload: () => void): void {
  const latest = useRef(reload);
  latest.current = reload;
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const last = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  useLive((events) => {
    if (timer.current || !events.some((event) => kinds.some((kind) => event.type.startsWith(kind)))) return;
    timer.current = setTimeout(() => {
      timer.current = undefined;
      last.current = Date.now();
      if (!document.hidden) latest.current();
    }, Math.max(SOON_MS, last.current + APART_MS - Date.now()));
  });
}
