import type { Approval, ExternalEntry, ExternalService } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { useLoad, useReloadOn } from "../load";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Time } from "../parts/time";
import { link } from "../router";
import { bridge } from "../session";

/** External services with their entries, and commands that wait for an approval. */
export function Services() {
  const page = useLoad(() => bridge.externalServices(), [], 5000, "services");
  const waiting = useLoad(() => bridge.approvals(), [], 5000, "approvals");
  useReloadOn(["approval.", "execution.completed", "execution.failed"], waiting.reload);
  return (
    <>
      <h1>Services</h1>
      <Problem error={page.error} />
      <Problem error={waiting.error} />
      {waiting.data && waiting.data.items.length > 0 && (
        <section aria-labelledby="waiting">
          <h2 id="waiting">Waiting for approval</h2>
          <div class="cards">
            {waiting.data.items.map((one) => <Held key={one.dispatch.dispatchId} approval={one} changed={waiting.reload} />)}
          </div>
        </section>
      )}
      {!page.data && !page.error && <Skeleton lines={8} />}
      {page.data?.diagnostics.map((found, index) => (
        <p key={index} class={`notice ${found.severity === "error" ? "bad" : "warn"}`}>
          <strong>{String(found.code)}</strong> {found.file !== undefined && <code>{String(found.file)}</code>} {String(found.message)} {found.fixHint !== undefined && String(found.fixHint)}
        </p>
      ))}
      {page.data?.services.length === 0 && <Empty>No service is known; import a manifest: <code>forge manifest import FILE|URL</code>.</Empty>}
      <div class="cards">{page.data?.services.map((service) => <Card key={service.name} service={service} />)}</div>
    </>
  );
}

function Held({ approval, changed }: { approval: Approval; changed: () => void }) {
  const { dispatch, entry, args } = approval;
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const decide = (decision: Promise<void>) => {
    setProblem(undefined);
    decision.then(changed, setProblem);
  };
  const name = entry ?? dispatch.dispatchId;
  return (
    <section class="card" aria-label={name}>
      <div class="title">
        <h3>{name}</h3> <Badge state="queued" label="waiting" />
        <div class="actions">
          <Ask small label="Approve" name={`Approve ${name}`} title={`Approve ${name}?`} yes="Approve it" act={() => decide(bridge.approve(dispatch.dispatchId, reason || undefined))}>
            The service is called with these arguments.
          </Ask>
          <Ask small label="Reject" name={`Reject ${name}`} title={`Reject ${name}?`} yes="Reject it" act={() => decide(bridge.reject(dispatch.dispatchId, reason || undefined))}>
            The command ends as <code>blocked_by_policy</code>, and its callback is sent.
          </Ask>
        </div>
      </div>
      <Problem error={problem} />
      <p class="dim">
        <a href={link("dispatch", dispatch.dispatchId)}>{dispatch.dispatchId}</a>, since <Time at={dispatch.acceptedAt} />, from {who(approval.caller)}
      </p>
      <pre class="said" tabIndex={0} aria-label={`Arguments of ${name}`}>{args}</pre>
      <label>Reason <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} placeholder="for the record" /></label>
    </section>
  );
}

/** Caller in few words. */
function who(caller: unknown): string {
  const { kind, userId, tenantId, roles } = (caller ?? {}) as { kind?: string; userId?: string; tenantId?: string; roles?: string[] };
  const more = [tenantId && `tenant ${tenantId}`, roles?.length ? roles.join(", ") : undefined].filter(Boolean).join("; ");
  return `${userId ?? kind ?? "unknown"}${more && ` (${more})`}`;
}

function Card({ service }: { service: ExternalService }) {
  const { name, health, breaker } = service;
  return (
    <section class="card" aria-label={name}>
      <div class="title">
        <h2>{name}</h2>
        <Badge state={health.status === "unhealthy" ? "offline" : health.status} label={health.status} />
        {breaker.state !== "closed" && <Badge state="quarantined" label={breaker.state === "open" ? "breaker open" : "breaker half open"} />}
        <span class="dim">{service.transport}, {service.language}{service.framework && `, ${service.framework}`}</span>
      </div>
      {service.unsupported && <p class="notice bad">{service.unsupported}</p>}
      {health.message && <p class="notice warn">{health.message}{health.checkedAt && <>, <Time at={health.checkedAt} /></>}</p>}
      {breaker.until && <p class="notice warn">It failed repeatedly and is called again <Time at={breaker.until} />.</p>}
      <p class="number dim">{service.running} of {service.maxCalls} calls in progress{service.baseUrl && <>, <code>{service.baseUrl}</code></>}</p>
      {service.entries.map((entry) => <Entry key={`${entry.kind}:${entry.name}`} service={name} entry={entry} />)}
      <p class="dim small">Manifest <code>{service.digest.slice(0, 12)}…</code></p>
    </section>
  );
}

/** One entry, with a form to call it. */
function Entry({ service, entry }: { service: string; entry: ExternalEntry }) {
  const [args, setArgs] = useState("{}");
  const [said, setSaid] = useState<string>();
  const [problem, setProblem] = useState<unknown>();
  const [calling, setCalling] = useState(false);
  const call = (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    setSaid(undefined);
    let parsed: unknown;
    try {
      parsed = JSON.parse(args);
    } catch {
      return setProblem(new Error("the arguments are not JSON"));
    }
    setCalling(true);
    const ref = { service, name: entry.name };
    const answered = entry.kind === "command" ? bridge.externalCommand(ref, parsed) : bridge.externalQuery(ref, parsed);
    answered.then((result) => setSaid(JSON.stringify(result, null, 2)), setProblem).finally(() => setCalling(false));
  };
  return (
    <details>
      <summary>
        {entry.name} <span class="dim">{entry.kind}, {entry.policy ?? "public"}{entry.needsApproval && ", needs approval"}{entry.tenantScoped && ", tenant scoped"}</span>
      </summary>
      <form class="stack" onSubmit={call}>
        {entry.description && <p class="dim">{entry.description}</p>}
        <label>Arguments <textarea class="code" rows={3} value={args} onInput={(event) => setArgs(event.currentTarget.value)} spellcheck={false} /></label>
        <Problem error={problem} />
        <div class="actions"><button type="submit" class="small" aria-label={`Call ${service}.${entry.name}`} disabled={calling}>Call</button></div>
        {said !== undefined && <pre class="said" tabIndex={0} role="status" aria-label={`Result of ${service}.${entry.name}`}>{said}</pre>}
      </form>
    </details>
  );
}
