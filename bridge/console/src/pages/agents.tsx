import { useState } from "preact/hooks";
import { useLoad } from "../load";
import { canCall, ifSupported, type Runtime, useChange } from "../manage";
import { Ask } from "../parts/ask";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Changed, RuntimeFrame } from "../parts/runtime";
import { Table } from "../parts/table";
import { link, type Route } from "../router";
import { AgentPage } from "./agent";

/** Agents of one runtime, or one of them. */
export function Agents({ route }: { route: Route }) {
  const { id } = route;
  return (
    <RuntimeFrame route={route} title={id ? `Agent ${id}` : "Agents"}>
      {(runtime) => (id ? <AgentPage runtime={runtime} id={id} /> : <List runtime={runtime} />)}
    </RuntimeFrame>
  );
}

function List({ runtime }: { runtime: Runtime }) {
  const agents = useLoad(() => ifSupported(runtime.agents()), [runtime]);
  const { provider } = runtime;
  // Many runtimes leave them out of the list.
  const hasInstructions = agents.data?.some((agent) => agent.systemPrompt);
  return (
    <>
      <Problem error={agents.error} />
      {agents.data === undefined && !agents.error && <Skeleton lines={4} />}
      {agents.data === null && <Empty>The adapter {provider} lists no agents.</Empty>}
      {agents.data?.length === 0 && <Empty>The runtime has no agents.</Empty>}
      {agents.data && agents.data.length > 0 && (
        <Table label="Agents" heads={["Agent", "Name", "Model", hasInstructions && "Instructions"]}>
          {agents.data.map((agent) => (
            <tr key={agent.agentId}>
              <td class="name" title={agent.agentId}><a href={link("agents", agent.agentId, { provider })}>{agent.agentId}</a></td>
              <td class="cut" title={agent.name}>{agent.name ?? <span class="dim">not reported</span>}</td>
              <td class="cut" title={agent.model}>{agent.model ?? <span class="dim">not reported</span>}</td>
              {hasInstructions && <td class="cut">{agent.systemPrompt}</td>}
            </tr>
          ))}
        </Table>
      )}
      {canCall(runtime, "createAgent") && <NewAgent runtime={runtime} changed={agents.reload} />}
    </>
  );
}

const NEW = { agentId: "", name: "", model: "", systemPrompt: "" };

function NewAgent({ runtime, changed }: { runtime: Runtime; changed: () => void }) {
  const [form, setForm] = useState(NEW);
  const change = useChange(runtime);
  const set = (name: keyof typeof NEW) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  const { agentId } = form;
  const given = Object.fromEntries(Object.entries(form).filter(([, value]) => value !== ""));
  const create = () => change.run("createAgent", () => runtime.createAgent({ ...given, agentId }), () => {
    setForm(NEW);
    changed();
    return `Created ${agentId}.`;
  });
  return (
    <section aria-labelledby="new-agent">
      <details>
        <summary id="new-agent">New agent</summary>
        <div class="stack">
          <div class="pair">
            <label>Id <input value={agentId} onInput={set("agentId")} /></label>
            <label>Name <input value={form.name} onInput={set("name")} placeholder="as the id" /></label>
          </div>
          <label>Model <input value={form.model} onInput={set("model")} placeholder="the runtime's default" /></label>
          <label>Instructions <textarea rows={4} value={form.systemPrompt} onInput={set("systemPrompt")} /></label>
          <Changed change={change} />
          <div class="actions">
            <Ask label="Create" name="Create the agent" title={`Create ${agentId}?`} yes="Create it" disabled={!agentId || change.busy} act={create}>
              The agent is created in the runtime of {runtime.provider}. Dispatches to {agentId} can then be routed there.
            </Ask>
          </div>
        </div>
      </details>
    </section>
  );
}
