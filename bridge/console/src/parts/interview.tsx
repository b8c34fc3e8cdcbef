import { type RunStatus } from "@forge-bridge/client";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Line } from "../run-log";
import { forge } from "../session";
import { Empty, Problem } from "./notice";
import { Time } from "./time";

const NAMES = { user: "You", captain: "Captain", tool: "Captain", plan: "Plan" };

/** Interview with the Captain, with a field for the next message while the run is planned. */
export function Interview({ runId, status, lines }: { runId: string; status: RunStatus; lines: Line[] }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const [sending, setSending] = useState(false);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => list.current?.scrollTo({ top: list.current.scrollHeight }), [lines.length]);
  const last = lines.at(-1)?.from;
  const isBusy = status === "planning" && (last === "user" || last === "tool");
  const send = () => {
    if (text.trim() === "" || sending) return;
    setProblem(undefined);
    setSending(true);
    forge.sendCaptainMessage(runId, text).then(() => setText(""), setProblem).finally(() => setSending(false));
  };
  return (
    <section class="stack" aria-labelledby="interview">
      <h2 id="interview">Interview</h2>
      {lines.length === 0 && <Empty>Nothing was said yet. Tell the Captain what to build.</Empty>}
      {lines.length > 0 && (
        <ol class="chat" ref={list} tabIndex={0} aria-label="Interview" aria-live="polite">
          {lines.map((line) => (
            <li key={line.key} class={`${line.from}${line.bad ? " bad" : ""}`}>
              <span class="dim small">{NAMES[line.from]} <Time at={line.at} /></span>
              {line.from === "tool" ? <div><code>{line.text}</code> <span class={line.bad ? "bad" : "dim"}>{line.result ?? "…"}</span></div> : <pre class="said">{line.text}</pre>}
            </li>
          ))}
        </ol>
      )}
      {isBusy && <p class="dim going" role="status">The Captain is working.</p>}
      <Problem error={problem} />
      {status === "planning" && (
        <form class="stack plain" onSubmit={(event) => { event.preventDefault(); send(); }}>
          <label>
            Message to the Captain
            <textarea
              rows={3}
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
              onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(); }}
            />
          </label>
          <div class="actions"><span class="dim small">Ctrl+Enter sends</span> <button type="submit" class="primary" disabled={sending || text.trim() === ""}>Send</button></div>
        </form>
      )}
    </section>
  );
}
