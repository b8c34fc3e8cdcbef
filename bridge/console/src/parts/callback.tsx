import type { Delivery, Dispatch } from "@forge-bridge/client";
import { duration, plural } from "../format";
import { link } from "../router";
import { Badge } from "./badge";
import { Id } from "./copy";
import { Empty } from "./notice";
import { circuit } from "./tables";
import { Time } from "./time";

/** Deliveries of one dispatch, with their attempts and the receiver's answers. */
export function Deliveries({ dispatch, items, retry }: { dispatch: Dispatch; items: Delivery[]; retry: (id: string) => void }) {
  if (items.length === 0) return <Empty>{dispatch.callbackUrl ? "Sent when the run finishes." : "No callback requested."}</Empty>;
  return <>{items.map((delivery) => <One key={delivery.id} delivery={delivery} retry={() => retry(delivery.id)} />)}</>;
}

function One({ delivery, retry }: { delivery: Delivery; retry: () => void }) {
  return (
    <>
      <div class="title">
        <Badge state={delivery.status} />
        <code class="url">{delivery.url}</code>
        <button type="button" class="small" onClick={retry} aria-label={`Send again: ${delivery.taskId}`}>Send again</button>
      </div>
      <p class="dim">
        {plural(delivery.attemptCount, "attempt")}
        {delivery.settledAt ? <>, settled <Time at={delivery.settledAt} /></> : delivery.destination ? `, ${circuit(delivery.destination)}` : delivery.dueAt && <>, next try <Time at={delivery.dueAt} /></>}
        {delivery.status === "dead" && <> · <a href={link("deliveries", undefined, { status: "dead", host: new URL(delivery.url).host })}>dead letters of this receiver</a></>}
      </p>
      <ol class="attempts" aria-label="Attempts">
        {delivery.attempts.map((attempt) => (
          <li key={attempt.number}>
            <span class="number dim">{attempt.number}</span>
            <Time at={attempt.at} />
            <span class={attempt.status && attempt.status < 300 ? "" : "bad"}>{attempt.status ? `HTTP ${attempt.status}` : attempt.error}</span>
            <span class="number dim">in {duration(attempt.durationMs)}</span>
            {attempt.answer && <pre class="said" tabIndex={0}>{attempt.answer}</pre>}
          </li>
        ))}
      </ol>
      <p class="dim small"><code>webhook-id</code>: <Id value={delivery.id} name="the webhook id" /></p>
    </>
  );
}
