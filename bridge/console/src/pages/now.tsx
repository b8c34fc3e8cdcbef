import type { BridgeEvent, Health } from "@forge-bridge/client";
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { number, time } from "../format";
import { useLive } from "../live";
import { useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Chart } from "../parts/chart";
import { Empty, Problem } from "../parts/notice";
import { DispatchTable } from "../parts/tables";
import { link } from "../router";
import { bridge } from "../session";

const SECONDS = 120;
const COUNTED = ["execution.accepted", "execution.completed", "execution.failed", "callback.delivered"] as const;
const SERIES = [
  { label: "accepted", colour: "--accent" },
  { label: "completed", colour: "--good" },
  { label: "failed", colour: "--bad" },
  { label: "delivered", colour: "--violet" },
];

/** What goes on at this moment. */
export function Now() {
  const health = useLoad(() => bridge.health(), [], 2000);
  const running = useLoad(() => bridge.dispatches({ status: "running", limit: 10 }), [], 5000);
  const latest = useLoad(() => bridge.dispatches({ limit: 10 }), [], 10_000);
  useReloadOn(["execution.accepted", "execution.started", "execution.completed", "execution.failed"], () => {
    running.reload();
    latest.reload();
  });
  const data = useThroughput();
  return (
    <>
      <h1>Now</h1>
      <Problem error={health.error ?? running.error} />
      {health.data && <Figures health={health.data} />}
      <section aria-labelledby="throughput">
        <h2 id="throughput">Each second, for two minutes</h2>
        <Chart series={SERIES} data={data} label="Dispatches accepted, completed, failed and delivered each second" />
      </section>
      <section aria-labelledby="running">
        <h2 id="running">Running</h2>
        {running.data?.items.length ? <DispatchTable items={running.data.items} label="Running" /> : <Empty>Nothing runs.</Empty>}
      </section>
      <section aria-labelledby="latest">
        <h2 id="latest">Latest</h2>
        {latest.data?.items.length ? (
          <DispatchTable items={latest.data.items} label="Latest" />
        ) : (
          <Empty>No dispatch yet. <a href={link("try")}>Send one</a>.</Empty>
        )}
      </section>
    </>
  );
}

function Figures({ health }: { health: Health }) {
  const adapters = Object.entries(health.adapters);
  const sum = (pick: (of: (typeof adapters)[number][1]) => number) => adapters.reduce((all, [, of]) => all + pick(of), 0);
  return (
    <>
      <div class="figures">
        <Figure name="running" value={sum((of) => of.running)} of={sum((of) => of.maxConcurrent)} href={link("dispatches", undefined, { status: "running" })} />
        <Figure name="queued" value={sum((of) => of.queued)} href={link("dispatches", undefined, { status: "queued" })} />
        <Figure name="callbacks owed" value={health.deliveries.pending} href={link("deliveries", undefined, { status: "pending" })} />
        <Figure name="dead letters" value={health.deliveries.dead} bad={health.deliveries.dead > 0} href={link("deliveries", undefined, { status: "dead" })} />
      </div>
      <ul class="adapters" aria-label="Adapters">
        {adapters.map(([provider, of]) => (
          <li key={provider}>
            <a href={link("adapters")}>{provider}</a> <Badge state={of.status} />
            <span class="number dim"> {of.running} of {of.maxConcurrent} running, {of.queued} queued, asked {time(of.checkedAt)}</span>
            {of.message && <p class="dim">{of.message}</p>}
          </li>
        ))}
      </ul>
    </>
  );
}

function Figure({ name, value, of, bad, href }: { name: string; value: number; of?: number; bad?: boolean; href: string }) {
  return (
    <a class={bad ? "figure bad" : "figure"} href={href}>
      <b class="number">{number(value)}</b>
      {of !== undefined && <span class="dim number"> of {number(of)}</span>}
      <span>{name}</span>
    </a>
  );
}

/** Counts what arrives, second by second of the bridge's clock. */
function useThroughput(): uPlot.AlignedData {
  const counts = useRef(new Map<number, number[]>());
  const [data, setData] = useState<uPlot.AlignedData>(() => window_(counts.current));
  useLive((events: BridgeEvent[]) => {
    for (const event of events) {
      const place = COUNTED.indexOf(event.type as (typeof COUNTED)[number]);
      if (place < 0) continue;
      const second = Math.floor(Date.parse(event.timestamp) / 1000);
      const row = counts.current.get(second) ?? [0, 0, 0, 0];
      row[place] = (row[place] ?? 0) + 1;
      counts.current.set(second, row);
    }
  });
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setData(window_(counts.current)), 1000);
    return () => clearInterval(timer);
  }, []);
  return data;
}

function window_(counts: Map<number, number[]>): uPlot.AlignedData {
  const last = Math.floor(Date.now() / 1000) - 1;
  for (const second of counts.keys()) if (second < last - SECONDS) counts.delete(second);
  const seconds = Array.from({ length: SECONDS }, (_, index) => last - SECONDS + 1 + index);
  const column = (place: number) => seconds.map((second) => counts.get(second)?.[place] ?? 0);
  return [seconds, column(0), column(1), column(2), column(3)];
}
