import { BridgeError, type DispatchFilter } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { firstFull, useLoad, useReloadOn } from "../load";
import { Choice, Field } from "../parts/field";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Pager } from "../parts/pager";
import { DispatchTable } from "../parts/tables";
import { link, type Route, setQuery } from "../router";
import { bridge } from "../session";

const STATES = ["queued", "running", "ok", "error"];
/** Hours to look back, and their labels. */
const SINCE: [string, string][] = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"]];
const CALLBACKS = ["pending", "delivered", "dead", "superseded"];
const FILTERS = ["status", "callback", "provider", "agentId", "runId", "taskPrefix", "hours"];

/** Values that are their own labels. */
const same = (values: string[]): [string, string][] => values.map((value) => [value, value]);

export function Dispatches({ route }: { route: Route }) {
  const ask = (name: string) => route.query.get(name) ?? undefined;
  const filter = { status: ask("status"), provider: ask("provider"), agentId: ask("agentId"), runId: ask("runId"), callback: ask("callback"), taskPrefix: ask("taskPrefix"), cursor: ask("cursor") };
  const hours = ask("hours");
  const load = () => {
    const since = hours && new Date(Date.now() - Number(hours) * 3_600_000).toISOString();
    return firstFull((cursor) => bridge.dispatches({ ...filter, ...(since && { since }), limit: 50, cursor } as DispatchFilter), filter.cursor);
  };
  const page = useLoad(load, [...Object.values(filter), hours], undefined, "dispatches");
  const put = (name: string) => (text: string) => setQuery(route, { [name]: text, cursor: undefined });
  const adapters = useLoad(() => bridge.adapters(), []);
  const providers = [...new Set([...(adapters.data?.adapters ?? []).map(({ provider }) => provider), ...(filter.provider ? [filter.provider] : [])])];
  const [problem, setProblem] = useState<unknown>();
  /** Opens a dispatch, or lists those whose task id begins with the text. */
  const find = async (form: HTMLFormElement) => {
    const text = String(new FormData(form).get("id") ?? "").trim();
    if (!text) return;
    const known = await bridge.show(text).then(() => true, (error: unknown) => {
      if (error instanceof BridgeError && error.status === 404) return false;
      throw error;
    });
    if (known) location.hash = link("dispatch", text);
    else put("taskPrefix")(text);
  };
  useReloadOn(["execution."], () => filter.cursor || page.reload());
  const filtered = FILTERS.some((name) => ask(name));
  return (
    <>
      <h1>Dispatches</h1>
      <form class="filters" role="search" aria-label="One dispatch" onSubmit={(event) => { event.preventDefault(); setProblem(undefined); find(event.currentTarget).catch(setProblem); }}>
        <label class="grow">Task or dispatch id <input name="id" type="search" placeholder="review-42, its first letters, or dsp_…" /></label>
        <button type="submit">Find</button>
      </form>
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label="State" all="all" value={filter.status} options={same(STATES)} commit={put("status")} />
        <Choice label="Callback" all="all" value={filter.callback} options={same(CALLBACKS)} commit={put("callback")} />
        <Choice label="Adapter" all="all" value={filter.provider} options={same(providers)} commit={put("provider")} />
        <label>Agent <Field value={filter.agentId ?? ""} commit={put("agentId")} /></label>
        <label>Run <Field value={filter.runId ?? ""} commit={put("runId")} /></label>
        <Choice label="Accepted" all="any time" value={hours} options={SINCE} commit={put("hours")} />
        {filtered && <a class="button" href={link("dispatches")}>Show all</a>}
      </form>
      <Problem error={problem ?? page.error} />
      {filter.taskPrefix && <p>Tasks that begin with <b>{filter.taskPrefix}</b>.</p>}
      {!page.data && !page.error && <Skeleton lines={12} />}
      {page.data?.items.length ? <DispatchTable items={page.data.items} label="Dispatches" /> : null}
      {page.data?.items.length === 0 && !page.data.nextCursor && (
        <Empty>{filtered ? "No matches." : <>No dispatches yet. <a href={link("try")}>Send one</a>.</>}</Empty>
      )}
      <Pager route={route} next={page.current ? page.data?.nextCursor : undefined} shown={page.data?.items.length ?? 0} />
    </>
  );
}
