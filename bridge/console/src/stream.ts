import { useLayoutEffect, useRef, useState } from "preact/hooks";

interface StreamStart {
  after: string | undefined;
  signal: AbortSignal;
  maxPauseMs: number;
}

/** Delay of the first batch, so that events already recorded are shown together. */
const GATHER_MS = 10;
/** Minimum interval between two batches. */
const APART_MS = 100;

/**
 * Reads a stream while the component is shown, passes its events to `take` in batches, and returns the error that ended
 * it. Opened again after its last event when the token changes.
 */
export function useStream<Event>(
  open: (start: StreamStart) => AsyncIterable<Event>,
  cursor: (event: Event) => string,
  take: (events: Event[]) => void,
  dependencies: unknown[],
): unknown {
  const [error, setError] = useState<unknown>();
  const latest = useRef(take);
  latest.current = take;
  useLayoutEffect(() => {
    let controller = new AbortController();
    let waiting: Event[] = [];
    let due: ReturnType<typeof setTimeout> | undefined;
    let handed = 0;
    let after: string | undefined;
    const hand = () => {
      const events = waiting;
      waiting = [];
      due = undefined;
      handed = performance.now();
      latest.current(events);
    };
    const follow = async ({ signal }: AbortController) => {
      setError(undefined);
      try {
        for await (const event of open({ after, signal, maxPauseMs: 3000 })) {
          if (signal.aborted) return;
          after = cursor(event);
          waiting.push(event);
          due ??= setTimeout(hand, Math.max(GATHER_MS, handed + APART_MS - performance.now()));
        }
      } catch (failure) {
        if (!signal.aborted) setError(failure);
      }
    };
    const restart = () => {
      controller.abort();
      controller = new AbortController();
      void follow(controller);
    };
    void follow(controller);
    window.addEventListener("forge-session", restart);
    return () => {
      window.removeEventListener("forge-session", restart);
      clearTimeout(due);
      controller.abort();
    };
  }, dependencies);
  return error;
}
