import type { DispatchRequest } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { useLoad } from "../load";
import { Problem } from "../parts/notice";
import { link } from "../router";
import { bridge, session } from "../session";

const START = { message: "Hello from the console", provider: "", model: "", agentId: "console", taskId: "", sessionId: "", callbackUrl: "" };

/** A form for one dispatch, and the same as a line for the shell. */
export function Try() {
  const adapters = useLoad(() => bridge.adapters(), []);
  const [form, setForm] = useState({ ...START, taskId: newTask() });
  const [problem, setProblem] = useState<unknown>();
  const [copied, setCopied] = useState(false);
  const set = (name: keyof typeof START) => (event: Event) => {
    setCopied(false);
    setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  };
  const request = body(form);
  const line = curl(request);
  const send = (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    bridge.dispatch(request).then((accepted) => { location.hash = link("dispatch", accepted.dispatchId); }, setProblem);
  };
  return (
    <>
      <h1>Try it</h1>
      <div class="columns">
        <form class="stack" onSubmit={send}>
          <label>Message <textarea rows={4} value={form.message} onInput={set("message")} required /></label>
          <label>
            Adapter
            <select value={form.provider} onChange={set("provider")}>
              <option value="">let the bridge choose</option>
              {adapters.data?.adapters.map((adapter) => <option key={adapter.provider} value={adapter.provider}>{adapter.provider}</option>)}
            </select>
          </label>
          <label>Model <input value={form.model} onInput={set("model")} placeholder="the adapter's own; with echo: stream:20, slow:5000, fail" /></label>
          <label>Session <input value={form.sessionId} onInput={set("sessionId")} placeholder="none" /></label>
          <label>Callback URL <input type="url" value={form.callbackUrl} onInput={set("callbackUrl")} placeholder="no callback" /></label>
          <div class="pair">
            <label>Task id <input value={form.taskId} onInput={set("taskId")} required /></label>
            <label>Agent <input value={form.agentId} onInput={set("agentId")} required /></label>
          </div>
          <Problem error={problem} />
          <div class="actions"><button type="submit" class="primary">Dispatch</button></div>
        </form>
        <section aria-labelledby="line">
          <h2 id="line">The same in a shell</h2>
          <pre class="said">{line}</pre>
          <button type="button" onClick={() => navigator.clipboard.writeText(line).then(() => setCopied(true), setProblem)}>
            {copied ? "Copied" : "Copy"}
          </button>
        </section>
      </div>
    </>
  );
}

function newTask(): string {
  return `try-${Date.now().toString(36)}`;
}

function body(form: typeof START): DispatchRequest {
  const { taskId, agentId, message, callbackUrl, ...wishes } = form;
  const given = Object.fromEntries(Object.entries(wishes).filter(([, value]) => value !== ""));
  return { taskId, agentId, message, ...given, callbackUrl: callbackUrl || null };
}

/** Single quotes end, an escaped one comes, and they begin again. */
function curl(request: DispatchRequest): string {
  const quoted = JSON.stringify(request, null, 2).replaceAll("'", `'\\''`);
  const token = session.token ? ` \\\n  -H "Authorization: Bearer $BRIDGE_TOKEN"` : "";
  return `curl -sS ${location.origin}/api/v2/dispatch \\\n  -H 'Content-Type: application/json'${token} \\\n  -d '${quoted}'`;
}
