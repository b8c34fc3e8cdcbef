import { BridgeError } from "./errors.js";
import type { BridgeEvent } from "./wire.js";

export interface EventFilter {
  provider?: string;
  agentId?: string;
  taskId?: string;
  type?: string;
}

export interface StreamOptions {
  /** Only what came after this event; `"0"` from the earliest, `"now"` from now on. */
  after?: string;
  signal?: AbortSignal;
  /** Told when the stream is open and when it was cut and is tried again. */
  onState?: (state: "open" | "retrying", error?: BridgeError) => void;
  /** A stream that brings nothing for so long, not even a heartbeat, counts as cut. */
  idleMs?: number;
  /** The longest pause between two tries. */
  maxPauseMs?: number;
}

/** Opens the stream after this event; answers 204 when there is nothing to come. */
export type Open = (after: string | undefined, signal: AbortSignal) => Promise<Response>;

/**
 * Every event once, over as many connections as it takes. Ends when the bridge says that nothing will come,
 * or with the signal; throws what will not get better by itself.
 */
export async function* resume(open: Open, options: StreamOptions): AsyncGenerator<BridgeEvent, void, void> {
  let after = options.after;
  let failures = 0;
  while (!options.signal?.aborted) {
    const connection = new Connection(options);
    try {
      const response = await connection.open(open, after);
      if (response.status === 204) return;
      options.onState?.("open");
      for await (const event of connection.events(response)) {
        failures = 0;
        after = event.id;
        yield event;
      }
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

/** One connection, cut when it is silent for too long. */
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

  /** One JSON object a line; an empty line is a heartbeat. A line without its end was cut and comes again. */
  async *events(response: Response): AsyncGenerator<BridgeEvent, void, void> {
    if (!response.body) return;
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      this.#heard();
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line.trim() !== "") yield JSON.parse(line) as BridgeEvent;
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

function backoff(failures: number, most: number): number {
  const ceiling = Math.min(most, 250 * 2 ** Math.min(failures, 16));
  return ceiling / 2 + Math.random() * (ceiling / 2);
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}
