import type { BridgeEvent, Delivery, Dispatch, RoutingStep } from "@forge-bridge/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { dollars, duration, json, millis, number, time } from "../format";
import { useLoad } from "../load";
import { DispatchBadge } from "../parts/badge";
import { Empty, Problem } from "../parts/notice";
import { DeliveryTable } from "../parts/tables";
import { type Entry, grow, Timeline } from "../parts/timeline";
import { link } from "../router";
import { bridge } from "../session";

/** One dispatch, from accept to delivered, as it happens. */
export function DispatchPage({ id }: { id: string }) {
  const record = useLoad(() => bridge.show(id), [id]);
  const deliveries = useLoad(async () => {
    const lines = (await bridge.show(id)).deliveries ?? [];
    return Promise.all(lines.slice(0, 20).map((line) => bridge.delivery(line.id)));
  }, [id]);
  const [problem, setProblem] = useState<unknown>();
  const reload = () => {
    record.reload();
    deliveries.reload();
  };
  const events = useEvents(id, reload);
  const act = (action: () => Promise<unknown>) => () => {
    setProblem(undefined);
    action().then(reload, setProblem);
  };
  const dispatch = record.data;
  if (!dispatch) return <><h1>Dispatch</h1><Problem error={record.error} />{record.loading && <Empty>Loading …</Empty>}</>;
  return (
    <>
      <div class="title">
        <h1>{dispatch.taskId}</h1>
        <DispatchBadge dispatch={dispatch} />
        {dispatch.status !== "finished" && (
          <button type="button" onClick={act(() => bridge.cancel(dispatch.dispatchId))} disabled={dispatch.cancelRequested}>
            {dispatch.cancelRequested ? "Cancelling …" : "Cancel"}
          </button>
        )}
      </div>
      <Problem error={problem ?? events.error ?? record.error} />
      <Stages dispatch={dispatch} deliveries={deliveries.data ?? []} />
      <div class="columns">
        <section aria-labelledby="happened">
          <h2 id="happened">What happened</h2>
          {events.entries.length ? <Timeline entries={events.entries} since={dispatch.acceptedAt} /> : <Empty>No event yet.</Empty>}
        </section>
        <div>
          <Facts dispatch={dispatch} />
          <Routing steps={dispatch.routing} />
        </div>
      </div>
      <section aria-labelledby="callback">
        <h2 id="callback">Callback</h2>
        {deliveries.data?.length ? (
          <>
            <DeliveryTable items={deliveries.data} retry={(delivery) => act(() => bridge.retry(delivery))()} />
            {deliveries.data.map((delivery) => <Attempts key={delivery.id} delivery={delivery} />)}
          </>
        ) : (
          <Empty>{dispatch.callbackUrl ? "Owed once the result is there." : "None was asked for."}</Empty>
        )}
      </section>
    </>
  );
}

/** The stream of this dispatch, shown at most ten times a second. */
function useEvents(id: string, ended: () => void): { entries: Entry[]; error: unknown } {
  const [entries, setEntries] = useState<Entry[]>([]);
  const [error, setError] = useState<unknown>();
  const waiting = useRef<BridgeEvent[]>([]);
  useEffect(() => {
    const controller = new AbortController();
    const hand = () => {
      const events = waiting.current;
      waiting.current = [];
      if (events.length === 0) return;
      setEntries((last) => grow(last, events));
      if (events.some((event) => /^(execution\.(started|completed|failed)|callback\.)/.test(event.type))) ended();
    };
    const timer = setInterval(hand, 100);
    const follow = async () => {
      const stream = bridge.dispatchEvents(id, { until: "delivered", signal: controller.signal, maxPauseMs: 3000 });
      for await (const event of stream) waiting.current.push(event);
    };
    follow().catch((failure: unknown) => controller.signal.aborted || setError(failure));
    return () => {
      clearInterval(timer);
      controller.abort();
    };
  }, [id]);
  return { entries, error };
}

/** Its life as a bar: what it waited for and for how long. */
function Stages({ dispatch, deliveries }: { dispatch: Dispatch; deliveries: Delivery[] }) {
  const delivered = deliveries.find((delivery) => delivery.status === "delivered")?.settledAt;
  const stages = [
    { name: "waited", tone: "wait", ms: millis(dispatch.acceptedAt, dispatch.startedAt) },
    { name: "ran", tone: "busy", ms: millis(dispatch.startedAt, dispatch.finishedAt) },
    { name: "delivered after", tone: "good", ms: millis(dispatch.finishedAt, delivered) },
  ].filter((stage) => stage.ms !== undefined);
  if (stages.length === 0) return null;
  const all = stages.reduce((sum, stage) => sum + (stage.ms ?? 0), 0) || 1;
  return (
    <div class="stages">
      {stages.map(({ name, tone, ms = 0 }) => (
        <div key={name} class={tone} style={{ flexGrow: Math.max(ms / all, 0.12) }}>
          {name} <b class="number">{duration(ms)}</b>
        </div>
      ))}
    </div>
  );
}

function Facts({ dispatch }: { dispatch: Dispatch }) {
  const result = dispatch.result;
  const facts: [string, unknown][] = [
    ["Dispatch", dispatch.dispatchId],
    ["Agent", dispatch.agentId],
    ["Adapter", dispatch.provider],
    ["Model", result?.model],
    ["Session", result?.sessionId ?? dispatch.sessionId],
    ["Run", dispatch.runId],
    ["Attempt", dispatch.attempt || undefined],
    ["Priority", dispatch.priority || undefined],
    ["Accepted", time(dispatch.acceptedAt)],
    ["Not before", time(dispatch.notBefore)],
    ["Trace", dispatch.traceId],
    ["Tokens", result?.usage && `${number(result.usage.inputTokens)} in, ${number(result.usage.outputTokens)} out`],
    ["Cost", result && dollars(result.costUsd)],
    ["Error", result?.error],
  ];
  return (
    <section aria-labelledby="facts">
      <h2 id="facts">Record</h2>
      <dl>
        {facts.filter(([, value]) => value).map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd>{String(value)}</dd></div>
        ))}
      </dl>
      {result?.output && <details open={result.output.length < 600}><summary>Output</summary><pre class="said">{result.output}</pre></details>}
      {result?.structuredOutput !== undefined && <details open><summary>Structured output</summary><pre>{json(result.structuredOutput)}</pre></details>}
      {result?.toolCalls?.length ? <details open><summary>Tool calls handed back</summary><pre>{json(result.toolCalls)}</pre></details> : null}
    </section>
  );
}

/** Why this adapter: each stage that had a say. */
function Routing({ steps }: { steps: RoutingStep[] }) {
  return (
    <section aria-labelledby="routing">
      <h2 id="routing">Routing</h2>
      <ol class="routing">
        {steps.map((step, index) => (
          <li key={index}>
            <span class="dim">{step.layer}</span> {step.name} <span class="dim">kept</span> {step.kept.join(", ") || "nobody"}
            {step.dropped.map((drop, at) => <div key={at} class="dim">{drop.provider}: {drop.reason}</div>)}
          </li>
        ))}
      </ol>
    </section>
  );
}

function Attempts({ delivery }: { delivery: Delivery }) {
  if (delivery.attempts.length === 0) return null;
  return (
    <details>
      <summary>Attempts of <a href={link("deliveries")}>{delivery.id}</a></summary>
      <ol class="routing">
        {delivery.attempts.map((attempt, index) => (
          <li key={index}>
            <span class="number">{time(attempt.at)}</span> {attempt.status ? `HTTP ${attempt.status}` : attempt.error}{" "}
            <span class="dim">in {duration(attempt.durationMs)}</span>
            {attempt.answer && <pre>{attempt.answer}</pre>}
          </li>
        ))}
      </ol>
    </details>
  );
}
