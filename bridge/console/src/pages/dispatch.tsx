import type { Delivery, Dispatch, WaitReason } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { useNow } from "../clock";
import { duration, millis, rough } from "../format";
import { useLoad } from "../load";
import { Ask } from "../parts/ask";
import { DispatchBadge } from "../parts/badge";
import { Deliveries } from "../parts/callback";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Facts, Outcome, Routing } from "../parts/record";
import { Request } from "../parts/request";
import { DispatchTable, next } from "../parts/tables";
import { Time } from "../parts/time";
import { grow, type History, Timeline } from "../parts/timeline";
import { Waterfall } from "../parts/waterfall";
import { link } from "../router";
import { bridge } from "../session";
import { type SpanLog, spans, traced } from "../spans";
import { useStream } from "../stream";

/** Events after which the record has changed. */
const CHANGES = /^(execution\.(started|retrying|completed|failed)|callback\.)/;

/** One dispatch, from acceptance to delivery, updated live. */
export function DispatchPage({ id }: { id: string }) {
  const record = useLoad(async () => {
    const dispatch = await bridge.show(id);
    const lines = dispatch.deliveries ?? [];
    return { dispatch, deliveries: await Promise.all(lines.slice(0, 20).map((line) => bridge.delivery(line.id))) };
  }, [id]);
  const [problem, setProblem] = useState<unknown>();
  const [history, setHistory] = useState<History>({ entries: [], dropped: 0 });
  const [log, setLog] = useState<SpanLog>(new Map());
  const streamError = useStream((start) => bridge.dispatchEvents(id, { until: "delivered", ...start }), (event) => event.id, (events) => {
    setHistory((last) => grow(last, events));
    setLog((last) => traced(last, events));
    if (events.some((event) => CHANGES.test(event.type))) record.reload();
  }, [id]);
  const act = (action: () => Promise<unknown>) => {
    setProblem(undefined);
    action().then(record.reload, setProblem);
  };
  if (!record.data) {
    return (
      <>
        <h1>Dispatch</h1>
        <Problem error={record.error} />
        {record.error ? <Matches id={id} /> : <Skeleton lines={12} />}
      </>
    );
  }
  const { dispatch, deliveries } = record.data;
  const error = dispatch.result?.error;
  return (
    <>
      <div class="title">
        <h1>{dispatch.taskId}</h1>
        <DispatchBadge dispatch={dispatch} />
        <div class="actions">
          {dispatch.status !== "finished" && (
            <Ask
              label={dispatch.cancelRequested ? "Cancelling …" : "Cancel"}
              title="Cancel this dispatch?"
              yes="Cancel it"
              disabled={dispatch.cancelRequested}
              act={() => act(() => bridge.cancel(dispatch.dispatchId))}
            >
              The result will be <code>cancelled</code> even if the agent continues; the callback reports it.
            </Ask>
          )}
        </div>
      </div>
      <Problem error={problem ?? streamError ?? record.error} />
      {error && <p class={`notice ${dispatch.errorCode === "input_required" || dispatch.errorCode === "cancelled" ? "warn" : "bad"}`}><strong>{dispatch.errorCode}</strong> {error}</p>}
      {dispatch.waitReason && <Waits reason={dispatch.waitReason} />}
      <Life dispatch={dispatch} deliveries={deliveries} />
      <section aria-labelledby="waterfall">
        <h2 id="waterfall">Waterfall</h2>
        <Waterfall spans={spans(dispatch, deliveries, log)} label="Waterfall of the dispatch" />
      </section>
      <div class="columns">
        <div>
          <section aria-labelledby="happened">
            <h2 id="happened">Events</h2>
            {history.entries.length ? <Timeline history={history} since={dispatch.acceptedAt} label="Events of the dispatch" /> : <Empty>No events yet.</Empty>}
            {dispatch.status === "running" && <p class="dim going">Still running.</p>}
          </section>
          <section aria-labelledby="callback">
            <h2 id="callback">Callback</h2>
            <Deliveries dispatch={dispatch} items={deliveries} retry={(delivery) => act(() => bridge.retry(delivery))} />
          </section>
        </div>
        <div>
          <Request dispatch={dispatch} />
          <Outcome dispatch={dispatch} />
          <Facts dispatch={dispatch} />
          <Routing steps={dispatch.routing} />
        </div>
      </div>
    </>
  );
}

/** Reason for which a dispatch has not started, and the end of the wait. */
function Waits({ reason }: { reason: WaitReason }) {
  return (
    <p class="notice warn">
      <strong>waits</strong> {reason.message}
      {reason.dispatchId && <> (<a href={link("dispatch", reason.dispatchId)}>{reason.dispatchId}</a>)</>}
      {reason.givenUpAt && <>, until <Time at={reason.givenUpAt} /> at the latest</>}
      {reason.kind.startsWith("adapter_") && <>. <a href={link("adapters")}>Show the adapters</a></>}
    </p>
  );
}

/** Dispatches whose task ids begin like one that is not known, if there are any. */
function Matches({ id }: { id: string }) {
  const page = useLoad(async () => {
    // Without its last words, until something matches.
    for (let prefix = id; prefix.length > 1; prefix = prefix.replace(/[\W_]*[^\W_]*$/, "")) {
      const found = await bridge.dispatches({ taskPrefix: prefix, limit: 10 });
      if (found.items.length > 0) return { prefix, items: found.items };
    }
    return undefined;
  }, [id]);
  return (
    <>
      {page.data && (
        <section aria-labelledby="matches">
          <h2 id="matches">Tasks that begin with “{page.data.prefix}”</h2>
          <DispatchTable items={page.data.items} label="Matches" />
        </section>
      )}
      <p><a href={link("dispatches")}>All dispatches</a></p>
    </>
  );
}

/** Stages of a dispatch as a bar: waiting, running and delivery, with their durations. */
function Life({ dispatch, deliveries }: { dispatch: Dispatch; deliveries: Delivery[] }) {
  const open = dispatch.status !== "finished";
  const now = useNow(open);
  const delivery = deliveries[0];
  const delivered = delivery?.status === "delivered" ? delivery.settledAt : undefined;
  const waited = millis(dispatch.acceptedAt, dispatch.startedAt ?? dispatch.finishedAt);
  const ran = millis(dispatch.startedAt, dispatch.finishedAt);
  const stages: { name: string; tone: string; ms: number | undefined; said: string }[] = [];
  const since = (iso: string) => Math.max(0, now - Date.parse(iso));
  if (waited === undefined) stages.push({ name: "waits for", tone: "wait", ms: since(dispatch.acceptedAt), said: rough(since(dispatch.acceptedAt)) });
  else stages.push({ name: "waited", tone: "wait", ms: waited, said: duration(waited) });
  if (ran !== undefined) stages.push({ name: "ran", tone: "busy", ms: ran, said: duration(ran) });
  else if (dispatch.startedAt && open) stages.push({ name: "runs for", tone: "busy", ms: since(dispatch.startedAt), said: rough(since(dispatch.startedAt)) });
  if (delivery) {
    const took = millis(dispatch.finishedAt, delivered);
    if (took !== undefined) stages.push({ name: "delivered after", tone: "good", ms: took, said: duration(took) });
    else if (delivery.status === "dead") stages.push({ name: "not delivered:", tone: "bad", ms: 0, said: "dead letter" });
    else if (delivery.status === "pending") stages.push({ name: "delivery:", tone: "wait", ms: 0, said: next(delivery) });
  }
  const all = stages.reduce((sum, stage) => sum + (stage.ms ?? 0), 0) || 1;
  return (
    <div>
      <div class="stages">
        {stages.map(({ name, tone, ms = 0, said }) => (
          <div key={name} class={tone} style={{ flexGrow: Math.max(ms / all, 0.12) }}>{name} <b class="number">{said}</b></div>
        ))}
      </div>
    </div>
  );
}
