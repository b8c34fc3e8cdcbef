import { type BridgeEvent, BridgeError } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { bridge } from "./session";

export type LiveState = "connecting" | "open" | "retrying" | "refused";

type Listener = (events: BridgeEvent[]) => void;

/** Pause between two batches: short enough to look immediate, long enough to keep the page responsive. */
const PAUSE_MS = 100;
const BUSY_PAUSE_MS = 250;
/** Events in a batch above which `BUSY_PAUSE_MS` applies. */
const BUSY = 200;
/** Maximum number of waiting events; more are counted and dropped. */
const ROOM = 20_000;

/** One stream of all events for the whole page, passed to listeners in batches between two frames. */
class Live {
  state: LiveState = "connecting";
  /** Age of the newest event when it was read; grows when events arrive faster than the page reads them. */
  behindMs = 0;
  /** Number of events dropped because too many were waiting. */
  dropped = 0;
  readonly #listeners = new Set<Listener>();
  readonly #watchers = new Set<() => void>();
  #waiting: BridgeEvent[] = [];
  #due = false;
  #pause = PAUSE_MS;
  #controller: AbortController | undefined;

  constructor() {
    window.addEventListener("forge-session", () => this.skip());
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    if (!this.#controller) this.skip();
    return () => this.#listeners.delete(listener);
  }

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** Restarts the stream from now; events in between are not shown. */
  skip(): void {
    this.#controller?.abort();
    this.#controller = new AbortController();
    this.#waiting = [];
    this.behindMs = 0;
    void this.#follow(this.#controller.signal);
  }

  async #follow(signal: AbortSignal): Promise<void> {
    this.#set("connecting");
    try {
      const stream = bridge.events({}, { signal, onState: (state) => this.#set(state), maxPauseMs: 3000 });
      for await (const event of stream) {
        if (signal.aborted) return;
        this.#take(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      // The cursor is too old or belongs to another store: restart from now.
      const lost = error instanceof BridgeError && (error.status === 400 || error.status === 410);
      if (lost) return this.skip();
      this.#set("refused");
    }
  }

  #take(event: BridgeEvent): void {
    if (this.#waiting.length >= ROOM) this.dropped += 1;
    else this.#waiting.push(event);
    if (this.#due) return;
    this.#due = true;
    setTimeout(() => {
      if (document.hidden) this.#hand();
      else requestAnimationFrame(() => this.#hand());
    }, document.hidden ? 1000 : this.#pause);
  }

  #hand(): void {
    const events = this.#waiting;
    this.#waiting = [];
    this.#due = false;
    const newest = events.at(-1);
    if (!newest) return;
    this.#pause = events.length > BUSY ? BUSY_PAUSE_MS : PAUSE_MS;
    const behindMs = Math.max(0, Date.now() - Date.parse(newest.timestamp) - this.#pause);
    const told = Math.round(this.behindMs / 1000) !== Math.round(behindMs / 1000);
    this.behindMs = behindMs;
    if (told) this.#tell();
    for (const listener of this.#listeners) listener(events);
  }

  #set(state: LiveState): void {
    this.state = state;
    this.#tell();
  }

  #tell(): void {
    for (const watcher of this.#watchers) watcher();
  }
}

export const live = new Live();

/** State of the stream, and lag of the page in seconds. */
export function useLiveState(): { state: LiveState; behind: number } {
  const read = () => ({ state: live.state, behind: Math.round(live.behindMs / 1000) });
  const [state, setState] = useState(read);
  useEffect(() => live.watch(() => setState(read())), []);
  return state;
}

/** Passes every event of the bridge to `listener` while the component is shown. */
export function useLive(listener: Listener): void {
  useEffect(() => live.listen(listener), []);
}
