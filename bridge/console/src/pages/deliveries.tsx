import type { Delivery, DeliveryFilter } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { number } from "../format";
import { useLoad, useReloadOn } from "../load";
import { Empty, Problem } from "../parts/notice";
import { Pager } from "../parts/pager";
import { DeliveryTable } from "../parts/tables";
import { type Route, setQuery } from "../router";
import { bridge } from "../session";

const STATES = ["pending", "delivered", "dead", "superseded"];

export function Deliveries({ route }: { route: Route }) {
  const ask = (name: string) => route.query.get(name) ?? undefined;
  const filter = { status: ask("status"), host: ask("host"), cursor: ask("cursor") };
  const page = useLoad(() => bridge.deliveries({ ...filter, limit: 50 } as DeliveryFilter), Object.values(filter));
  const [said, setSaid] = useState("");
  const [problem, setProblem] = useState<unknown>();
  useReloadOn(["callback."], () => filter.cursor || page.reload());
  const act = (action: () => Promise<number>) => {
    setProblem(undefined);
    action().then((count) => { setSaid(`${number(count)} will be sent again.`); page.reload(); }, setProblem);
  };
  const set = (name: string) => (event: Event) =>
    setQuery(route, { [name]: (event.currentTarget as HTMLInputElement).value, cursor: undefined });
  return (
    <>
      <h1>Deliveries</h1>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <label>
          State
          <select value={filter.status ?? ""} onChange={set("status")}>
            <option value="">all</option>
            {STATES.map((state) => <option key={state} value={state}>{state}</option>)}
          </select>
        </label>
        <label>Host <input value={filter.host ?? ""} onChange={set("host")} placeholder="hooks.example.org" /></label>
      </form>
      {filter.status === "dead" && <RetryAll host={filter.host} act={act} />}
      {filter.status === "dead" && page.data && <ByDestination items={page.data.items} />}
      <p role="status" class="dim">{said}</p>
      <Problem error={problem ?? page.error} />
      {page.data && (page.data.items.length ? <DeliveryTable items={page.data.items} retry={(id) => act(() => bridge.retry(id))} /> : <Empty>None like that.</Empty>)}
      <Pager route={route} next={page.data?.nextCursor} />
    </>
  );
}

function RetryAll({ host, act }: { host: string | undefined; act: (action: () => Promise<number>) => void }) {
  const [since, setSince] = useState("");
  const again = () => act(() => bridge.retryAll({ ...(host && { host }), ...(since && { since: new Date(since).toISOString() }) }));
  return (
    <form class="filters" onSubmit={(event) => { event.preventDefault(); again(); }}>
      <label>Since <input type="datetime-local" value={since} onInput={(event) => setSince(event.currentTarget.value)} /></label>
      <button type="submit">Send all dead ones again{host ? ` to ${host}` : ""}</button>
    </form>
  );
}

/** How many of those shown each destination owes, and what it said last. */
function ByDestination({ items }: { items: Delivery[] }) {
  const hosts = new Map<string, { count: number; reason: string }>();
  for (const item of items) {
    const host = new URL(item.url).host;
    const last = item.attempts.at(-1);
    const reason = last?.status ? `HTTP ${last.status}` : (last?.error ?? "");
    hosts.set(host, { count: (hosts.get(host)?.count ?? 0) + 1, reason });
  }
  if (hosts.size === 0) return null;
  return (
    <ul class="chips" aria-label="By destination">
      {[...hosts].map(([host, { count, reason }]) => <li key={host}><b>{host}</b> {count} {reason && <span class="dim">{reason}</span>}</li>)}
    </ul>
  );
}
