import type { Delivery, DeliveryFilter, Destination } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { number, plural, time } from "../format";
import { useHealth } from "../health";
import { firstFull, type Loaded, useLoad, useReloadOn } from "../load";
import { Ask } from "../parts/ask";
import { Badge } from "../parts/badge";
import { Choice, Field } from "../parts/field";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Pager } from "../parts/pager";
import { Table } from "../parts/table";
import { answer, circuit, DeliveryTable } from "../parts/tables";
import { link, type Route, setQuery } from "../router";
import { bridge } from "../session";

const STATES = ["pending", "delivered", "dead", "superseded"];
/** Number of deliveries of a state, newest first, in the overview by receiver. */
const LOOKED_AT = 200;

export function Deliveries({ route }: { route: Route }) {
  const ask = (name: string) => route.query.get(name) ?? undefined;
  const filter = { status: ask("status"), host: ask("host"), since: ask("since"), cursor: ask("cursor") };
  const page = useLoad(() => firstFull((cursor) => bridge.deliveries({ ...filter, limit: 50, cursor } as DeliveryFilter), filter.cursor), Object.values(filter), undefined, "deliveries");
  const [said, setSaid] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const health = useHealth();
  const trouble = useTrouble(filter.status === undefined || filter.status === "dead" || filter.status === "pending");
  useReloadOn(["callback."], () => {
    if (!filter.cursor) page.reload();
    trouble.reload();
  });
  const run = (action: () => Promise<string>) => {
    setProblem(undefined);
    action().then((text) => { setSaid(text); page.reload(); trouble.reload(); health.reload(); }, setProblem);
  };
  const act = (action: () => Promise<number>) => run(async () => `${number(await action())} will be sent again.`);
  const close = (origin: string) => run(async () => {
    await bridge.closeDestination(origin);
    return `Everything due to ${origin} is sent now.`;
  });
  const put = (name: string) => (text: string) => setQuery(route, { [name]: text, cursor: undefined });
  const counts: Record<string, number | undefined> = { ...health.data?.deliveries };
  const filtered = filter.status || filter.host || filter.since;
  // Shown together, so that the list does not move under the pointer.
  const ready = page.data && (trouble.data || trouble.error);
  return (
    <>
      <h1>Deliveries</h1>
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label="State" all="all" value={filter.status} options={STATES.map((state) => [state, `${state}${counts[state] === undefined ? "" : ` (${number(counts[state])})`}`])} commit={put("status")} />
        <label>Host <Field type="search" value={filter.host ?? ""} commit={put("host")} placeholder="hooks.example.org" /></label>
        <label class="moment">Finished since <Field type="datetime-local" value={local(filter.since)} commit={(text) => put("since")(text && new Date(text).toISOString())} /></label>
        {filtered && <a class="button" href={link("deliveries")}>Show all</a>}
      </form>
      <p role="status" class={said ? "notice good" : "hidden"}>{said}</p>
      <Problem error={problem ?? page.error ?? trouble.error} />
      {trouble.data && <Destinations {...trouble.data} act={act} close={close} dead={counts["dead"] ?? 0} pending={counts["pending"] ?? 0} />}
      {filter.status === "dead" && counts["dead"] !== 0 && <RetryAll host={filter.host} since={filter.since} dead={counts["dead"]} act={act} />}
      {!ready && !page.error && <Skeleton lines={12} />}
      {ready && page.data?.items.length ? <DeliveryTable items={page.data.items} retry={(id) => act(() => bridge.retry(id))} /> : null}
      {ready && page.data?.items.length === 0 && !page.data.nextCursor && (
        <Empty>{filter.status === "dead" && !filter.host && !filter.since ? "No dead letters." : filtered ? "No matches." : "No deliveries yet."}</Empty>
      )}
      <Pager route={route} next={page.current ? page.data?.nextCursor : undefined} shown={page.data?.items.length ?? 0} />
    </>
  );
}

/** A time as a field of the browser has it: local, to the minute. */
function local(iso: string | undefined): string {
  const ms = Date.parse(iso ?? "");
  return Number.isNaN(ms) ? "" : new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function RetryAll({ host, since, dead, act }: { host: string | undefined; since: string | undefined; dead: number | undefined; act: (action: () => Promise<number>) => void }) {
  const count = useLoad(() => bridge.retryAll({ host, since, dryRun: true }), [host, since, dead]);
  const to = host ? ` to ${host}` : "";
  return (
    <p>
      <Ask label={`Send all dead letters again${to}`} title={`Send all dead letters${to} again?`} yes="Send them" act={() => act(() => bridge.retryAll({ host, since }))}>
        {count.loading || count.data === undefined ? "All dead letters" : plural(count.data, "dead letter")}{" "}
        {since ? `whose dispatch finished since ${time(since)}` : "of any age"}, each with the same <code>webhook-id</code> as before.
      </Ask>
    </p>
  );
}

interface Group {
  host: string;
  pending: number;
  dead: number;
  reasons: Map<string, number>;
  breaker: Destination | undefined;
}

interface Trouble {
  letters: Delivery[];
  waiting: Delivery[];
  breakers: Destination[];
}

function useTrouble(wanted: boolean): Loaded<Trouble> {
  const load = async () => {
    if (!wanted) return { letters: [], waiting: [], breakers: [] };
    const counts = bridge.health();
    // A state without deliveries is not looked for: the bridge would scan all records.
    const newest = async (status: "dead" | "pending") => ((await counts).deliveries[status] ? firstFull((cursor) => bridge.deliveries({ status, limit: LOOKED_AT, cursor }), undefined) : { items: [] });
    const [dead, pending, breakers] = await Promise.all([newest("dead"), newest("pending"), bridge.destinations()]);
    return { letters: dead.items, waiting: pending.items, breakers };
  };
  return useLoad(load, [wanted], 5000, "trouble");
}

/** Receivers: number of pending deliveries and dead letters, their answers, and the state of the circuit breaker. */
function Destinations({ letters, waiting, breakers, act, close, dead, pending }: Trouble & { act: (action: () => Promise<number>) => void; close: (origin: string) => void; dead: number; pending: number }) {
  const groups = group(letters, waiting, breakers);
  if (groups.length === 0) return null;
  return (
    <section aria-labelledby="destinations">
      <h2 id="destinations">Pending and dead by receiver</h2>
      <Table label="By destination" heads={["Destination", ["Pending", "right"], ["Dead", "right"], "Last answers", ["Action", "hidden"]]}>
        {groups.map(({ host, pending: due, dead: count, reasons, breaker }) => (
          <tr key={host}>
            <td class="name"><a href={link("deliveries", undefined, { status: count ? "dead" : "pending", host })}>{host}</a></td>
            <td class="number right">{atLeast(due, pending > waiting.length)}</td>
            <td class="number right">{atLeast(count, dead > letters.length)}</td>
            <td class="free">
              {[...reasons].map(([reason, times]) => `${reason}${times > 1 ? ` (${number(times)})` : ""}`).join(", ")}
              {breaker && <div><Badge state="retrying" label={circuit(breaker)} /> <span class="dim">{breaker.reason}</span></div>}
            </td>
            <td class="right">
              {breaker && <button type="button" class="small" onClick={() => close(breaker.origin)} aria-label={`Try now: ${host}`}>Try now</button>}
              {count > 0 && (
                <Ask small label="Send all again" name={`Send all again: ${host}`} title={`Send all dead letters to ${host} again?`} yes="Send them" act={() => act(() => bridge.retryAll({ host }))}>
                  All dead letters of any age, each with the same <code>webhook-id</code> as before.
                </Ask>
              )}
            </td>
          </tr>
        ))}
      </Table>
      {dead > letters.length && letters.length > 0 && <p class="dim">Based on the newest {plural(letters.length, "dead letter")} of {number(dead)}.</p>}
      {pending > waiting.length && waiting.length > 0 && <p class="dim">Based on the newest {plural(waiting.length, "pending delivery", "pending deliveries")} of {number(pending)}.</p>}
    </section>
  );
}

/** A count that is a part of the whole if older ones were not looked at. */
function atLeast(count: number, hasMore: boolean): string {
  return count > 0 && hasMore ? `${number(count)} or more` : number(count);
}

function group(letters: Delivery[], waiting: Delivery[], breakers: Destination[]): Group[] {
  const groups = new Map<string, Group>();
  const at = (url: string) => {
    const { host } = new URL(url);
    let known = groups.get(host);
    if (!known) groups.set(host, (known = { host, pending: 0, dead: 0, reasons: new Map(), breaker: undefined }));
    return known;
  };
  const add = (items: Delivery[], state: "dead" | "pending") => {
    for (const item of items) {
      const one = at(item.url);
      one[state] += 1;
      const reason = answer(item);
      if (reason) one.reasons.set(reason, (one.reasons.get(reason) ?? 0) + 1);
    }
  };
  add(letters, "dead");
  add(waiting, "pending");
  for (const breaker of breakers) at(breaker.origin).breaker = breaker;
  return [...groups.values()].sort((a, b) => b.dead - a.dead || b.pending - a.pending);
}
