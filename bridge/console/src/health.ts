import type { Health, Quarantine } from "@forge-bridge/client";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Loaded } from "./load";

/** Health of the bridge, requested once for the whole page. */
export const HealthContext = createContext<Loaded<Health>>({
  data: undefined,
  error: undefined,
  loading: true,
  current: false,
  reload: () => undefined,
});

export function useHealth(): Loaded<Health> {
  return useContext(HealthContext);
}

/** Reasons why an adapter starts no executions, apart from its health. */
export function hold(adapter: { pausedAt?: string | null; quarantine?: Quarantine | null }): ("paused" | "quarantined")[] {
  return [...(adapter.quarantine ? (["quarantined"] as const) : []), ...(adapter.pausedAt ? (["paused"] as const) : [])];
}
