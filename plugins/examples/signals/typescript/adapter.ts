// Reports the calls of AI models to the local agent, and asks whether a call is blocked. Whatever fails lets the tool continue.
import { createHmac } from "node:crypto";

export interface Call {
  model: string;
  tokensIn: number;
  tokensOut: number;
  latencyMs?: number;
  costUsd?: number;
  errorCode?: string;
  projectId?: string;
}

export interface Verdict {
  blocked: boolean;
  message?: string;
}

interface Session {
  id: string;
  key: Buffer;
}

const LONGEST_MS = 3000;

export class ForgAdapter {
  readonly #adapter: string;
  readonly #userId: string | undefined;
  readonly #agent: string;
  readonly #timeoutMs: number;
  #session: Session | null = null;

  constructor(adapter: string, userId?: string, environment: NodeJS.ProcessEnv = process.env) {
    this.#adapter = adapter;
    this.#userId = userId;
    this.#agent = environment.FORG_AGENT_URL ?? `http://127.0.0.1:${environment.FORG_PORT ?? 6247}`;
    this.#timeoutMs = Math.min(Number(environment.FORG_EMIT_TIMEOUT) || LONGEST_MS, LONGEST_MS);
    const { FORG_SESSION_ID: id, FORG_SESSION_KEY: key } = environment;
    if (id && key) this.#session = { id, key: Buffer.from(key, "base64") };
  }

  /** Starts a session. The first call of `emit` does so too. */
  async startSession(): Promise<void> {
    if (!this.#session) await this.#open("start", () => this.#start(this.#deadline()));
  }

  /** Reports a call of a model. */
  async emit(call: Call): Promise<Verdict> {
    const record = {
      adapter: this.#adapter,
      ts: new Date().toISOString(),
      model: call.model,
      tokens_in: call.tokensIn,
      tokens_out: call.tokensOut,
      latency_ms: call.latencyMs ?? null,
      cost_usd: call.costUsd ?? null,
      error_code: call.errorCode ?? null,
      project_id: call.projectId ?? null,
    };
    const answer = await this.#open("emit", async () => {
      const deadline = this.#deadline();
      if (!this.#session) await this.#start(deadline);
      let response = await this.#signed(record, deadline);
      if (response.status === 401) {
        await this.#start(deadline);
        response = await this.#signed(record, deadline);
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      return response.json();
    });
    return { blocked: answer?.blocked === true, message: answer?.message };
  }

  /** Ends the session. */
  async endSession(): Promise<void> {
    if (!this.#session) return;
    const record = { adapter: this.#adapter, ts: new Date().toISOString(), hook: "SessionEnd" };
    await this.#open("end", () => this.#signed(record, this.#deadline()));
    this.#session = null;
  }

  /** Fails open: an error is a warning. */
  async #open<T>(what: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      console.warn(`[forg] ${what} failed, the tool continues: ${(error as Error).message}`);
      return undefined;
    }
  }

  #deadline(): AbortSignal {
    return AbortSignal.timeout(this.#timeoutMs);
  }

  async #start(deadline: AbortSignal): Promise<void> {
    this.#session = null;
    const body = JSON.stringify({ adapter: this.#adapter, user_id: this.#userId });
    const response = await this.#post("/session/start", body, {}, deadline);
    if (!response.ok) throw new Error(`no session: status ${response.status}`);
    const { session_id: id, session_key: key } = (await response.json()) as Record<string, string>;
    this.#session = { id, key: Buffer.from(key, "base64") };
  }

  /** Signs the bytes that are sent. */
  #signed(record: object, deadline: AbortSignal): Promise<Response> {
    const { id, key } = this.#session!;
    const body = JSON.stringify({ ...record, session_id: id });
    const digits = createHmac("sha256", key).update(body, "utf8").digest("hex");
    return this.#post("/emit", body, { "X-Forg-Signature": `sha256=${digits}` }, deadline);
  }

  #post(path: string, body: string, headers: object, signal: AbortSignal): Promise<Response> {
    const all = { "Content-Type": "application/json", ...headers };
    return fetch(this.#agent + path, { method: "POST", headers: all, body, redirect: "manual", signal });
  }
}
