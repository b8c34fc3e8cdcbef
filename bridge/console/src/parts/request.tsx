import type { Dispatch, DispatchRequest } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { json } from "../format";
import { useLoad } from "../load";
import { link } from "../router";
import { bridge } from "../session";
import { Copy } from "./copy";
import { Problem } from "./notice";

/** Members that have a place of their own on the page. */
const SHOWN = ["message", "taskId", "agentId", "runId"];

/** The request as it was sent, and buttons that send it again as another task. */
export function Request({ dispatch }: { dispatch: Dispatch }) {
  const id = dispatch.dispatchId;
  const request = useLoad(() => bridge.request(id), [id]);
  const [problem, setProblem] = useState<unknown>();
  const [sending, setSending] = useState(false);
  const runAgain = () => {
    setProblem(undefined);
    setSending(true);
    bridge
      .runAgain(id)
      .then((accepted) => { location.hash = link("dispatch", accepted.dispatchId); }, setProblem)
      .finally(() => setSending(false));
  };
  if (!request.data) return <Problem error={request.error} />;
  const { message } = request.data;
  return (
    <section aria-labelledby="request">
      <div class="title">
        <h2 id="request">Request</h2> {message && <Copy text={message} name="the message" />}
        <div class="actions">
          <button type="button" class="small" onClick={runAgain} disabled={sending}>Run again</button>
          <a class="button small" href={link("try", id)}>Edit and run</a>
        </div>
      </div>
      {message && <pre class="said" tabIndex={0} aria-label="Message">{message}</pre>}
      <details><summary>All members</summary><pre class="said" tabIndex={0} aria-label="Members of the request">{json(others(request.data))}</pre></details>
      <Problem error={problem} />
    </section>
  );
}

function others(request: DispatchRequest): Record<string, unknown> {
  return Object.fromEntries(Object.entries(request).filter(([name]) => !SHOWN.includes(name)));
}
