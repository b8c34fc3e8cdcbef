import type { Dispatch } from "@forge-bridge/client";
import { useNow } from "../clock";
import { dollars, duration, number, plural } from "../format";
import { firstFull, useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { DispatchTable } from "../parts/tables";
import { Waterfall } from "../parts/waterfall";
import { link } from "../router";
import { bridge } from "../session";
import type { Span } from "../spans";

/** Dispatches of a run that are shown, the newest ones. */
const MOST = 100;
async function load(runId: string): Promise<{ items: Dispatch[]; more: boolean }> {
  const page = await firstFull((cursor) => bridge.dispatches({ runId, limit: MOST, ...(cursor && { cursor }) }), undefined);
  return { items: page.items, more: page.nextCursor !== null };
}

/**
 * Dispatches that callers have given the same `runId`, or those of a run on a repository: one below the other, and their
 * sums. `unknown` is the error of the bridge if there is no such run.
 */
export function RunDispatches({ id, unknown }: { id: string; unknown: unknown }) {
  const isRun = unknown === undefined;
  const page = useLoad(() => load(id), [id], undefined, "run");
  useReloadOn(["execution.accepted", "execution.started", "execution.completed", "execution.failed"], page.reload);
  const items = page.data?.items ?? [];
  const isOpen = items.some((dispatch) => dispatch.status !== "finished");
  return (
    <>
      <div class="title"><h1>{isRun ? "Dispatches of the run" : id}</h1> {items.length > 0 && <Badge state={isOpen ? "running" : "ended"} />}</div>
      {isRun && <p><a href={link("run", id)}>The run</a> <code class="id">{id}</code></p>}
      <Problem error={page.error ?? (page.data && items.length === 0 ? unknown : undefined)} />
      {!page.data && !page.error && <Skeleton lines={12} />}
      {page.data && items.length === 0 && <Empty>No dispatch has this run id, either. <a href={link("runs")}>All runs</a></Empty>}
      {items.length > 0 && (
        <>
          {page.data?.more && <p class="notice warn">Only the newest {plural(MOST, "dispatch", "dispatches")} are shown and added up.</p>}
          <Sums items={items} />
          <section aria-labelledby="waterfall">
            <h2 id="waterfall">Waterfall</h2>
            <Waterfall spans={items.slice().reverse().flatMap(bars)} label="Waterfall of the run" />
          </section>
          <DispatchTable items={items} label="Dispatches" />
        </>
      )}
    </>
  );
}

function Sums({ items }: { items: Dispatch[] }) {
  const isOpen = items.some((dispatch) => dispatch.status !== "finished");
  const now = useNow(isOpen);
  const first = Math.min(...items.map((dispatch) => Date.parse(dispatch.acceptedAt)));
  const last = isOpen ? now : Math.max(...items.map((dispatch) => Date.parse(dispatch.finishedAt ?? dispatch.acceptedAt)));
  const priced = items.filter((dispatch) => typeof dispatch.usage?.costUsd === "number");
  const cost = priced.reduce((all, dispatch) => all + (dispatch.usage?.costUsd ?? 0), 0);
  const failed = items.filter((dispatch) => dispatch.outcome === "error").length;
  const facts: [string, string][] = [
    ["dispatches", number(items.length)],
    ["failed", number(failed)],
    ["took", duration(last - first)],
    ["tokens", number(items.reduce((all, dispatch) => all + tokens(dispatch), 0))],
    [priced.length === items.length || priced.length === 0 ? "cost" : `cost of ${number(priced.length)} that report it`, dollars(priced.length ? cost : null)],
  ];
  return (
    <div class="figures">
      {facts.map(([name, value]) => <div key={name} class={name === "failed" && failed ? "figure bad" : "figure"}><b class="number">{value}</b><span>{name}</span></div>)}
    </div>
  );
}

function tokens({ usage }: Dispatch): number {
  return (usage?.inputTokens ?? 0) + (usage?.outputTokens ?? 0);
}

/** Wait and execution of one dispatch. */
function bars(dispatch: Dispatch): Span[] {
  const { dispatchId: key, taskId, runId, acceptedAt, startedAt, finishedAt, usage, provider } = dispatch;
  // Tasks of a run on a repository begin with its id.
  const name = taskId.startsWith(`${runId}/`) ? taskId.slice(`${runId}/`.length) : taskId;
  const href = link("dispatch", key);
  const from = Date.parse(startedAt ?? acceptedAt);
  const to = finishedAt ? Date.parse(finishedAt) : undefined;
  const waited: Span = { key: `${key} wait`, name: "queued", kind: "wait", depth: 1, from: Date.parse(acceptedAt), to: from };
  const ran: Span = {
    key,
    name,
    href,
    kind: startedAt ? "attempt" : "wait",
    depth: 0,
    from,
    to,
    tokens: tokens(dispatch) || undefined,
    costUsd: usage?.costUsd,
    note: dispatch.errorCode ?? provider,
    bad: dispatch.outcome === "error",
  };
  // A short wait is no news.
  return startedAt && from - Date.parse(acceptedAt) > 1000 ? [ran, waited] : [ran];
}
