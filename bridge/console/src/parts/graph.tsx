import type { GraphNode, RunTask, TaskStatus } from "@forge-bridge/client";
import { useMemo } from "preact/hooks";
import { layout, NODE } from "../layout";
import { link } from "../router";
import { tone } from "./badge";

interface Properties {
  runId: string;
  nodes: GraphNode[];
  tasks: Record<string, RunTask>;
  status: (task: string) => TaskStatus;
  selected: string | undefined;
}

/** Plan as a graph; each node is a link to its task. */
export function Graph({ runId, nodes, tasks, status, selected }: Properties) {
  const shape = JSON.stringify(nodes.map(({ id, dependencies }) => [id, dependencies]));
  const { edges, nodes: placed, width, height } = useMemo(() => layout(nodes), [shape]);
  return (
    <div class="scroll graph" tabIndex={0} role="region" aria-label="Graph of the tasks">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label="Tasks, dependencies first">
        {edges.map(({ from, to, path }) => <path key={`${from} ${to}`} d={path} class={from === selected || to === selected ? "near" : ""} />)}
        {placed.map(({ node: { id, agentType }, x, y }) => {
          const state = status(id);
          const title = tasks[id]?.title ?? id;
          const attempt = Number(tasks[id]?.attemptId ?? 1);
          const isRefinery = agentType === "refinery";
          const more = [state, isRefinery && "refinery", attempt > 1 && `attempt ${attempt}`].filter(Boolean).join(" · ");
          return (
            <a key={id} href={link("run", runId, { task: id })} class={`${tone(state)} ${state}`} aria-current={id === selected ? "true" : undefined}>
              <rect x={x} y={y} width={NODE.width} height={NODE.height} rx={isRefinery ? NODE.height / 2 : 8} />
              <foreignObject x={x} y={y} width={NODE.width} height={NODE.height}>
                <div class={isRefinery ? "node round" : "node"} title={id}><b>{title}</b> <span>{more}</span></div>
              </foreignObject>
            </a>
          );
        })}
      </svg>
    </div>
  );
}
