import type { ReloadReport } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { plural } from "../format";
import { useLoad } from "../load";
import { canCall, ifSupported, type Runtime, useChange } from "../manage";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Changed, RuntimeFrame } from "../parts/runtime";
import { Table } from "../parts/table";
import type { Route } from "../router";

const LISTED = 200;

/** Model catalogue of one runtime, its security posture, and a reload of its configuration. */
export function Models({ route }: { route: Route }) {
  return (
    <RuntimeFrame route={route} title="Models and security">
      {(runtime) => <><Catalogue runtime={runtime} /><Posture runtime={runtime} /></>}
    </RuntimeFrame>
  );
}

function Catalogue({ runtime }: { runtime: Runtime }) {
  const models = useLoad(() => ifSupported(runtime.models()), [runtime]);
  const [search, setSearch] = useState("");
  const found = (models.data ?? []).filter((model) => `${model.modelId} ${model.name ?? ""} ${model.provider ?? ""}`.toLowerCase().includes(search.toLowerCase()));
  const listed = found.slice(0, LISTED);
  return (
    <>
      <Problem error={models.error} />
      {models.data === undefined && !models.error && <Skeleton lines={6} />}
      {models.data?.length === 0 && <Empty>The runtime offers no models.</Empty>}
      {models.data && models.data.length > 0 && (
        <section class="stack" aria-labelledby="catalogue">
          <h2 id="catalogue">Catalogue</h2>
          <label>Containing <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></label>
          <Table label="Models" heads={["Model", "Name", "Maker"]}>
            {listed.map((model, index) => (
              <tr key={`${model.modelId} ${index}`}><td class="id"><code>{model.modelId}</code></td><td>{model.name}</td><td>{model.provider}</td></tr>
            ))}
          </Table>
          {found.length > listed.length && <p class="dim small">{plural(found.length - listed.length, "more model")}; narrow the search.</p>}
        </section>
      )}
    </>
  );
}

function Posture({ runtime }: { runtime: Runtime }) {
  const posture = useLoad(() => ifSupported(runtime.securityPosture()), [runtime]);
  const change = useChange(runtime);
  if (posture.data === null) return null;
  const sandboxed = posture.data?.sandboxed;
  const said = ({ changed, notes }: ReloadReport) => [changed ? "Reloaded; settings changed." : "Reloaded; nothing changed.", ...(notes ?? []).map((note) => `${note}.`)].join(" ");
  return (
    <section class="stack" aria-labelledby="posture">
      <div class="title">
        <h2 id="posture">Security posture</h2>
        {posture.data && <Badge state={sandboxed ? "ok" : "degraded"} label={sandboxed ? "sandboxed" : sandboxed === false ? "not sandboxed" : "sandbox not reported"} />}
        {posture.data && canCall(runtime, "reloadConfig") && (
          <div class="actions">
            <Ask small label="Reload configuration" title={`Reload the configuration of ${runtime.provider}?`} yes="Reload it" disabled={change.busy} act={() => change.run("reloadConfig", () => runtime.reloadConfig(), (report) => { posture.reload(); return said(report); })}>
              The runtime reads its settings again. Settings that need a restart are named.
            </Ask>
          </div>
        )}
      </div>
      <Problem error={posture.error} />
      {posture.data?.findings?.length === 0 && <Empty>The runtime reports no findings.</Empty>}
      <ol class="attempts" aria-label="Findings">
        {posture.data?.findings?.map((finding, index) => <li key={index}><Badge state={finding.severity} /> <span class="id">{finding.message}</span></li>)}
      </ol>
      <Changed change={change} />
    </section>
  );
}
