import { expect, test, vi } from "vitest";
import { resume } from "../src/stream.js";
import type { BridgeEvent } from "../src/wire/index.js";

/** Pseudo-random numbers, so that a failure can be reproduced from its seed. */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function text(next: (below: number) => number): string {
  const letters = ["a", "ü", "€", "😀", "\n", "\r", '"', "\\", "\u2028", "\u0000", " "];
  return Array.from({ length: next(12) }, () => letters[next(letters.length)]).join("");
}

function response(bytes: Uint8Array, next: (below: number) => number): Response {
  let at = 0;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      if (at === bytes.length) return controller.close();
      const end = Math.min(bytes.length, at + 1 + next(7));
      controller.enqueue(bytes.subarray(at, end));
      at = end;
    },
  });
  return new Response(body);
}

test("events are the same however the stream is chunked and wherever it is disconnected", async () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const next = numbers(seed);
    const events = Array.from({ length: 1 + next(6) }, (_, n) => ({ id: `log-${n}`, seq: n, data: { delta: text(next) } }));
    const breaks = [false, true, next(2) === 0];
    // Each connection starts after the last complete event; the last one answers 204.
    const open = async (after: string | undefined): Promise<Response> => {
      const left = events.slice(after === undefined ? 0 : events.findIndex((event) => event.id === after) + 1);
      if (left.length === 0) return new Response(null, { status: 204 });
      const lines = left.map((event) => `${["", "", "\r\n\n", ": keepalive\n"][next(4)]}${JSON.stringify(event)}\n`).join("");
      const bytes = new TextEncoder().encode(lines);
      return response(breaks.pop() ? bytes.subarray(0, next(bytes.length)) : bytes, next);
    };
    const seen: BridgeEvent[] = [];
    for await (const event of resume(open, { maxPauseMs: 0 }, (event: BridgeEvent) => event.id)) seen.push(event);
    expect(seen, `seed ${seed}`).toEqual(events);
  }
});

test("a stream that ends empty is opened again ever more rarely", async () => {
  const timers = vi.spyOn(globalThis, "setTimeout").mockImplementation(((done: () => void) => {
    queueMicrotask(done);
    return 0;
  }) as unknown as typeof setTimeout);
  let opened = 0;
  const open = async (): Promise<Response> => {
    opened += 1;
    // One with an event in between, after which the pauses begin again.
    if (opened === 4) return new Response('{"id": "log-1", "type": "a"}\n');
    return opened === 7 ? new Response(null, { status: 204 }) : new Response("");
  };
  const seen: BridgeEvent[] = [];
  // No connection is silent for too long here, since its timer would fire at once.
  for await (const event of resume(open, { idleMs: 60_000, maxPauseMs: 10_000 }, (event: BridgeEvent) => event.id)) seen.push(event);
  const pauses = timers.mock.calls.map(([, ms]) => ms ?? 0).filter((ms) => ms !== 60_000);
  timers.mockRestore();
  expect(seen).toHaveLength(1);
  expect(pauses).toHaveLength(5);
  [250, 500, 1000, 250, 500].forEach((least, place) => {
    expect(pauses[place]).toBeGreaterThanOrEqual(least);
    expect(pauses[place]).toBeLessThanOrEqual(2 * least);
  });
});

test("a long line is joined once, however many pieces it comes in", async () => {
  const event = { id: "log-1", type: "a", data: { delta: "x".repeat(1 << 20) } };
  const bytes = new TextEncoder().encode(`${JSON.stringify(event)}\n`);
  let [at, joined] = [0, 0];
  const pieces = new ReadableStream<Uint8Array>({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.subarray(at, (at += 1024)));
    },
  });
  // Length of all text that is searched for line ends: that of the line, not of each of its beginnings.
  const split = String.prototype.split;
  const counted = vi.spyOn(String.prototype, "split").mockImplementation(function (this: string, ...given: unknown[]) {
    joined += this.length;
    return Reflect.apply(split, this, given) as string[];
  });
  const seen: BridgeEvent[] = [];
  const open = async (after?: string): Promise<Response> => (after ? new Response(null, { status: 204 }) : new Response(pieces));
  try {
    for await (const one of resume(open, {}, (one: BridgeEvent) => one.id)) seen.push(one);
  } finally {
    counted.mockRestore();
  }
  expect(seen).toEqual([event]);
  expect(joined).toBeGreaterThanOrEqual(bytes.length);
  expect(joined).toBeLessThan(2 * bytes.length);
});
