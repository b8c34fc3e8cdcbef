import type { Skill, SkillStatus } from "@forge-bridge/client";
import { useEffect, useState } from "preact/hooks";
import { plural } from "../format";
import { useLoad } from "../load";
import { canCall, ifSupported, type Runtime, useChange } from "../manage";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Changed, RuntimeFrame } from "../parts/runtime";
import type { Route } from "../router";

/** Each listed skill costs a request for its status. */
const LISTED = 50;
const AT_ONCE = 4;

/** Skills of one runtime, with their status. */
export function Skills({ route }: { route: Route }) {
  return <RuntimeFrame route={route} title="Skills">{(runtime) => <List runtime={runtime} />}</RuntimeFrame>;
}

function List({ runtime }: { runtime: Runtime }) {
  const skills = useLoad(() => ifSupported(runtime.skills()), [runtime]);
  const [search, setSearch] = useState("");
  const found = (skills.data ?? []).filter((skill) => `${skill.skillKey} ${skill.name ?? ""} ${skill.description ?? ""}`.toLowerCase().includes(search.toLowerCase()));
  const listed = found.slice(0, LISTED);
  const statuses = useStatuses(runtime, listed);
  return (
    <>
      <Problem error={skills.error} />
      {skills.data === undefined && !skills.error && <Skeleton lines={6} />}
      {skills.data === null && <Empty>The adapter {runtime.provider} lists no skills.</Empty>}
      {skills.data?.length === 0 && <Empty>The runtime has no skills.</Empty>}
      {skills.data && skills.data.length > 0 && (
        <section class="stack" aria-label="Skills of the runtime">
          <label>Containing <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} /></label>
          {listed.length === 0 && <Empty>No matches.</Empty>}
          <ol class="attempts" aria-label="Skills">
            {listed.map((skill) => (
              <Row key={skill.skillKey} runtime={runtime} skill={skill} status={statuses.known[skill.skillKey]} changed={() => { statuses.forget(skill.skillKey); skills.reload(); }} />
            ))}
          </ol>
          {found.length > listed.length && <p class="dim small">{plural(found.length - listed.length, "more skill")}; narrow the search.</p>}
        </section>
      )}
    </>
  );
}

type Known = Record<string, SkillStatus | { error: unknown }>;

/** Status of the listed skills, asked for a few at a time; none if the adapter reports none. */
function useStatuses(runtime: Runtime, skills: Skill[]) {
  const [known, setKnown] = useState<Known>({});
  const [isUnsupported, setUnsupported] = useState(false);
  const waiting = skills.map((skill) => skill.skillKey).filter((key) => !(key in known)).slice(0, AT_ONCE);
  const asked = waiting.join("\n");
  useEffect(() => {
    if (asked === "" || isUnsupported) return;
    let isCurrent = true;
    const answers = asked.split("\n").map(async (key) => {
      const status = await ifSupported(runtime.skillStatus(key)).catch((error: unknown) => ({ error }));
      return [key, status] as const;
    });
    Promise.all(answers).then((all) => {
      if (!isCurrent) return;
      const more = all.flatMap(([key, status]) => (status ? [[key, status] as const] : []));
      if (more.length < all.length) setUnsupported(true);
      setKnown((last) => ({ ...last, ...Object.fromEntries(more) }));
    });
    return () => { isCurrent = false; };
  }, [runtime, asked, isUnsupported]);
  const forget = (key: string) => setKnown(({ [key]: _, ...rest }) => rest);
  return { known, forget };
}

function Row({ runtime, skill, status, changed }: { runtime: Runtime; skill: Skill; status: Known[string] | undefined; changed: () => void }) {
  const change = useChange(runtime);
  const key = skill.skillKey;
  const ready = status && "ready" in status ? status : undefined;
  const missing = ready?.missing ?? [];
  const isRepeated = missing.length > 0 && ready?.message?.includes(missing.join(", "));
  const { enabled } = skill;
  const canSwitch = typeof enabled === "boolean" && canCall(runtime, "updateSkill");
  const turn = enabled ? "Disable" : "Enable";
  // An update replaces the skill, so it is read first: a list can leave out its text.
  const update = async () => runtime.updateSkill({ ...((await ifSupported(runtime.skill(key))) ?? skill), enabled: !enabled });
  const install = () => change.run("installDependencies", () => runtime.installDependencies(key), (report) => {
    changed();
    const { installed = [], failed = [] } = report;
    const parts = [installed.length > 0 && `installed ${installed.join(", ")}`, failed.length > 0 && `still missing ${failed.join(", ")}`];
    const text = parts.filter(Boolean).join("; ") || "nothing was missing";
    return `${text[0]?.toUpperCase()}${text.slice(1)}.`;
  });
  return (
    <li aria-label={key}>
      <strong class="id">{skill.name ?? key}</strong>
      {skill.name && skill.name !== key && <code class="id">{key}</code>}
      {typeof enabled === "boolean" && <Badge state={enabled ? "ok" : "disabled"} label={enabled ? "enabled" : "disabled"} />}
      {ready && <Badge state={ready.ready ? "ok" : "degraded"} label={ready.ready ? "ready" : "not ready"} />}
      <span class="actions">
        {canSwitch && (
          <Ask small label={turn} name={`${turn} ${key}`} title={`${turn} ${key}?`} yes={`${turn} it`} disabled={change.busy} act={() => change.run("updateSkill", update, () => { changed(); return `${turn}d.`; })}>
            {enabled ? "Runs that begin from now cannot use the skill." : "Runs that begin from now can use the skill."}
          </Ask>
        )}
        {missing.length > 0 && canCall(runtime, "installDependencies") && (
          <Ask small label="Install dependencies" name={`Install dependencies of ${key}`} title={`Install dependencies of ${key}?`} yes="Install them" disabled={change.busy} act={install}>
            The runtime of {runtime.provider} installs {missing.join(", ")} on its machine.
          </Ask>
        )}
      </span>
      {skill.description && <p class="dim">{skill.description}</p>}
      {missing.length > 0 && <p>Missing: {missing.join(", ")}</p>}
      {ready?.message && !isRepeated && <p class="dim">{ready.message}</p>}
      {status && "error" in status && <Problem error={status.error} />}
      <Changed change={change} />
    </li>
  );
}
