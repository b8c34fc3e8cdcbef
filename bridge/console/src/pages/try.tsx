import type { DispatchRequest } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { useLoad } from "../load";
import { Copy } from "../parts/copy";
import { Problem, Skeleton } from "../parts/notice";
import { link } from "../router";
import { bridge, session } from "../session";

const START = { message: "Hello from the console", provider: "", model: "", agentId: "console", taskId: "", sessionId: "", callbackUrl: "", more: "" };
type Form = typeof START;

/** Form for one dispatch, with the equivalent shell command; begins with the request of another dispatch, if there is one. */
export function Try({ from }: { from: string | undefined }) {
  const former = useLoad(() => (from ? bridge.request(from) : Promise.resolve(undefined)), [from]);
  if (from && !former.data) {
    return (
      <>
        <h1>Try it</h1>
        {former.error ? <Problem error={former.error} /> : <Skeleton lines={8} />}
      </>
    );
  }
  const start = { ...START, taskId: newTask() };
  return <Compose start={former.data && from ? again(former.data, from) : start} />;
}

function Compose({ start }: { start: Form }) {
  const adapters = useLoad(() => bridge.adapters(), []);
  const [form, setForm] = useState(start);
  const [problem, setProblem] = useState<unknown>();
  const [sending, setSending] = useState(false);
  const set = (name: keyof Form) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  const more = parse(form.more);
  const request = body(form, more ?? {});
  const line = curl(request);
  const send = (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    if (!more) return setProblem(new Error("the other fields are not a JSON object"));
    setSending(true);
    bridge
      .dispatch(request)
      .then((accepted) => { location.hash = link("dispatch", accepted.dispatchId); }, setProblem)
      .finally(() => setSending(false));
  };
  return (
    <>
      <h1>Try it</h1>
      <div class="columns">
        <form class="stack" onSubmit={send}>
          <label>Message <textarea rows={4} value={form.message} onInput={set("message")} required /></label>
          <div class="pair">
            <label>
              Adapter
              <select value={form.provider} onChange={set("provider")}>
                <option value="">let the bridge choose</option>
                {adapters.data?.adapters.map((adapter) => <option key={adapter.provider} value={adapter.provider}>{adapter.provider}</option>)}
              </select>
            </label>
            <label>Model <input value={form.model} onInput={set("model")} placeholder="with echo: stream:20, slow:5000" /></label>
          </div>
          <label>Callback URL <input type="url" value={form.callbackUrl} onInput={set("callbackUrl")} placeholder="no callback" /></label>
          <div class="pair">
            <label>Task id <input value={form.taskId} onInput={set("taskId")} required /></label>
            <label>Agent <input value={form.agentId} onInput={set("agentId")} required /></label>
          </div>
          <details open={start.more !== ""}>
            <summary>More</summary>
            <div class="stack">
              <label>Session <input value={form.sessionId} onInput={set("sessionId")} placeholder="none" /></label>
              <label>
                Other fields, as a JSON object
                <textarea class="code" rows={4} value={form.more} onInput={set("more")} placeholder={'{"priority": 5, "timeoutSeconds": 60}'} aria-invalid={!more} aria-describedby="more-said" spellcheck={false} />
              </label>
              <p id="more-said" class={more ? "dim small" : "bad small"}>{more ? <>All fields are in the <a href="/docs">reference</a>.</> : "Not a JSON object yet."}</p>
            </div>
          </details>
          <Problem error={problem} />
          <div class="actions"><button type="submit" class="primary" disabled={sending}>Dispatch</button></div>
        </form>
        <section aria-labelledby="line">
          <div class="title"><h2 id="line">As a shell command</h2> <Copy text={line} name="the command" /></div>
          <pre class="said line" tabIndex={0} aria-label="curl command">{line}</pre>
          {session.token && <p class="dim small">Set <code>BRIDGE_TOKEN</code> to the token first.</p>}
        </section>
      </div>
    </>
  );
}

/** The form for a request that is edited and sent as a task of its own. A start time has passed, and is left out. */
function again(request: DispatchRequest, from: string): Form {
  const { message, provider, model, agentId, sessionId, callbackUrl, taskId: _, notBefore: __, deadline: ___, ...more } = request;
  const others = JSON.stringify({ ...more, retryOf: from }, null, 2);
  const texts = { message: message ?? "", provider: provider ?? "", model: model ?? "", sessionId: sessionId ?? "", callbackUrl: callbackUrl ?? "" };
  return { ...texts, agentId, taskId: newTask(), more: others };
}

function newTask(): string {
  return `try-${Date.now().toString(36)}`;
}

/** Parses the field for other fields; empty text is an empty object, invalid text is `undefined`. */
function parse(text: string): Record<string, unknown> | undefined {
  if (text.trim() === "") return {};
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

function body(form: Form, more: Record<string, unknown>): DispatchRequest {
  const { taskId, agentId, message, callbackUrl, more: _, ...wishes } = form;
  const given = Object.fromEntries(Object.entries(wishes).filter(([, value]) => value !== ""));
  return { taskId, agentId, message, ...given, ...more, callbackUrl: callbackUrl || null };
}

/** Formats the request as a curl command; single quotes in its body are escaped for the shell. */
function curl(request: DispatchRequest): string {
  const quoted = JSON.stringify(request, null, 2).replaceAll("'", `'\\''`);
  const token = session.token ? ` \\\n  -H "Authorization: Bearer $BRIDGE_TOKEN"` : "";
  return `curl -sS ${location.origin}/api/v2/dispatch \\\n  -H 'Content-Type: application/json'${token} \\\n  -d '${quoted}'`;
}
