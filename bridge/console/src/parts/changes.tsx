import type { ChangeRequest } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { plural } from "../format";
import { useLoad } from "../load";
import { link } from "../router";
import { forge } from "../session";
import { Ask } from "./ask";
import { Badge } from "./badge";
import { Problem } from "./notice";
import { Time } from "./time";

/** Change requests of a run; `version` changes with their events. */
export function Changes({ runId, version }: { runId: string; version: number }) {
  const page = useLoad(() => forge.listChangeRequests(runId), [runId, version]);
  return (
    <section class="stack" aria-labelledby="changes">
      <h2 id="changes">Change requests</h2>
      <Problem error={page.error} />
      {page.data?.map((one) => <One key={one.crId} runId={runId} request={one} changed={page.reload} />)}
    </section>
  );
}

function One({ runId, request, changed }: { runId: string; request: ChangeRequest; changed: () => void }) {
  const { crId, title, status, impact, emittedBy } = request;
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const decide = (decision: Promise<void>) => {
    setProblem(undefined);
    decision.then(changed, setProblem);
  };
  const task = (id: string) => <a key={id} href={link("run", runId, { task: id })}>{id}</a>;
  return (
    <section class="card" aria-label={title}>
      <div class="title">
        <h3>{title}</h3> <Badge state={status} />
        {status === "pending" && (
          <div class="actions">
            <Ask small label="Approve" name={`Approve ${title}`} title={`Approve ${title}?`} yes="Approve it" act={() => decide(forge.approveChangeRequest(runId, crId))}>
              The plan is changed as requested; what has begun stays as it is. The run continues.
            </Ask>
            <Ask small label="Reject" name={`Reject ${title}`} title={`Reject ${title}?`} yes="Reject it" act={() => decide(forge.rejectChangeRequest(runId, crId, reason || undefined))}>
              The plan stays as it is, and the run continues.
            </Ask>
          </div>
        )}
      </div>
      <Problem error={problem} />
      <p class="dim">
        {crId} by {task(emittedBy)}, <Time at={request.createdAt} />{impact.length > 0 && <>, affects {impact.map((id, index) => <>{index > 0 && ", "}{task(id)}</>)}</>}
      </p>
      {request.description && <pre class="said" tabIndex={0} aria-label={`Description of ${title}`}>{request.description}</pre>}
      {request.suggestedChanges && <pre class="said" tabIndex={0} aria-label={`Suggestion of ${title}`}>{request.suggestedChanges}</pre>}
      {request.overlay && <p>Adds {request.overlay.addedNodes.map((node) => node.title).join(", ") || plural(request.overlay.addedEdges.length, "dependency", "dependencies")}.</p>}
      {request.rejectedBecause && <p>Rejected because: {request.rejectedBecause}</p>}
      {status === "pending" && <label>Reason of a rejection <input value={reason} maxLength={1000} onInput={(event) => setReason(event.currentTarget.value)} placeholder="for the record" /></label>}
    </section>
  );
}
