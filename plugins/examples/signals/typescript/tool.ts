// A tool that uses the adapter: two calls of a model in one session. A block stops it with an error.
import { ForgAdapter } from "./adapter.ts";

const forg = new ForgAdapter("example-typescript-forg", process.env.FORG_USER_ID);
await forg.startSession();
try {
  for (const tokensIn of [100, 200]) {
    const start = Date.now();
    const response = { text: "an answer", model: "claude-opus-4-5", usage: { in: tokensIn, out: 50 } };
    const { model, usage } = response;
    const call = { model, tokensIn: usage.in, tokensOut: usage.out, latencyMs: Date.now() - start };
    const { blocked, message } = await forg.emit(call);
    if (blocked) throw new Error(`FORG policy blocked this request: ${message}`);
    console.log(response.text);
  }
} finally {
  await forg.endSession();
}
