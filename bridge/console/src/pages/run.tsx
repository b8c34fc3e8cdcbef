import { BridgeError, type RunState, type TaskStatus } from "@forge-bridge/client";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useNow } from "../clock";
import { dollars, duration, millis, number, plural, rough } from "../format";
import { useLoad, useSoon } from "../load";
import { Artifacts } from "../parts/artifacts";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Changes } from "../parts/changes";
import { Id } from "../parts/copy";
import { Graph } from "../parts/graph";
import { Interview } from "../parts/interview";
import { Problem, Skeleton } from "../parts/notice";
import { Table } from "../parts/table";
import { TaskPanel } from "../parts/task";
import { Time } from "../parts/time";
import { link, type Route } from "../router";
import { append, EMPTY, type RunLog } from "../run-log";
import { forge } from "../session";
import { useStream } from "../stream";
import { RunDispatches } from "./run-dispatches";

/** Events that change nothing of the record but its last event. */
const QUIET = ["task.progress", "task.heartbeat", "tool.call", "tool.result"];

const STATES: TaskStatus[] = ["PENDING", "RUNNING", "DONE", "MERGE_READY", "MERGED", "FAILED", "STALE"];

/** One run, from the interview to the proved merge, updated live. */
export function RunPage({ route, id }: { route: Route; id: string }) {
  const record = useLoad(() => forge.getRun(id), [id]);
  const [log, setLog] = useState(EMPTY);
  const [problem, setProblem] = useState<unknown>();
  const soon = useSoon(record.reload);
  const streamError = useStream((start) => forge.streamEvents(id, start), (event) => event.eventId, (events) => {
    setLog((last) => append(last, events));
    if (events.some((event) => !QUIET.includes(String(event.type)))) soon();
  }, [id]);
  const isUnknown = record.error instanceof BridgeError && record.error.status === 404;
  if (isUnknown || route.query.has("dispatches")) return <RunDispatches id={id} unknown={record.error} />;
  if (!record.data) {
    return (
      <>
        <h1>Run</h1>
        <Problem error={record.error} />
        {record.error ? <p><a href={link("runs")}>All runs</a></p> : <Skeleton lines={12} />}
      </>
    );
  }
  const run = record.data;
  const act = (action: (id: string) => Promise<void>) => {
    setProblem(undefined);
    action.call(forge, id).then(record.reload, setProblem);
  };
  // The record can be older than the last events, or newer than those read so far.
  const statusOf = (task: string) => (log.seq > run.lastEventSeq && log.statuses.get(task)) || run.tasks[task]?.status || "PENDING";
  const task = route.query.get("task") ?? undefined;
  const nodes = run.dag.nodes;
  const isPlanning = run.status === "planning";
  return (
    <>
      <div class="title">
        <h1>{name(run.repoUrl)}</h1> <Badge state={run.status} label={run.status.replace("_", " ")} />
        <Actions run={run} act={act} />
      </div>
      <Problem error={problem ?? streamError ?? record.error} />
      {run.error && <p class="notice bad">{run.error}</p>}
      {run.status === "paused" && <p class="notice warn">Paused: nothing new starts.{run.activeCRs.length > 0 && ` ${plural(run.activeCRs.length, "change request")} open.`}</p>}
      {run.status === "plan_review" && <p class="notice warn">The plan waits for your approval. Reopen it to continue the interview.</p>}
      {(run.activeCRs.length > 0 || log.changes > 0) && <Changes runId={id} version={log.changes} />}
      {nodes.length > 0 && (
        <section aria-labelledby="plan">
          <div class="title">
            <h2 id="plan">Plan</h2>
            {STATES.map((state) => [state, nodes.filter((node) => statusOf(node.id) === state).length] as const).map(([state, count]) => count > 0 && <Badge key={state} state={state} label={`${number(count)} ${state}`} />)}
          </div>
          <Graph runId={id} nodes={nodes} tasks={run.tasks} status={statusOf} selected={task} />
        </section>
      )}
      <div class="columns">
        <div>
          {task !== undefined && run.tasks[task] && <TaskPanel key={task} run={run} id={task} status={statusOf(task)} log={log} changed={record.reload} />}
          {isPlanning && <Interview runId={id} status={run.status} lines={log.lines} />}
          <Merges run={run} log={log} />
          {!isPlanning && <Interview runId={id} status={run.status} lines={log.lines} />}
        </div>
        <div>
          <Facts run={run} />
          <Artifacts runId={id} artifacts={run.artifacts} selected={route.query.get("artifact") ?? undefined} />
        </div>
      </div>
    </>
  );
}

function Actions({ run, act }: { run: RunState; act: (action: (id: string) => Promise<void>) => void }) {
  if (run.completedAt !== null) return null;
  return (
    <div class="actions">
      {run.status === "plan_review" && (
        <>
          <button type="button" class="primary" onClick={() => act(forge.approvePlan)}>Approve the plan</button>
          <button type="button" onClick={() => act(forge.reopenPlan)}>Reopen the plan</button>
        </>
      )}
      {run.status === "paused" ? <button type="button" onClick={() => act(forge.resumeRun)}>Resume</button> : <button type="button" onClick={() => act(forge.pauseRun)}>Pause</button>}
      <Ask label="Cancel" title="Cancel this run?" yes="Cancel it" act={() => act(forge.cancelRun)}>
        Its agents are cancelled and the run ends. Branches that were pushed stay in the repository.
      </Ask>
    </div>
  );
}

/** Last part of the path of a repository, without `.git`. */
export function name(repoUrl: string | null): string {
  return repoUrl?.replace(/\/+$/, "").split("/").at(-1)?.replace(/\.git$/, "") || "Run";
}

/** Proof of each merge: how its inputs were found in the commit that was read back. */
function Merges({ run, log }: { run: RunState; log: RunLog }) {
  if (log.merges.length === 0) return null;
  return (
    <section class="stack" aria-labelledby="merges">
      <h2 id="merges">Merge proof</h2>
      <p class="dim">Read back from <code class="id">{run.target}</code> after the push.</p>
      {log.merges.map(({ at, data }) => (
        <div key={data.taskId + data.resultRef}>
          <p><a href={link("run", run.runId, { task: data.taskId })}>{data.taskId}</a> <Time at={at} />, result <code class="id">{data.resultRef}</code></p>
          <Table label={`Proof of ${data.taskId}`} heads={["Branch", "Commit", "In the result as"]}>
            {data.proof.map(({ branch, commit, by }) => <tr key={branch}><td class="name" title={branch}><code>{branch}</code></td><td title={commit}><code>{commit.slice(0, 12)}</code></td><td>{by}</td></tr>)}
          </Table>
        </div>
      ))}
    </section>
  );
}

function Facts({ run }: { run: RunState }) {
  const now = useNow(run.completedAt === null);
  const facts: [string, ComponentChildren][] = [
    ["Repository", run.repoUrl],
    ["Begins at", run.commit && <>{run.ref}, <code title={run.commit}>{run.commit.slice(0, 12)}</code></>],
    ["Target", <code>{run.target}</code>],
    ["Model", run.model],
    ["Created", <Time at={run.createdAt} />],
    ["Executed", run.startedAt && <Time at={run.startedAt} />],
    ["Took", run.completedAt ? duration(millis(run.createdAt, run.completedAt)) : rough(Math.max(0, now - Date.parse(run.createdAt)))],
    ["Tokens", number(run.tokens)],
    ["Cost", dollars(run.costUsd)],
    ["Dispatches", <a href={link("run", run.runId, { dispatches: "all" })}>waterfall of the run</a>],
    ["Run", <Id value={run.runId} name="the run id" />],
    ["Trace", run.traceId && <Id value={run.traceId} name="the trace id" />],
  ];
  return (
    <section aria-labelledby="facts">
      <h2 id="facts">Record</h2>
      <dl>{facts.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
    </section>
  );
}
