import type { Delivery, Destination, Dispatch } from "@forge-bridge/client";
import { useNow } from "../clock";
import { duration, millis, rough, time } from "../format";
import { link } from "../router";
import { Badge, DispatchBadge } from "./badge";
import { Table } from "./table";
import { Time } from "./time";

interface DispatchRows {
  items: Dispatch[];
  label: string;
  /** Omits columns, for a list beside another one. */
  brief?: boolean;
}

export function DispatchTable({ items, label, brief }: DispatchRows) {
  const now = useNow(items.some((dispatch) => dispatch.status !== "finished"));
  const more = brief ? "gone" : "";
  return (
    <Table label={label} heads={["Task", "State", "Adapter", ["Agent", more], ["Callback", more], ["Accepted", more], ["Waited", `${more} right`], ["Ran", "right"]]}>
      {items.map((dispatch) => (
        <tr key={dispatch.dispatchId}>
          <td class="name"><a href={link("dispatch", dispatch.dispatchId)} title={dispatch.taskId}>{dispatch.taskId}</a></td>
          <td title={dispatch.waitReason?.message}>
            <DispatchBadge dispatch={dispatch} />
            {dispatch.waitReason && <> <span class="dim small">{dispatch.waitReason.kind.replaceAll("_", " ")}</span></>}
          </td>
          <td class="cut">{dispatch.provider}</td>
          <td class={`${more} cut`} title={dispatch.agentId}>{dispatch.agentId}</td>
          <td class={more}>{callback(dispatch)}</td>
          <td class={more}><Time at={dispatch.acceptedAt} /></td>
          <td class={`${more} number right`}>{waited(dispatch, now)}</td>
          <td class="number right">{ran(dispatch, now)}</td>
        </tr>
      ))}
    </Table>
  );
}

function callback({ callbackUrl, callbackStatus }: Dispatch) {
  if (callbackStatus) return <Badge state={callbackStatus} />;
  return <span class="dim">{callbackUrl ? "when finished" : "none"}</span>;
}

function waited({ status, acceptedAt, startedAt }: Dispatch, now: number): string {
  if (status !== "finished" && !startedAt) return rough(Math.max(0, now - Date.parse(acceptedAt)));
  return duration(millis(acceptedAt, startedAt));
}

function ran(dispatch: Dispatch, now: number): string {
  if (dispatch.status === "running" && dispatch.startedAt) return rough(Math.max(0, now - Date.parse(dispatch.startedAt)));
  return duration(millis(dispatch.startedAt, dispatch.finishedAt));
}

export function DeliveryTable({ items, retry }: { items: Delivery[]; retry: (id: string) => void }) {
  return (
    <Table label="Deliveries" heads={["Task", "State", "Destination", ["Attempts", "right"], "Last answer", "Next try or settled", ["Action", "hidden"]]}>
      {items.map((delivery) => (
        <tr key={delivery.id}>
          <td class="name"><a href={link("dispatch", delivery.dispatchId)} title={delivery.taskId}>{delivery.taskId}</a></td>
          <td><Badge state={delivery.status} /></td>
          <td class="url" title={delivery.url}>{delivery.url}</td>
          <td class="number right">{delivery.attemptCount}</td>
          <td class="cut" title={answer(delivery)}>{answer(delivery)}</td>
          <td class="number">{settled(delivery)}</td>
          <td class="right">
            <button type="button" class="small" onClick={() => retry(delivery.id)} aria-label={`Send again: ${delivery.taskId}`}>
              Send again
            </button>
          </td>
        </tr>
      ))}
    </Table>
  );
}

function settled(delivery: Delivery): string {
  if (delivery.settledAt) return time(delivery.settledAt);
  return next(delivery);
}

/** Next attempt of a delivery, and the circuit breaker that it waits for. */
export function next({ dueAt, destination }: Delivery): string {
  if (destination) return circuit(destination);
  if (!dueAt) return "";
  return Date.parse(dueAt) <= Date.now() ? "due now" : `next try ${time(dueAt)}`;
}

export function circuit({ state, probeAt }: Destination): string {
  return state === "open" ? `circuit open, next try ${time(probeAt)}` : "circuit half-open, tried now";
}

export function answer(delivery: Delivery): string {
  const last = delivery.attempts.at(-1);
  if (!last) return delivery.status === "delivered" ? "accepted" : "";
  return last.status ? `HTTP ${last.status}` : (last.error ?? "");
}
