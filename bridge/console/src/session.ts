import { Bridge, BridgeError, type BridgeOptions, ForgeSDK } from "@forge-bridge/client";

const KEY = "forge-bridge.token";

/** Bearer token, entered once and kept as long as the tab. */
export const session = {
  get token(): string | undefined {
    return sessionStorage.getItem(KEY) ?? undefined;
  },
  set token(value: string | undefined) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
    window.dispatchEvent(new Event("forge-session"));
  },
};

/** Without repetitions: a page shows a failure at once, and loads again by itself. */
const options: BridgeOptions = { baseUrl: "", token: () => session.token, maxRetries: 0 };

/** Client of the bridge that served this page. */
export const bridge = new Bridge(options);

/** Client of its runs. */
export const forge = new ForgeSDK(options.baseUrl, options);

/** True if the bridge requires a token, or another one. */
export function wantsToken(error: unknown): boolean {
  return error instanceof BridgeError && error.status === 401;
}
