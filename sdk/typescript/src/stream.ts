import { BridgeError } from "./errors.js";
import { backoff, pause } from "./pause.js";

export interface StreamOptions {
  /** Cursor of the event to start after; `"0"` starts at the earliest, `"now"` with new events. */
  after?: string | undefined;
  /** Ends the stream; the loop over it ends without an error. */
  signal?: AbortSignal | undefined;
  /** Called when the stream is open, and with the error when it is disconnected and will be retried. */
  onState?: ((state: "open" | "retrying", error?: BridgeError) => void) | undefined;
  /** Time without any data, heartbeats included, after which a stream counts as disconnected. Default 40,000. */
  idleMs?: number | undefined;
  /** Longest pause between two attempts, unless `Retry-After` asks for more. Default 10,000. */
  maxPauseMs?: number | undefined;
}

/** Opens the stream after this event; the answer is 204 if no events will follow. */
export type Open = (after: string | undefined, signal: AbortSignal) => Promise<Response>;

/**
 * Yields every event once, over as many connections as needed. Ends when the bridge answers 204 or with the signal;
 * throws errors that are not temporary.
 */
export async function* resume<Event extends { type: string; data: object }>(
  open: Open,
  options: StreamOptions,
  cursor: (event: Event) => string,
): AsyncGenerator<Event, void, void> {
  let after = options.after;
  let failures = 0;
  while (!options.signal?.aborted) {
    const connection = new Connection(options);
    try {
      const response = await connection.open(open, after);
      if (response.status === 204) return;
      options.onState?.("open");
      let isEmpty = true;
      for await (const event of connection.events<Event>(response)) {
        isEmpty = false;
        failures = 0;
        after = cursor(event);
        yield event;
      }
      // No progress, as after a failure: a proxy, or a bridge that stops, can end every stream at once.
      if (isEmpty) await pause(backoff((failures += 1), options.maxPauseMs ?? 10_000), options.signal);
    } catch (error) {
      if (options.signal?.aborted) return;
      const failure = error instanceof BridgeError ? error : BridgeError.unreachable(error);
      if (!failure.isTemporary) throw failure;
      failures += 1;
      options.onState?.("retrying", failure);
      await pause(failure.retryAfterMs ?? backoff(failures, options.maxPauseMs ?? 10_000), options.signal);
    } finally {
      connection.close();
    }
  }
}

/** One connection, aborted when it is silent for too long. */
class Connection {
  readonly #controller = new AbortController();
  readonly #options: StreamOptions;
  readonly #abort = () => this.#controller.abort();
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: StreamOptions) {
    this.#options = options;
    options.signal?.addEventListener("abort", this.#abort, { once: true });
  }

  open(open: Open, after: string | undefined): Promise<Response> {
    this.#heard();
    return open(after, this.#controller.signal);
  }

  /** Yields one event per line; empty lines and those with ":" are heartbeats. A cut last line is dropped and requested again. */
  async *events<Event extends { type: string; data: object }>(response: Response): AsyncGenerator<Event, void, void> {
    if (!response.body) return;
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    // Pieces of the line that has not ended: joined once, so that a long line costs what it is long.
    let rest: string[] = [];
    for (;;) {
      this.#heard();
      const { done, value } = await reader.read();
      if (done) return;
      const lines = decoder.decode(value, { stream: true }).split("\n");
      rest.push(lines[0] ?? "");
      if (lines.length === 1) continue;
      lines[0] = rest.join("");
      rest = [lines.pop() ?? ""];
      for (const line of lines) {
        if (line.trim() === "" || line.startsWith(":")) continue;
        const event = JSON.parse(line) as Event;
        // Last line of a stream whose token is no longer valid: the next connection is refused with the reason.
        if (event.type === "unauthorized") return;
        // The bridge leaves it out where it is empty.
        event.data ??= {};
        yield event;
      }
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#options.signal?.removeEventListener("abort", this.#abort);
    this.#controller.abort();
  }

  #heard(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#abort, this.#options.idleMs ?? 40_000);
  }
}
