import { expect, test } from "vitest";
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
    for await (const event of resume(open, {}, (event: BridgeEvent) => event.id)) seen.push(event);
    expect(seen, `seed ${seed}`).toEqual(events);
  }
});
