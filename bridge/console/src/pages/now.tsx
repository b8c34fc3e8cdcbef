import type { Health } from "@forge-bridge/client";
import type uPlot from "uplot";
import { number, plural } from "../format";
import { hold, useHealth } from "../health";
import { useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Chart } from "../parts/chart";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { DispatchTable } from "../parts/tables";
import { Time } from "../parts/time";
import { link } from "../router";
import { bridge } from "../session";
import { useHour, usePresent } from "../throughput";

const RATES = [
  { label: "accepted", colour: "--accent" },
  { label: "completed", colour: "--good" },
  { label: "failed", colour: "--bad", dash: [6, 3] },
  { label: "delivered", colour: "--violet", dash: [2, 3] },
];
const LEVELS = [
  { label: "running", colour: "--accent" },
  { label: "queued", colour: "--warn", dash: [6, 3] },
  { label: "callbacks pending", colour: "--violet", dash: [2, 3] },
];
const ROWS = 8;

/** Current activity of the bridge. */
export function Now() {
  const health = useHealth();
  const running = useLoad(() => bridge.dispatches({ status: "running", limit: ROWS }), [], 5000, "running");
  const latest = useLoad(() => bridge.dispatches({ limit: ROWS }), [], 10_000, "latest");
  useReloadOn(["execution.accepted", "execution.started", "execution.completed", "execution.failed"], () => {
    running.reload();
    latest.reload();
  });
  return (
    <>
      <h1>Now</h1>
      <Problem error={running.error ?? latest.error} />
      <Figures health={health.data} />
      <Charts begin={latest.data !== undefined || latest.error !== undefined} />
      <section aria-labelledby="adapters">
        <h2 id="adapters">Adapters</h2>
        {health.data ? <AdapterLines health={health.data} /> : <Skeleton lines={2} />}
      </section>
      <div class="halves">
        <section aria-labelledby="running">
          <h2 id="running"><a href={link("dispatches", undefined, { status: "running" })}>Running</a></h2>
          {!running.data && <Skeleton lines={ROWS} />}
          {running.data && (running.data.items.length ? <DispatchTable items={running.data.items} label="Running" brief /> : <Empty>Nothing is running.</Empty>)}
        </section>
        <section aria-labelledby="latest">
          <h2 id="latest"><a href={link("dispatches")}>Latest</a></h2>
          {!latest.data && <Skeleton lines={ROWS} />}
          {latest.data &&
            (latest.data.items.length ? (
              <DispatchTable items={latest.data.items} label="Latest" brief />
            ) : (
              <Empty>No dispatches yet. <a href={link("try")}>Send one</a>.</Empty>
            ))}
        </section>
      </div>
    </>
  );
}

function Charts({ begin }: { begin: boolean }) {
  const { seconds, rates, levels } = useHour();
  return (
    <div class="halves">
      <section aria-labelledby="throughput">
        <h2 id="throughput">Per second</h2>
        <Chart begin={begin} series={RATES} data={[seconds, ...rates] as uPlot.AlignedData} label="Dispatches accepted, completed, failed and delivered per second, for the last hour" />
      </section>
      <section aria-labelledby="backlog">
        <h2 id="backlog">Running and waiting</h2>
        <Chart begin={begin} series={LEVELS} data={[seconds, ...levels] as uPlot.AlignedData} label="Dispatches running and queued, and callbacks pending, for the last hour" />
      </section>
    </div>
  );
}

function Figures({ health }: { health: Health | undefined }) {
  const { rates } = usePresent();
  const ended = (rates[1] ?? 0) + (rates[2] ?? 0);
  const adapters = Object.values(health?.adapters ?? {});
  const sum = (pick: (of: (typeof adapters)[number]) => number) => (health ? adapters.reduce((all, of) => all + pick(of), 0) : undefined);
  const dead = health?.deliveries.dead;
  return (
    <div class="figures">
      <Figure name="finished per second" value={ended < 10 ? Math.round(ended * 10) / 10 : Math.round(ended)} href={link("dispatches")} />
      <Figure name="running" value={sum((of) => of.running)} of={sum((of) => of.maxConcurrent)} href={link("dispatches", undefined, { status: "running" })} />
      <Figure name="queued" value={sum((of) => of.queued)} href={link("dispatches", undefined, { status: "queued" })} />
      <Figure name="callbacks pending" value={health?.deliveries.pending} href={link("deliveries", undefined, { status: "pending" })} />
      <Figure name="dead letters" value={dead} bad={(dead ?? 0) > 0} href={link("deliveries", undefined, { status: "dead" })} />
    </div>
  );
}

function Figure({ name, value, of, bad, href }: { name: string; value: number | undefined; of?: number | undefined; bad?: boolean; href: string }) {
  return (
    <a class={bad ? "figure bad" : "figure"} href={href}>
      <b class="number">{value === undefined ? "…" : number(value)}</b>
      {of !== undefined && <span class="dim number"> of {number(of)}</span>}
      <span>{name}</span>
    </a>
  );
}

function AdapterLines({ health }: { health: Health }) {
  return (
    <ul class="adapters" aria-label="Adapters">
      {Object.entries(health.adapters).map(([provider, of]) => {
        return (
          <li key={provider}>
            <div class="title">
              <a href={link("adapters")}><b>{provider}</b></a> <Badge state={of.status} /> {hold(of).map((held) => <Badge key={held} state={held} />)}
            </div>
            <div class="number">
              <meter value={of.running} max={Math.max(1, of.maxConcurrent)} aria-label={`${provider}: running`} /> {number(of.running)} of {number(of.maxConcurrent)}
              {of.queued > 0 && <>, <a href={link("dispatches", undefined, { status: "queued", provider })}>{number(of.queued)} queued</a></>}
            </div>
            {of.quarantine ? (
              <p class="dim">since <Time at={of.quarantine.since} />: process ended {plural(of.quarantine.crashes, "time")}</p>
            ) : of.message ? <p class="dim clamp" title={of.message}>{of.message}</p> : <p class="dim">checked <Time at={of.checkedAt} /></p>}
          </li>
        );
      })}
    </ul>
  );
}
