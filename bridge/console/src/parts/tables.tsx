import type { Delivery, Dispatch } from "@forge-bridge/client";
import { duration, millis, time } from "../format";
import { link } from "../router";
import { Badge, DispatchBadge } from "./badge";

export function DispatchTable({ items, label }: { items: Dispatch[]; label: string }) {
  return (
    <div class="scroll">
      <table aria-label={label}>
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">State</th>
            <th scope="col">Adapter</th>
            <th scope="col">Agent</th>
            <th scope="col">Accepted</th>
            <th scope="col" class="right">Waited</th>
            <th scope="col" class="right">Ran</th>
          </tr>
        </thead>
        <tbody>
          {items.map((dispatch) => (
            <tr key={dispatch.dispatchId}>
              <td><a href={link("dispatch", dispatch.dispatchId)}>{dispatch.taskId}</a></td>
              <td><DispatchBadge dispatch={dispatch} /></td>
              <td>{dispatch.provider}</td>
              <td>{dispatch.agentId}</td>
              <td class="number">{time(dispatch.acceptedAt)}</td>
              <td class="number right">{duration(millis(dispatch.acceptedAt, dispatch.startedAt))}</td>
              <td class="number right">{duration(millis(dispatch.startedAt, dispatch.finishedAt))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function DeliveryTable({ items, retry }: { items: Delivery[]; retry: (id: string) => void }) {
  return (
    <div class="scroll">
      <table aria-label="Deliveries">
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">State</th>
            <th scope="col">Destination</th>
            <th scope="col" class="right">Attempts</th>
            <th scope="col">Last answer</th>
            <th scope="col">Next or settled</th>
            <th scope="col"><span class="hidden">Action</span></th>
          </tr>
        </thead>
        <tbody>
          {items.map((delivery) => (
            <tr key={delivery.id}>
              <td><a href={link("dispatch", delivery.dispatchId)}>{delivery.taskId}</a></td>
              <td><Badge state={delivery.status} /></td>
              <td class="url">{delivery.url}</td>
              <td class="number right">{delivery.attemptCount}</td>
              <td>{answer(delivery)}</td>
              <td class="number">{time(delivery.settledAt ?? delivery.dueAt)}</td>
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

function answer(delivery: Delivery): string {
  const last = delivery.attempts.at(-1);
  if (!last) return delivery.status === "delivered" ? "accepted" : "";
  return last.status ? `HTTP ${last.status}` : (last.error ?? "");
}
