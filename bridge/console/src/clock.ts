import { useEffect, useState } from "preact/hooks";

/** Current time in milliseconds, updated once a second if `wanted`; not updated while the page is hidden. */
export function useNow(wanted = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!wanted) return undefined;
    const timer = setInterval(() => document.hidden || setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [wanted]);
  return now;
}
