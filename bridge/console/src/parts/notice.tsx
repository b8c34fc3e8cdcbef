import { BridgeError } from "@forge-bridge/client";
import type { ComponentChildren } from "preact";
import { wantsToken } from "../session";

/** What went wrong, in the bridge's own words. A missing token is asked for elsewhere. */
export function Problem({ error }: { error: unknown }) {
  if (!error || wantsToken(error)) return null;
  const known = error instanceof BridgeError ? error : undefined;
  return (
    <div class="notice bad" role="alert">
      <strong>{known?.code ?? "ERROR"}</strong> {error instanceof Error ? error.message : String(error)}
      {known?.requestId && <span class="dim"> request {known.requestId}</span>}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}
