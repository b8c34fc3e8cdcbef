import type { Health } from "@forge-bridge/client";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Loaded } from "./load";

/** How the bridge is, asked for once for the whole page. */
export const HealthContext = createContext<Loaded<Health>>({
  data: undefined,
  error: undefined,
  loading: true,
  reload: () => undefined,
});

export function useHealth(): Loaded<Health> {
  return useContext(HealthContext);
}

/** What keeps an adapter from starting anything, besides its health. */
export function hold(adapter: { pausedAt?: string | null; health: { message?: string } }): "paused" | "quarantined" | undefined {
  if (adapter.pausedAt) return "paused";
  return adapter.health.message?.startsWith("quarantined") ? "quarantined" : undefined;
}
