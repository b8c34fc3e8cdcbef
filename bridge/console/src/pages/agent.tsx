import type { Agent, ChannelBinding } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { json } from "../format";
import { useLoad } from "../load";
import { canCall, ifSupported, type Runtime, useChange } from "../manage";
import { Ask } from "../parts/ask";
import { Problem, Skeleton } from "../parts/notice";
import { Changed } from "../parts/runtime";
import { link } from "../router";
import { Files } from "./files";

/** One agent of a runtime: name, model, instructions, files and channel bindings. */
export function AgentPage({ runtime, id }: { runtime: Runtime; id: string }) {
  const page = useLoad(() => read(runtime, id), [runtime, id]);
  const bindings = useLoad(() => ifSupported(runtime.bindings(id)), [runtime, id]);
  const [version, setVersion] = useState(0);
  const { provider } = runtime;
  const saved = () => {
    page.reload();
    setVersion((last) => last + 1);
  };
  return (
    <>
      <p><a href={link("agents", undefined, { provider })}>All agents of {provider}</a>, <a href={link("dispatches", undefined, { agentId: id })}>dispatches to it</a></p>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={6} />}
      {page.data && <Settings runtime={runtime} agent={page.data.agent} isWhole={page.data.isWhole} changed={saved} />}
      {page.data && <Files runtime={runtime} id={id} version={version} changed={page.reload} />}
      <Problem error={page.data && bindings.error} />
      {page.data && bindings.data && <Bindings runtime={runtime} id={id} bindings={bindings.data} changed={bindings.reload} />}
    </>
  );
}

/** Reads an agent; an adapter without the method has at least the entry of its list, which is not whole. */
async function read(runtime: Runtime, id: string): Promise<{ agent: Agent; isWhole: boolean }> {
  const whole = await ifSupported(runtime.agent(id));
  if (whole) return { agent: whole, isWhole: true };
  const listed = (await ifSupported(runtime.agents()))?.find((agent) => agent.agentId === id);
  if (!listed) throw new Error(`the runtime of ${runtime.provider} has no agent ${id}`);
  return { agent: listed, isWhole: false };
}

const FIELDS = ["name", "model", "systemPrompt"] as const;
type Form = Record<(typeof FIELDS)[number], string>;

function formOf(agent: Agent): Form {
  return { name: agent.name ?? "", model: agent.model ?? "", systemPrompt: agent.systemPrompt ?? "" };
}

/** Returns the agent with the fields of the form, further members stay. A field that was cleared is sent empty: one that is left out stays as it is. */
function edited(agent: Agent, form: Form): Agent {
  const next: Agent = { ...agent };
  for (const field of FIELDS) if (form[field] !== "" || agent[field]) next[field] = form[field];
  return next;
}

const LABELS: Form = { name: "name", model: "model", systemPrompt: "instructions" };

/** Result of a change, by the agent that the runtime has after it; line ends do not count. */
function savedText(form: Form, now: Agent | undefined): string {
  const plain = (text: string) => text.replaceAll("\r", "").trimEnd();
  const has = now && formOf(now);
  const kept = FIELDS.filter((field) => has && plain(has[field]) !== plain(form[field]));
  if (kept.length === 0) return "Saved.";
  return `Saved, but the runtime has ${kept.map((field) => `${has?.[field] ? "another" : "no"} ${LABELS[field]}`).join(" and ")}.`;
}

function Settings({ runtime, agent, isWhole, changed }: { runtime: Runtime; agent: Agent; isWhole: boolean; changed: () => void }) {
  const [form, setForm] = useState(formOf(agent));
  const change = useChange(runtime);
  const id = agent.agentId;
  const stored = JSON.stringify(formOf(agent));
  useEffect(() => setForm(formOf(agent)), [stored]);
  const isChanged = JSON.stringify(form) !== stored;
  const isEditable = isWhole && canCall(runtime, "updateAgent");
  const set = (name: keyof Form) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  const { agentId: _, name: _name, model: _model, systemPrompt: _prompt, ...others } = agent;
  const save = () => change.run("updateAgent", () => runtime.updateAgent(edited(agent, form)), (now) => { changed(); return savedText(form, now); });
  const remove = () => change.run("removeAgent", () => runtime.removeAgent(id), () => {
    location.hash = link("agents", undefined, { provider: runtime.provider });
    return `Removed ${id}.`;
  });
  return (
    <section class="stack" aria-labelledby="settings">
      <h2 id="settings">Settings</h2>
      <div class="pair">
        <label>Name <input value={form.name} onInput={set("name")} readOnly={!isEditable} /></label>
        <label>Model <input value={form.model} onInput={set("model")} readOnly={!isEditable} placeholder="the runtime's default" /></label>
      </div>
      {isWhole && <label>Instructions <textarea rows={8} value={form.systemPrompt} onInput={set("systemPrompt")} readOnly={!isEditable} /></label>}
      {Object.keys(others).length > 0 && (
        <details><summary>Other members</summary><pre class="said" tabIndex={0} aria-label="Other members of the agent">{json(others)}</pre></details>
      )}
      <Changed change={change} />
      <div class="actions">
        {canCall(runtime, "removeAgent") && (
          <Ask label="Remove" name={`Remove ${id}`} title={`Remove ${id}?`} yes="Remove it" disabled={change.busy} act={remove}>
            The runtime of {runtime.provider} removes the agent, with its files if it keeps them by agent. Dispatches to it are no longer routed there.
          </Ask>
        )}
        {isEditable && (
          <Ask label="Save" name={`Save ${id}`} title={`Save ${id}?`} yes="Save it" disabled={!isChanged || change.busy} act={save}>
            The agent is replaced in the runtime of {runtime.provider}; runs that begin from now use these settings.
          </Ask>
        )}
      </div>
    </section>
  );
}

/** Returns the bindings in a text, or undefined if it is not a JSON array of objects with a channel. */
function parse(text: string): ChannelBinding[] | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isBinding = (one: unknown) => typeof (one as ChannelBinding | null)?.channel === "string";
    return Array.isArray(value) && value.every(isBinding) ? (value as ChannelBinding[]) : undefined;
  } catch {
    return undefined;
  }
}

function Bindings({ runtime, id, bindings, changed }: { runtime: Runtime; id: string; bindings: ChannelBinding[]; changed: () => void }) {
  const stored = json(bindings);
  const [text, setText] = useState(stored);
  useEffect(() => setText(stored), [stored]);
  const change = useChange(runtime);
  const wanted = parse(text);
  const isEditable = canCall(runtime, "setBindings");
  const save = () => change.run("setBindings", () => runtime.setBindings(id, wanted ?? []), () => { changed(); return "Saved the bindings."; });
  return (
    <section class="stack" aria-labelledby="bindings">
      <h2 id="bindings">Channel bindings</h2>
      {bindings.length === 0 && <p class="dim">The agent answers on no channel of its own.</p>}
      <label>
        Bindings, as a JSON array
        <textarea class="code" rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} readOnly={!isEditable} aria-invalid={!wanted} aria-describedby="bindings-said" spellcheck={false} />
      </label>
      <p id="bindings-said" class={wanted ? "dim small" : "bad small"}>{wanted ? <>Each has a <code>channel</code>; other members are the runtime's.</> : "Not a JSON array of objects with a channel."}</p>
      <Changed change={change} />
      {isEditable && (
        <div class="actions">
          <Ask label="Save" name="Save the bindings" title={`Replace the bindings of ${id}?`} yes="Replace them" disabled={!wanted || text === stored || change.busy} act={save}>
            All bindings of the agent are replaced. Messages on these channels are then answered by {id}.
          </Ask>
        </div>
      )}
    </section>
  );
}
