import { BridgeError } from "@forge-bridge/client";
import type { ComponentChildren } from "preact";
import { wantsToken } from "../session";

/** Error as the bridge reports it. A missing token is handled by the token dialog. */
export function Problem({ error }: { error: unknown }) {
  if (!error || wantsToken(error)) return null;
  const known = error instanceof BridgeError ? error : undefined;
  const message = error instanceof Error ? error.message : String(error);
  const fields = Array.isArray(known?.details) ? (known.details as { field?: unknown; message?: unknown }[]) : [];
  return (
    <div class="notice bad" role="alert">
      <strong>{known?.code ?? "ERROR"}</strong> {known ? message.replace(`[${known.code}] `, "") : message}
      {fields.length > 0 && (
        <ul>{fields.map(({ field, message }, index) => <li key={index}><code>{String(field)}</code> {String(message)}</li>)}</ul>
      )}
      {known?.requestId && <p class="small">Request <code>{known.requestId}</code></p>}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** Placeholder during the first load. */
export function Skeleton({ lines }: { lines: number }) {
  return (
    <div class="skeleton" aria-busy="true">
      <span class="hidden">Loading …</span>
      {Array.from({ length: lines }, (_, index) => <i key={index} />)}
    </div>
  );
}
