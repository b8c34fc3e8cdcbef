import type { DispatchFilter } from "@forge-bridge/client";
import { firstFull, useLoad, useReloadOn } from "../load";
import { Field } from "../parts/field";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Pager } from "../parts/pager";
import { DispatchTable } from "../parts/tables";
import { link, type Route, setQuery } from "../router";
import { bridge } from "../session";

const STATES = ["queued", "running", "ok", "error"];
/** Hours to look back, and their labels. */
const SINCE: [string, string][] = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"]];
const FILTERS = ["status", "provider", "agentId", "runId", "hours"];

export function Dispatches({ route }: { route: Route }) {
  const ask = (name: string) => route.query.get(name) ?? undefined;
  const filter = { status: ask("status"), provider: ask("provider"), agentId: ask("agentId"), runId: ask("runId"), cursor: ask("cursor") };
  const hours = ask("hours");
  const load = () => {
    const since = hours && new Date(Date.now() - Number(hours) * 3_600_000).toISOString();
    return firstFull((cursor) => bridge.dispatches({ ...filter, ...(since && { since }), limit: 50, cursor } as DispatchFilter), filter.cursor);
  };
  const page = useLoad(load, [...Object.values(filter), hours], undefined, "dispatches");
  const adapters = useLoad(() => bridge.adapters(), []);
  useReloadOn(["execution."], () => filter.cursor || page.reload());
  const put = (name: string) => (text: string) => setQuery(route, { [name]: text, cursor: undefined });
  const set = (name: string) => (event: Event) => put(name)((event.currentTarget as HTMLSelectElement).value);
  const filtered = FILTERS.some((name) => ask(name));
  return (
    <>
      <h1>Dispatches</h1>
      <form class="filters" role="search" aria-label="One dispatch" onSubmit={(event) => { event.preventDefault(); find(event.currentTarget); }}>
        <label class="grow">Task or dispatch id <input name="id" type="search" placeholder="review-42, or dsp_…" /></label>
        <button type="submit">Open</button>
      </form>
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <label>
          State
          <select value={filter.status ?? ""} onChange={set("status")}>
            <option value="">all</option>
            {STATES.map((state) => <option key={state} value={state}>{state}</option>)}
          </select>
        </label>
        <label>
          Adapter
          <Field list="adapters" value={filter.provider ?? ""} commit={put("provider")} />
          <datalist id="adapters">{adapters.data?.adapters.map(({ provider }) => <option key={provider} value={provider} />)}</datalist>
        </label>
        <label>Agent <Field value={filter.agentId ?? ""} commit={put("agentId")} /></label>
        <label>Run <Field value={filter.runId ?? ""} commit={put("runId")} /></label>
        <label>
          Accepted
          <select value={hours ?? ""} onChange={set("hours")}>
            <option value="">any time</option>
            {SINCE.map(([value, label]) => <option key={value} value={value}>{label}</option>)}
          </select>
        </label>
        {filtered && <a class="button" href={link("dispatches")}>Show all</a>}
      </form>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={12} />}
      {page.data?.items.length ? <DispatchTable items={page.data.items} label="Dispatches" /> : null}
      {page.data?.items.length === 0 && !page.data.nextCursor && (
        <Empty>{filtered ? "No matches." : <>No dispatches yet. <a href={link("try")}>Send one</a>.</>}</Empty>
      )}
      <Pager route={route} next={page.data?.nextCursor} shown={page.data?.items.length ?? 0} />
    </>
  );
}

function find(form: HTMLFormElement): void {
  const id = String(new FormData(form).get("id") ?? "").trim();
  if (id) location.hash = link("dispatch", id);
}
