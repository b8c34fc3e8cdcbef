import type { Dispatch, OutputFile, RoutingStep } from "@forge-bridge/client";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { dollars, json, number } from "../format";
import { link } from "../router";
import { bridge } from "../session";
import { Copy, Id } from "./copy";
import { Problem } from "./notice";
import { Time } from "./time";

/** Result of a dispatch: output, structured output, tool calls. Empty until it is finished. */
export function Outcome({ dispatch }: { dispatch: Dispatch }) {
  const result = dispatch.result;
  if (!result) return null;
  const truncated = result["outputTruncated"] as { bytes: number; href: string } | undefined;
  const files = result.outputFiles ?? [];
  if (!result.output && result.structuredOutput === undefined && !result.toolCalls?.length && !files.length) return null;
  return (
    <section aria-labelledby="result">
      <div class="title"><h2 id="result">Result</h2> {result.output && <Copy text={result.output} name="the output" />}</div>
      {result.output && <pre class="said" tabIndex={0} aria-label="Output">{result.output}</pre>}
      {truncated && <p class="dim">Only the beginning is shown; all {number(truncated.bytes)} bytes are at <code>{truncated.href}</code>.</p>}
      {result.structuredOutput !== undefined && <details open><summary>Structured output</summary><pre class="said" tabIndex={0}>{json(result.structuredOutput)}</pre></details>}
      {files.length > 0 && <Files id={dispatch.dispatchId} files={files} />}
      {result.toolCalls?.map((call) => (
        <div key={call.toolCallId} class="call"><span class="dim">tool call</span> <b>{call.name}</b><pre class="said" tabIndex={0}>{json(call.input)}</pre></div>
      ))}
    </section>
  );
}

/** Output files, each with a button that saves it. */
function Files({ id, files }: { id: string; files: OutputFile[] }) {
  const [problem, setProblem] = useState<unknown>();
  const save = async (file: OutputFile) => {
    setProblem(undefined);
    // Not a plain link: the request carries the token.
    const url = URL.createObjectURL(await bridge.file(id, file.name));
    const anchor = document.createElement("a");
    anchor.href = url;
    anchor.download = file.name;
    anchor.click();
    URL.revokeObjectURL(url);
  };
  return (
    <>
      <ul class="files" aria-label="Output files">
        {files.map((file) => (
          <li key={file.name}>
            <b>{file.name}</b> <span class="dim">{file.mediaType}{file.bytes !== undefined && `, ${number(file.bytes)} bytes`}</span>{" "}
            {file.href
              ? <button type="button" class="small" onClick={() => { save(file).catch(setProblem); }} aria-label={`Save ${file.name}`}>Save</button>
              : <span class="bad">not kept: {file.error}</span>}
          </li>
        ))}
      </ul>
      <Problem error={problem} />
    </>
  );
}

export function Facts({ dispatch }: { dispatch: Dispatch }) {
  const result = dispatch.result;
  const session = result?.sessionId ?? dispatch.sessionId;
  const facts: [string, ComponentChildren][] = [
    ["Agent", <a href={link("dispatches", undefined, { agentId: dispatch.agentId })}>{dispatch.agentId}</a>],
    ["Adapter", <a href={link("dispatches", undefined, { provider: dispatch.provider })}>{dispatch.provider}</a>],
    ["Model", result?.model],
    ["Run", dispatch.runId && <a href={link("run", dispatch.runId)}>{dispatch.runId}</a>],
    ["Attempt", dispatch.attempt > 1 ? dispatch.attempt : undefined],
    ["Priority", dispatch.priority || undefined],
    ["Accepted", <Time at={dispatch.acceptedAt} />],
    ["Not before", dispatch.notBefore && <Time at={dispatch.notBefore} />],
    ["Started", dispatch.startedAt && <Time at={dispatch.startedAt} />],
    ["Finished", dispatch.finishedAt && <Time at={dispatch.finishedAt} />],
    ["Tokens", result?.usage && `input ${number(result.usage.inputTokens)}, output ${number(result.usage.outputTokens)}`],
    ["Cost", result && dollars(result.costUsd)],
    ["Retry of", dispatch.retryOf && <a href={link("dispatch", dispatch.retryOf)}>{dispatch.retryOf}</a>],
    ["Session", session && <Id value={session} name="the session" />],
    ["Dispatch", <Id value={dispatch.dispatchId} name="the dispatch id" />],
    ["Trace", <Id value={dispatch.traceId} name="the trace id" />],
  ];
  return (
    <section aria-labelledby="facts">
      <h2 id="facts">Record</h2>
      <dl>
        {facts.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
      </dl>
    </section>
  );
}

/** Choice of the adapter: stages that dropped adapters, or models of the one that was chosen; then one line with the other stages. */
export function Routing({ steps }: { steps: RoutingStep[] }) {
  const chosen = steps.filter((step) => step.name !== "models").at(-1)?.kept ?? [];
  const idle = steps.filter((step) => step.dropped.length === 0);
  return (
    <section aria-labelledby="routing">
      <h2 id="routing">Routing</h2>
      <ol class="routing">
        {steps.filter((step) => step.dropped.length > 0).map((step, index) => (
          <li key={index}>
            <b>{step.name}</b> <span class="dim">kept {step.kept.join(", ") || "none"}</span>
            {step.dropped.map((drop, at) => <div key={at} class="drop"><s>{drop.model ?? drop.provider}</s> {drop.reason}</div>)}
          </li>
        ))}
        {chosen.length > 0 && <li>→ <b>{chosen.join(", ")}</b></li>}
      </ol>
      {idle.length > 0 && <p class="dim small">No effect: {idle.map((step) => step.name).join(", ")}.</p>}
    </section>
  );
}
