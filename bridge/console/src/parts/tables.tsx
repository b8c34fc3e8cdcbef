import type { Delivery, Destination, Dispatch } from "@forge-bridge/client";
import { useNow } from "../clock";
import { duration, millis, rough, time } from "../format";
import { link } from "../router";
import { Badge, DispatchBadge } from "./badge";
import { Time } from "./time";

interface DispatchRows {
  items: Dispatch[];
  label: string;
  /** Omits columns, for a list beside another one. */
  brief?: boolean;
}

export function DispatchTable({ items, label, brief }: DispatchRows) {
  const now = useNow(items.some((dispatch) => dispatch.status === "running"));
  const wide = brief ? "gone" : "wide";
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${label}, table`}>
      <table aria-label={label}>
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">State</th>
            <th scope="col" class="wide">Adapter</th>
            <th scope="col" class={wide}>Agent</th>
            <th scope="col" class={wide}>Accepted</th>
            <th scope="col" class={`${wide} right`}>Waited</th>
            <th scope="col" class="right">Ran</th>
          </tr>
        </thead>
        <tbody>
          {items.map((dispatch) => (
            <tr key={dispatch.dispatchId}>
              <td class="name"><a href={link("dispatch", dispatch.dispatchId)} title={dispatch.taskId}>{dispatch.taskId}</a></td>
              <td><DispatchBadge dispatch={dispatch} /></td>
              <td class="wide cut">{dispatch.provider}</td>
              <td class={`${wide} cut`} title={dispatch.agentId}>{dispatch.agentId}</td>
              <td class={wide}><Time at={dispatch.acceptedAt} /></td>
              <td class={`${wide} number right`}>{duration(millis(dispatch.acceptedAt, dispatch.startedAt))}</td>
              <td class="number right">{ran(dispatch, now)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function ran(dispatch: Dispatch, now: number): string {
  if (dispatch.status === "running" && dispatch.startedAt) return rough(Math.max(0, now - Date.parse(dispatch.startedAt)));
  return duration(millis(dispatch.startedAt, dispatch.finishedAt));
}

export function DeliveryTable({ items, retry }: { items: Delivery[]; retry: (id: string) => void }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Deliveries, table">
      <table aria-label="Deliveries">
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">State</th>
            <th scope="col" class="wide">Destination</th>
            <th scope="col" class="wide right">Attempts</th>
            <th scope="col" class="wide">Last answer</th>
            <th scope="col" class="wide">Next try or settled</th>
            <th scope="col"><span class="hidden">Action</span></th>
          </tr>
        </thead>
        <tbody>
          {items.map((delivery) => (
            <tr key={delivery.id}>
              <td class="name"><a href={link("dispatch", delivery.dispatchId)} title={delivery.taskId}>{delivery.taskId}</a></td>
              <td><Badge state={delivery.status} /></td>
              <td class="wide url" title={delivery.url}>{delivery.url}</td>
              <td class="wide number right">{delivery.attemptCount}</td>
              <td class="wide cut" title={answer(delivery)}>{answer(delivery)}</td>
              <td class="wide number">{settled(delivery)}</td>
              <td class="right">
                <button type="button" class="small" onClick={() => retry(delivery.id)} aria-label={`Send again: ${delivery.taskId}`}>
                  Send again
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function settled(delivery: Delivery): string {
  if (delivery.settledAt) return time(delivery.settledAt);
  return next(delivery);
}

/** Next attempt of a delivery, and the circuit breaker that it waits for. */
export function next({ dueAt, destination }: Delivery): string {
  if (destination) return circuit(destination);
  return dueAt ? `next try ${time(dueAt)}` : "";
}

export function circuit({ state, probeAt }: Destination): string {
  return state === "open" ? `circuit open, next try ${time(probeAt)}` : "circuit half-open, tried now";
}

export function answer(delivery: Delivery): string {
  const last = delivery.attempts.at(-1);
  if (!last) return delivery.status === "delivered" ? "accepted" : "";
  return last.status ? `HTTP ${last.status}` : (last.error ?? "");
}
