// Runs the `ai` package behind JSON lines: one request on stdin, the answer's parts on stdout. Resolves packages from
// the working directory and exits when stdin closes. Tools have no `execute`: calls are handed back.
import { createInterface } from 'node:readline';

globalThis.AI_SDK_LOG_WARNINGS = false;
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const told = (error) => ({
  message: String(error?.message ?? error),
  name: error?.name,
  status: error?.statusCode,
  isRetryable: error?.isRetryable,
  body: typeof error?.responseBody === 'string' ? error.responseBody.slice(0, 2000) : undefined,
  retryAfter: error?.responseHeaders?.['retry-after'],
  retryAfterMs: error?.responseHeaders?.['retry-after-ms'],
});
const fail = (ev, error) => say({ ev, error: told(error) });

let ai;
try {
  ai = await import('ai');
} catch (error) {
  fail('missing', error);
  process.exit(1);
}
const { Output, jsonSchema, streamText, tool } = ai;

async function model({ package: name, factory, method, options }, id) {
  const exports = await import(name);
  const make = factory ? exports[factory] : Object.entries(exports).find(([key]) => key.startsWith('create'))?.[1];
  if (typeof make !== 'function') throw new Error(`${name} exports no function ${factory ?? 'create…'}`);
  const provider = make(options);
  return method ? provider[method](id) : provider(id);
}

async function answer(ask) {
  let chosen;
  try {
    chosen = await model(ask.provider, ask.model);
  } catch (error) {
    return fail('missing', error);
  }
  const tools = ask.tools.length === 0 ? undefined : Object.fromEntries(ask.tools.map(
    ({ name, description, inputSchema }) => [name, tool({ description: description ?? undefined, inputSchema: jsonSchema(inputSchema) })]));
  const { stop, reasoning, toolChoice, ...options } = ask.options;
  const result = streamText({
    model: chosen,
    instructions: ask.system ?? undefined,
    messages: ask.messages,
    tools,
    ...options,
    stopSequences: stop,
    reasoning: reasoning === 'off' ? 'none' : reasoning,
    toolChoice: toolChoice?.tool ? { type: 'tool', toolName: toolChoice.tool } : toolChoice,
    providerOptions: ask.providerOptions ?? undefined,
    // The adapter retries.
    maxRetries: 0,
    ...(ask.schema ? { output: Output.object({ schema: jsonSchema(ask.schema) }) } : {}),
    onError() {},
  });
  for await (const part of result.stream ?? result.fullStream) {
    switch (part.type) {
      case 'text-delta':
      case 'reasoning-delta':
        say({ ev: part.type, text: part.text });
        break;
      case 'tool-call':
        say({ ev: 'tool-call', id: part.toolCallId, name: part.toolName, input: part.input });
        break;
      case 'finish-step':
        say({ ev: 'step', usage: part.usage, reason: part.finishReason, model: part.response?.modelId });
        break;
      case 'error':
        return fail('error', part.error);
      case 'abort':
        return fail('error', new Error('aborted'));
    }
  }
  say({ ev: 'done', messages: (await result.response).messages });
}

const lines = createInterface({ input: process.stdin });
lines.on('close', () => process.exit(0));
lines.once('line', (line) => answer(JSON.parse(line)).catch((error) => fail('error', error)));
say({ ev: 'ready', node: process.version });
