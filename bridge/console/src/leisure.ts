/** Resolves when the page is idle, at the latest after 500 ms. */
export function leisure(): Promise<void> {
  return new Promise((done) => {
    if ("requestIdleCallback" in window) requestIdleCallback(() => done(), { timeout: 500 });
    else setTimeout(done, 100);
  });
}
