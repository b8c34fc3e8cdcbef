import type { RunFilter, RunStatus, RunSummary } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { duration, millis } from "../format";
import { firstFull, useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Choice, Field } from "../parts/field";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Pager } from "../parts/pager";
import { Table } from "../parts/table";
import { Time } from "../parts/time";
import { link, type Route, setQuery } from "../router";
import { forge } from "../session";
import { name } from "./run";

const STATES: RunStatus[] = ["planning", "plan_review", "executing", "paused", "completed", "failed", "cancelled"];

/** Runs, newest first, and a form that starts one. */
export function Runs({ route }: { route: Route }) {
  const status = (route.query.get("status") ?? undefined) as RunStatus | undefined;
  const cursor = route.query.get("cursor") ?? undefined;
  const load = () => firstFull((cursor) => forge.listRuns({ status, limit: 50, cursor } as RunFilter), cursor);
  const page = useLoad(load, [status, cursor], undefined, "runs");
  useReloadOn(["run.", "plan."], () => cursor || page.reload());
  return (
    <>
      <h1>Runs</h1>
      <Start known={page.data?.items ?? []} />
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label="State" all="all" value={status} options={STATES.map((state) => [state, state.replace("_", " ")])} commit={(value) => setQuery(route, { status: value, cursor: undefined })} />
        {status && <a class="button" href={link("runs")}>Show all</a>}
        <label class="grow">Run id of dispatches <Field type="search" value="" commit={(id) => { if (id) location.hash = link("run", id); }} placeholder="runId that their callers gave" /></label>
      </form>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={8} />}
      {page.data?.items.length ? <RunTable items={page.data.items} /> : null}
      {page.data?.items.length === 0 && !page.data.nextCursor && <Empty>{status ? "No matches." : "No runs yet."}</Empty>}
      <Pager route={route} next={page.current ? page.data?.nextCursor : undefined} shown={page.data?.items.length ?? 0} />
    </>
  );
}

function RunTable({ items }: { items: RunSummary[] }) {
  return (
    <Table label="Runs" heads={["Repository", "State", "Run", "Model", "Created", ["Took", "right"]]}>
      {items.map((run) => (
        <tr key={run.runId}>
          <td class="name" title={run.repoUrl ?? ""}><a href={link("run", run.runId)}>{name(run.repoUrl)}</a></td>
          <td><Badge state={run.status} label={run.status.replace("_", " ")} /></td>
          <td><code>{run.runId}</code></td>
          <td class="cut">{run.model}</td>
          <td><Time at={run.createdAt} /></td>
          <td class="number right">{duration(millis(run.createdAt, run.completedAt ?? undefined))}</td>
        </tr>
      ))}
    </Table>
  );
}

const NEW = { repoUrl: "", message: "", model: "", ref: "", provider: "", planReview: false };

/** Starts a run, with the first message of its interview; offers the repositories of `known` runs. */
function Start({ known }: { known: RunSummary[] }) {
  const [form, setForm] = useState(NEW);
  const [problem, setProblem] = useState<unknown>();
  const [sending, setSending] = useState(false);
  const set = (name: keyof typeof NEW) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  const start = async () => {
    const { repoUrl, planReview, ...texts } = form;
    const given = Object.fromEntries(Object.entries(texts).filter(([, value]) => value.trim() !== ""));
    const { runId } = await forge.createRun(repoUrl, { ...given, ...(planReview && { planReview }) });
    location.hash = link("run", runId);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    setSending(true);
    start().catch(setProblem).finally(() => setSending(false));
  };
  return (
    <form class="stack" aria-label="New run" onSubmit={submit}>
      <div class="pair">
        <label>
          Repository
          <input list="repositories" value={form.repoUrl} onInput={set("repoUrl")} placeholder="https://github.com/org/repo" required />
          <datalist id="repositories">{[...new Set(known.map((run) => run.repoUrl))].map((url) => url && <option key={url} value={url} />)}</datalist>
        </label>
        <label>Model <input value={form.model} onInput={set("model")} placeholder="runs.model of the configuration" /></label>
      </div>
      <label>First message to the Captain <textarea rows={2} value={form.message} onInput={set("message")} placeholder="what to build; can be sent later" /></label>
      <details>
        <summary>More</summary>
        <div class="stack">
          <div class="pair">
            <label>Branch, tag or commit <input value={form.ref} onInput={set("ref")} placeholder="the default branch" /></label>
            <label>Adapter <input value={form.provider} onInput={set("provider")} placeholder="runs.provider of the configuration" /></label>
          </div>
          <label class="check"><input type="checkbox" checked={form.planReview} onChange={(event) => setForm({ ...form, planReview: event.currentTarget.checked })} /> Approve the plan before it is executed</label>
        </div>
      </details>
      <Problem error={problem} />
      <div class="actions"><button type="submit" class="primary" disabled={sending}>Start a run</button></div>
    </form>
  );
}
