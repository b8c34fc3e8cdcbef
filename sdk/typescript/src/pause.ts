/** Pause after a number of failures: doubles from 250 ms up to `most`, with jitter. */
export function backoff(failures: number, most: number): number {
  const ceiling = Math.min(most, 250 * 2 ** Math.min(failures, 16));
  return ceiling / 2 + Math.random() * (ceiling / 2);
}

/** Resolves after this time, or with the signal. */
export function pause(ms: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}
