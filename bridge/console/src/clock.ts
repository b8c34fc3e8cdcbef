import { useEffect, useState } from "preact/hooks";

/** The present, once a second, for what still runs; stands still while nobody looks. */
export function useNow(wanted = true): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!wanted) return undefined;
    const timer = setInterval(() => document.hidden || setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [wanted]);
  return now;
}
