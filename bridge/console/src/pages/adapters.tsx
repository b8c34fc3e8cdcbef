import type { Adapter } from "@forge-bridge/client";
import { time } from "../format";
import { useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Empty, Problem } from "../parts/notice";
import { link } from "../router";
import { bridge } from "../session";

export function Adapters() {
  const page = useLoad(() => bridge.adapters(), [], 5000);
  useReloadOn(["adapter."], page.reload);
  return (
    <>
      <h1>Adapters</h1>
      <Problem error={page.error} />
      {page.data?.adapters.length === 0 && <Empty>None is configured.</Empty>}
      {page.data?.adapters.map((adapter) => <Card key={adapter.provider} adapter={adapter} standard={page.data?.default === adapter.provider} />)}
    </>
  );
}

function Card({ adapter, standard }: { adapter: Adapter; standard: boolean }) {
  const { profile, health } = adapter;
  const share = adapter.maxConcurrent ? adapter.running / adapter.maxConcurrent : 0;
  return (
    <section class="card" aria-label={adapter.provider}>
      <div class="title">
        <h2>{adapter.provider}</h2> <Badge state={health.status} /> {standard && <span class="dim">the default</span>}
        <span class="number dim">{adapter.version}</span>
      </div>
      {health.message && <p>{health.message}</p>}
      <label class="meter">
        <span>{adapter.running} of {adapter.maxConcurrent} running</span>
        <meter value={share} max={1} aria-label="running" />
        <a href={link("dispatches", undefined, { provider: adapter.provider })}>its dispatches</a>
      </label>
      {profile && (
        <>
          <ul class="chips" aria-label="Capabilities">{profile.capabilities.map((name) => <li key={name}>{name}</li>)}</ul>
          <p class="dim">
            cost {profile.costTier}, latency {profile.latencyProfile}, output by {profile.outputStrategies.join(", ")}
            {profile.nativeTools.length > 0 && `, own tools: ${profile.nativeTools.join(", ")}`}
          </p>
        </>
      )}
      {adapter.interfaces.length > 1 && <p class="dim">Interfaces: {adapter.interfaces.join(", ")}</p>}
      <details>
        <summary>Library and health history</summary>
        <dl>
          <div><dt>Library</dt><dd>{adapter.path ?? "not found"}</dd></div>
          {adapter.digest && <div><dt>SHA-256</dt><dd>{adapter.digest}</dd></div>}
          <div><dt>Isolation</dt><dd>{adapter.isolation.replace("_", " ")}</dd></div>
        </dl>
        <ol class="routing">
          {adapter.history.slice().reverse().map((report, index) => (
            <li key={index}><span class="number">{time(report.checkedAt)}</span> <Badge state={report.status} /> <span class="dim">{report.message}</span></li>
          ))}
        </ol>
      </details>
    </section>
  );
}
