import { type BridgeEvent, BridgeError } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { bridge } from "./session";

export type LiveState = "connecting" | "open" | "retrying" | "refused";

type Listener = (events: BridgeEvent[]) => void;

/** One stream of everything for the whole page, handed on once a frame however much arrives. */
class Live {
  state: LiveState = "connecting";
  readonly #listeners = new Set<Listener>();
  readonly #watchers = new Set<() => void>();
  #waiting: BridgeEvent[] = [];
  #controller: AbortController | undefined;

  constructor() {
    window.addEventListener("forge-session", () => this.#restart());
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    if (!this.#controller) this.#restart();
    return () => this.#listeners.delete(listener);
  }

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  #restart(): void {
    this.#controller?.abort();
    this.#controller = new AbortController();
    void this.#follow(this.#controller.signal);
  }

  async #follow(signal: AbortSignal): Promise<void> {
    this.#set("connecting");
    try {
      const stream = bridge.events({}, { signal, onState: (state) => this.#set(state), maxPauseMs: 3000 });
      for await (const event of stream) this.#take(event);
    } catch (error) {
      if (signal.aborted) return;
      // The cursor is of a store that is gone, or too old: go on from now.
      const lost = error instanceof BridgeError && (error.status === 400 || error.status === 410);
      if (lost) return this.#restart();
      this.#set("refused");
    }
  }

  #take(event: BridgeEvent): void {
    if (this.#waiting.length === 0) setTimeout(() => this.#hand(), document.hidden ? 1000 : 100);
    this.#waiting.push(event);
  }

  #hand(): void {
    const events = this.#waiting;
    this.#waiting = [];
    for (const listener of this.#listeners) listener(events);
  }

  #set(state: LiveState): void {
    this.state = state;
    for (const watcher of this.#watchers) watcher();
  }
}

export const live = new Live();

export function useLiveState(): LiveState {
  const [state, setState] = useState(live.state);
  useEffect(() => live.watch(() => setState(live.state)), []);
  return state;
}

/** Every event of the bridge while the component is shown. */
export function useLive(listener: Listener): void {
  useEffect(() => live.listen(listener), []);
}
