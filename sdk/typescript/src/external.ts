import { BridgeError } from "./errors.js";

/** Entry of an external service: `service.entry`, or a reference of a generated client. */
export type ExternalReference = string | { readonly service: string; readonly name: string };

/** Service and entry; a text is split at its first dot. */
export function splitReference(ref: ExternalReference): { service: string; name: string } {
  if (typeof ref !== "string") return ref;
  const dot = ref.indexOf(".");
  if (dot < 1) {
    const message = `"${ref}" is not a reference: write service.entry`;
    throw new BridgeError({ status: 0, code: "FORGE_EXTERNAL_RUNTIME_NOT_FOUND", message });
  }
  return { service: ref.slice(0, dot), name: ref.slice(dot + 1) };
}
