import type { RunState, TaskStatus } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { useLoad } from "../load";
import { link } from "../router";
import type { RunLog } from "../run-log";
import { forge } from "../session";
import { Badge } from "./badge";
import { Id } from "./copy";
import { Empty, Problem } from "./notice";
import { Time } from "./time";
import { Timeline } from "./timeline";

interface Properties {
  run: RunState;
  id: string;
  status: TaskStatus;
  log: RunLog;
  changed: () => void;
}

/** One task of a run: its attempts with their dispatches, its walkthrough and its events. */
export function TaskPanel({ run, id, status, log, changed }: Properties) {
  const { runId } = run;
  const summary = run.tasks[id];
  const history = log.histories.get(id);
  // Agents and subtasks change with these events.
  const steps = history?.entries.filter(({ kind }) => kind.startsWith("agent.") || kind === "tool.result").length;
  const page = useLoad(() => forge.getTask(runId, id), [runId, id, status, summary?.attemptId, steps]);
  const [problem, setProblem] = useState<unknown>();
  const task = page.data;
  const isOpen = run.completedAt === null;
  const retry = () => {
    setProblem(undefined);
    forge.retryTask(runId, id).then(changed, setProblem);
  };
  return (
    <section class="stack" aria-labelledby="task">
      <div class="title">
        <h2 id="task">{summary?.title ?? id}</h2> <Badge state={status} />
        <div class="actions">
          {isOpen && (status === "FAILED" || status === "STALE") && <button type="button" class="small" onClick={retry}>Retry</button>}
          <a class="button small" href={link("run", runId)}>Close</a>
        </div>
      </div>
      <Problem error={problem ?? page.error} />
      <dl>
        <div><dt>Task</dt><dd><code>{id}</code>, {summary?.type === "refinery" ? "refinery" : `type ${summary?.type}`}</dd></div>
        {summary && summary.dependencies.length > 0 && (
          <div><dt>Waits for</dt><dd>{summary.dependencies.map((one, index) => <>{index > 0 && ", "}<a key={one} href={link("run", runId, { task: one })}>{one}</a></>)}</dd></div>
        )}
        {task?.changedFiles !== undefined && <div><dt>Changed</dt><dd>{task.changedFiles === 0 ? "nothing" : `${task.changedFiles} files`}</dd></div>}
        {summary?.commit && <div><dt>Commit</dt><dd><Id value={summary.commit} name="the commit" /></dd></div>}
      </dl>
      {summary?.error && status !== "MERGED" && <p class="notice bad">{summary.error}</p>}
      <h3>Attempts</h3>
      {!log.attempts.get(id)?.length && <Empty>None yet.</Empty>}
      <ol class="attempts" aria-label="Attempts">
        {log.attempts.get(id)?.map((attempt) => (
          <li key={attempt.id}>
            <span class="number dim">{attempt.id}</span> <Badge state={attempt.status} /> <Time at={attempt.since} />
            {attempt.branch && <code class="id">{attempt.branch}</code>}
            {attempt.dispatches.map((dispatch) => <a key={dispatch} class="id" href={link("dispatch", dispatch)}>{dispatch}</a>)}
            {attempt.error && <p class="bad">{attempt.error}</p>}
          </li>
        ))}
      </ol>
      {task && task.agents.length > 0 && (
        <>
          <h3>Agents</h3>
          <ol class="attempts" aria-label="Agents">
            {task.agents.map(({ agent, title, status, parent }) => <li key={agent}><span class="number dim">{agent}</span> <Badge state={status} /> {title} {parent ? <span class="dim">of agent {parent}</span> : null}</li>)}
          </ol>
        </>
      )}
      {task?.conflicts && <p class="notice warn">In conflict: {task.conflicts.join(", ")}</p>}
      {task?.leftOut && task.leftOut.length > 0 && (
        <>
          <h3>Left out</h3>
          <ul aria-label="Left out">
            {task.leftOut.map(({ path, reason }) => <li key={path}><code>{path}</code>: {reason}</li>)}
            {(task.leftOutCount ?? 0) > task.leftOut.length && <li>{(task.leftOutCount ?? 0) - task.leftOut.length} others</li>}
          </ul>
        </>
      )}
      {task?.subtasks && (
        <>
          <h3>Subtasks</h3>
          <ul class="subtasks" aria-label="Subtasks">{task.subtasks.map(({ title, done }, index) => <li key={index}>{done ? "☑" : "☐"} {title} <span class="hidden">{done ? "done" : "open"}</span></li>)}</ul>
        </>
      )}
      {task?.walkthrough && (
        <>
          <h3>Walkthrough</h3>
          <pre class="said" tabIndex={0} aria-label="Walkthrough">{task.walkthrough}</pre>
        </>
      )}
      {task && task.artifacts.length > 0 && <p class="dim">Artifacts: {task.artifacts.map((path, index) => <>{index > 0 && ", "}<a key={path} href={link("run", runId, { task: id, artifact: path })}>{path}</a></>)}</p>}
      <details open={status === "RUNNING"}>
        <summary>Events</summary>
        {history ? <Timeline history={history} since={run.startedAt ?? run.createdAt} label="Events of the task" /> : <Empty>None yet.</Empty>}
      </details>
    </section>
  );
}
