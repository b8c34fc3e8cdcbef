import { type BridgeEvent, BridgeError } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { bridge } from "./session";

export type LiveState = "connecting" | "open" | "retrying" | "refused";

type Listener = (events: BridgeEvent[]) => void;

/** Between two hands-on: often enough to look immediate, seldom enough to leave the page to its reader. */
const PAUSE_MS = 100;
const BUSY_PAUSE_MS = 250;
/** A hand-on of more than this is a busy one. */
const BUSY = 200;
/** So many wait at most; more are counted and not shown. */
const ROOM = 20_000;

/** One stream of everything for the whole page, handed on in batches between two frames. */
class Live {
  state: LiveState = "connecting";
  /** How old the newest event was when it was read; grows when more happens than the page can read. */
  behindMs = 0;
  /** Events that were read and found no room. */
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

  /** Goes on from now; what came between is not shown. */
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
      // The cursor is of a store that is gone, or too old: go on from now.
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

/** Where the stream stands, and how many seconds the page is behind. */
export function useLiveState(): { state: LiveState; behind: number } {
  const read = () => ({ state: live.state, behind: Math.round(live.behindMs / 1000) });
  const [state, setState] = useState(read);
  useEffect(() => live.watch(() => setState(read())), []);
  return state;
}

/** Every event of the bridge while the component is shown. */
export function useLive(listener: Listener): void {
  useEffect(() => live.listen(listener), []);
}
