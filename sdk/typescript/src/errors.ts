import type { ErrorCode, ErrorDetails } from "./wire/index.js";

/** Code of an error that did not come from the bridge: there was no answer, or none in time. */
export type ClientCode = "UNREACHABLE" | "TIMEOUT";

/** Error answer of the bridge, or no answer at all (`status` 0). */
export class BridgeError extends Error {
  readonly status: number;
  /** Code of the error envelope, such as `NOT_FOUND`; `HTTP_<status>` if something else answered; else a `ClientCode`. */
  readonly code: string;
  readonly requestId: string | undefined;
  /** By the code: `ErrorDetails`; of an external service its diagnostics. */
  readonly details: unknown;
  /** Trace of a call of an external service. */
  readonly traceId: string | undefined;
  /** Dispatch of a command that is held for an approval, or has not ended yet (`status` 202). */
  readonly dispatchId: string | undefined;
  /** Value of `Retry-After` in milliseconds, if it was a number of seconds. */
  readonly retryAfterMs: number | undefined;

  constructor(init: {
    status: number;
    code: string;
    message: string;
    requestId?: string | undefined;
    details?: unknown;
    traceId?: string | undefined;
    dispatchId?: string | undefined;
    retryAfterMs?: number | undefined;
    cause?: unknown;
  }) {
    super(init.message, { cause: init.cause });
    this.name = "BridgeError";
    this.status = init.status;
    this.code = init.code;
    this.requestId = init.requestId;
    this.details = init.details;
    this.traceId = init.traceId;
    this.dispatchId = init.dispatchId;
    this.retryAfterMs = init.retryAfterMs;
  }

  /** True if the same request can succeed later: no answer, 408, 429 or 5xx. */
  get isTemporary(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }

  /** True for errors of this package. Afterwards, comparing `code` selects the type of `details`. */
  static is(error: unknown): error is BridgeFailure {
    return error instanceof BridgeError;
  }

  static async of(response: Response): Promise<BridgeError> {
    const text = await response.text().catch(() => "");
    const seconds = Number(response.headers.get("retry-after") ?? Number.NaN);
    const envelope = parse(text);
    return new BridgeError({
      status: response.status,
      code: envelope?.code ?? `HTTP_${response.status}`,
      message: envelope?.error ?? (text.slice(0, 200) || `HTTP ${response.status}`),
      requestId: envelope?.requestId,
      details: envelope?.details ?? envelope?.diagnostics,
      traceId: envelope?.traceId,
      dispatchId: envelope?.dispatchId,
      retryAfterMs: Number.isFinite(seconds) ? seconds * 1000 : undefined,
    });
  }

  static unreachable(cause: unknown): BridgeError {
    const why = cause instanceof Error ? cause.message : String(cause);
    return new BridgeError({ status: 0, code: "UNREACHABLE", message: `the bridge does not answer: ${why}`, cause });
  }

  static timeout(ms: number, cause: unknown): BridgeError {
    return new BridgeError({ status: 0, code: "TIMEOUT", message: `the bridge did not answer within ${ms} ms`, cause });
  }
}

/** Texts that this version does not name. An enum, because `code === "…"` would also select errors whose code is `string`. */
declare enum OtherCode {
  Unnamed = "",
}

/** Error with one of these codes. */
type Failure<Code> = BridgeError & {
  code: Code;
  details: Code extends keyof ErrorDetails ? ErrorDetails[Code] | undefined : unknown;
};

/** A {@link BridgeError} whose `code` selects the type of `details`. */
export type BridgeFailure = { [Code in ErrorCode | ClientCode]: Failure<Code> }[ErrorCode | ClientCode] | Failure<OtherCode>;

interface Envelope {
  error: string;
  code: string;
  requestId?: string;
  details?: unknown;
  diagnostics?: unknown;
  traceId?: string;
  dispatchId?: string;
}

function parse(text: string): Envelope | undefined {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && "error" in value && "code" in value) {
      return value as Envelope;
    }
  } catch {
    // Page of an intermediary, not an error envelope.
  }
  return undefined;
}
