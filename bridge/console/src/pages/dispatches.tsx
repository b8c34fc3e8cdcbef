import type { DispatchFilter } from "@forge-bridge/client";
import { useLoad, useReloadOn } from "../load";
import { Empty, Problem } from "../parts/notice";
import { Pager } from "../parts/pager";
import { DispatchTable } from "../parts/tables";
import { link, type Route, setQuery } from "../router";
import { bridge } from "../session";

const STATES = ["queued", "running", "ok", "error"];

export function Dispatches({ route }: { route: Route }) {
  const ask = (name: string) => route.query.get(name) ?? undefined;
  const filter = { status: ask("status"), provider: ask("provider"), agentId: ask("agentId"), runId: ask("runId"), cursor: ask("cursor") };
  const page = useLoad(() => bridge.dispatches({ ...filter, limit: 50 } as DispatchFilter), Object.values(filter));
  useReloadOn(["execution."], () => filter.cursor || page.reload());
  const set = (name: string) => (event: Event) =>
    setQuery(route, { [name]: (event.currentTarget as HTMLInputElement).value, cursor: undefined });
  return (
    <>
      <h1>Dispatches</h1>
      <form class="filters" role="search" onSubmit={(event) => { event.preventDefault(); find(event.currentTarget); }}>
        <label>Task or dispatch id <input name="id" type="search" /></label>
        <button type="submit">Open</button>
        <label>
          State
          <select value={filter.status ?? ""} onChange={set("status")}>
            <option value="">all</option>
            {STATES.map((state) => <option key={state} value={state}>{state}</option>)}
          </select>
        </label>
        <label>Adapter <input value={filter.provider ?? ""} onChange={set("provider")} /></label>
        <label>Agent <input value={filter.agentId ?? ""} onChange={set("agentId")} /></label>
        <label>Run <input value={filter.runId ?? ""} onChange={set("runId")} /></label>
      </form>
      <Problem error={page.error} />
      {page.data && (page.data.items.length ? <DispatchTable items={page.data.items} label="Dispatches" /> : <Empty>None like that.</Empty>)}
      <Pager route={route} next={page.data?.nextCursor} />
    </>
  );
}

function find(form: HTMLFormElement): void {
  const id = String(new FormData(form).get("id") ?? "").trim();
  if (id) location.hash = link("dispatch", id);
}
