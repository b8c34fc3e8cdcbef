import type { Adapter, HealthReport } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { plural } from "../format";
import { hold } from "../health";
import { useLoad, useReloadOn } from "../load";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Id } from "../parts/copy";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Time } from "../parts/time";
import { link } from "../router";
import { bridge } from "../session";

export function Adapters() {
  const page = useLoad(() => bridge.adapters(), [], 5000, "adapters");
  useReloadOn(["adapter."], page.reload);
  return (
    <>
      <h1>Adapters</h1>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={8} />}
      {page.data?.adapters.length === 0 && <Empty>No adapter is configured; set <code>BRIDGE_ADAPTERS</code>.</Empty>}
      <div class="cards">
        {page.data?.adapters.map((adapter) => (
          <Card key={adapter.provider} adapter={adapter} standard={page.data?.default === adapter.provider} changed={page.reload} />
        ))}
      </div>
    </>
  );
}

function Card({ adapter, standard, changed }: { adapter: Adapter; standard: boolean; changed: () => void }) {
  const { profile, health, provider, quarantine } = adapter;
  const [said, setSaid] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const act = (action: () => Promise<unknown>, done: string) => {
    setProblem(undefined);
    setSaid("…");
    action().then(() => { setSaid(done); changed(); }, (error: unknown) => { setSaid(""); setProblem(error); });
  };
  return (
    <section class="card" aria-label={provider}>
      <div class="title">
        <h2>{provider}</h2> <Badge state={health.status} /> {hold(adapter).map((held) => <Badge key={held} state={held} />)}
        <span class="number dim">{adapter.version}{standard && ", the default"}</span>
        <div class="actions">
          {adapter.pausedAt ? (
            <button type="button" class="small" aria-label={`Resume ${provider}`} onClick={() => act(() => bridge.resume(provider), "Resumed; executions start again.")}>Resume</button>
          ) : (
            <Ask small label="Pause" name={`Pause ${provider}`} title={`Pause ${provider}?`} yes="Pause it" act={() => act(() => bridge.pause(provider), "Paused; no new executions start.")}>
              Running executions continue. Accepted dispatches wait, also after a restart of the bridge, until the adapter is resumed.
            </Ask>
          )}
          <Ask small label="Reload" name={`Reload ${provider}`} title={`Reload ${provider}?`} yes="Reload it" act={() => act(() => bridge.reload(provider), "Reloaded.")}>
            Loads the library file again. Running executions finish on the old generation; if the new one does not start, nothing changes.
            {quarantine && " This ends the quarantine."}
          </Ask>
        </div>
      </div>
      <p role="status" class={said ? "dim" : "hidden"}>{said}</p>
      <Problem error={problem} />
      {adapter.pausedAt && <p class="notice warn">Paused since <Time at={adapter.pausedAt} />: no new executions start.</p>}
      {quarantine && (
        <div class="notice bad">
          <p>In quarantine since <Time at={quarantine.since} />: its process ended {plural(quarantine.crashes, "time")} within a short time and is not restarted.</p>
          <p>Last exit: {quarantine.reason}. Its last lines are in the log of the bridge.</p>
          <p>Fix or replace the library, then reload the adapter to end the quarantine. Accepted dispatches wait until then.</p>
        </div>
      )}
      {health.message && !quarantine && <p class={`notice ${health.status === "offline" ? "bad" : "warn"}`}>{health.message}</p>}
      <p class="number">
        <meter value={adapter.running} max={Math.max(1, adapter.maxConcurrent)} aria-label={`${provider}: running`} /> {adapter.running} of {adapter.maxConcurrent} running,{" "}
        <a href={link("dispatches", undefined, { provider })}>its dispatches</a>
      </p>
      {adapter.leaving?.map((generation) => (
        <p key={generation.digest} class="dim">{plural(generation.running, "execution")} still running on {generation.version} ({generation.digest.slice(0, 12)}…)</p>
      ))}
      <Strip reports={adapter.history} />
      {profile && (
        <>
          <ul class="chips" aria-label="Capabilities">{profile.capabilities.map((name) => <li key={name}>{name}</li>)}</ul>
          <p class="dim">
            cost {profile.costTier}, latency {profile.latencyProfile}, output by {profile.outputStrategies.join(", ")}
            {profile.nativeTools.length > 0 && `, native tools: ${profile.nativeTools.join(", ")}`}
          </p>
        </>
      )}
      {adapter.interfaces.length > 1 && <p class="dim">Interfaces: {adapter.interfaces.join(", ")}</p>}
      <details>
        <summary>Library and health history</summary>
        <dl>
          <div><dt>Library</dt><dd>{adapter.path ?? "not found"}</dd></div>
          {adapter.digest && <div><dt>SHA-256</dt><dd><Id value={adapter.digest} name="the digest" /></dd></div>}
          <div><dt>Isolation</dt><dd>{adapter.isolation.replace("_", " ")}</dd></div>
        </dl>
        <ol class="attempts" aria-label="Health, newest first">
          {adapter.history.slice().reverse().map((report, index) => (
            <li key={index}><Time at={report.checkedAt} /> <Badge state={report.status} /> <span class="dim">{report.message}</span></li>
          ))}
        </ol>
      </details>
    </section>
  );
}

/** Health history, oldest first; the width of a state is its duration. */
function Strip({ reports }: { reports: HealthReport[] }) {
  if (reports.length < 2) return null;
  const first = Date.parse(reports[0]?.checkedAt ?? "");
  const whole = Math.max(1, Date.now() - first);
  return (
    <div class="strip" role="img" aria-label={`Health since ${reports[0]?.checkedAt}: ${reports.map((report) => report.status).join(", ")}`}>
      {reports.map((report, index) => {
        const until = reports[index + 1]?.checkedAt;
        const ms = (until ? Date.parse(until) : Date.now()) - Date.parse(report.checkedAt ?? "");
        return <i key={index} class={report.status} style={{ flexGrow: Math.max(0.02, ms / whole) }} title={`${report.status} from ${report.checkedAt}`} />;
      })}
    </div>
  );
}
