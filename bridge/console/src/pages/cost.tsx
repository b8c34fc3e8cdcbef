import type { Cost as Costs, CostTotals } from "@forge-bridge/client";
import { amount, number, plural } from "../format";
import { useLoad } from "../load";
import { Choice } from "../parts/field";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Table } from "../parts/table";
import { Time } from "../parts/time";
import { link, type Route, setQuery } from "../router";
import { bridge } from "../session";

const EVERY_MS = 30_000;
const SINCE = "7d";
const SPANS: [string, string][] = [["1d", "a day"], [SINCE, "7 days"], ["30d", "30 days"]];
type Property = "day" | "adapter" | "model" | "agent";
const SECTIONS: [keyof Costs, Property, string][] = [["byDay", "day", "Day"], ["byAdapter", "adapter", "Adapter"], ["byModel", "model", "Model"], ["byAgent", "agent", "Agent"]];
/** Rows of a section; the rest are those that cost least. */
const SHOWN = 50;

/** What dispatches used, by day, adapter, model and agent. */
export function Cost({ route }: { route: Route }) {
  const since = route.query.get("since") ?? SINCE;
  const all = since === "all" ? undefined : since;
  const page = useLoad(() => bridge.cost(all), [since], EVERY_MS, `cost ${since}`);
  const lists = page.data && SECTIONS.map(([list]) => page.data![list]);
  const leftOut = lists?.find((list) => list.leftOutUntil)?.leftOutUntil;
  const isEmpty = lists?.every((list) => list.totals.length === 0);
  return (
    <>
      <h1>Cost</h1>
      <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label="Ended within" all="all that is kept" value={all} options={SPANS} commit={(value) => setQuery(route, { since: value || "all" })} />
      </form>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={12} />}
      {isEmpty && <Empty>No dispatch that is kept has told what it used.</Empty>}
      {leftOut && <p class="notice warn">There are too many to add up: those that ended until <Time at={leftOut} /> are left out.</p>}
      {!isEmpty && lists?.map(({ totals }, place) => {
        const [, by, name] = SECTIONS[place]!;
        return <Section key={by} by={by} name={name} totals={by === "day" ? newestFirst(totals) : totals} />;
      })}
    </>
  );
}

function newestFirst(totals: CostTotals[]): CostTotals[] {
  return [...totals].sort((one, other) => (other.day ?? "").localeCompare(one.day ?? ""));
}

function Section({ by, name, totals }: { by: Property; name: string; totals: CostTotals[] }) {
  const most = Math.max(...totals.map((one) => one.totalCostUsd));
  return (
    <section aria-labelledby={`by-${by}`}>
      <h2 id={`by-${by}`}>By {name.toLowerCase()}</h2>
      <Table label={`Cost by ${name.toLowerCase()}`} heads={[name, ["Dispatches", "right"], ["Failed", "right"], ["Tokens in", "right"], ["Tokens out", "right"], ["Cost", "right"], ["Of the highest", ""]]}>
        {totals.slice(0, SHOWN).map((one) => <Row key={one[by]} by={by} one={one} most={most} />)}
      </Table>
      {totals.length > SHOWN && <p class="dim small">{plural(totals.length - SHOWN, "more")} with less cost.</p>}
    </section>
  );
}

function Row({ by, one, most }: { by: Property; one: CostTotals; most: number }) {
  const value = one[by];
  return (
    <tr>
      <td class="name">{value ? <Value by={by} value={value} /> : <span class="dim">not known</span>}</td>
      <td class="number right">{number(one.dispatchCount)}</td>
      <td class="number right">{number(one.errorCount)}</td>
      <td class="number right">{number(one.totalTokensIn)}</td>
      <td class="number right">{number(one.totalTokensOut)}</td>
      <td class="number right">
        {amount(one.totalCostUsd, "cost_usd")}
        {one.unpricedCount > 0 && <div class="dim small">{number(one.unpricedCount)} without a cost</div>}
      </td>
      <td><meter min={0} max={most || 1} value={one.totalCostUsd} aria-label={`Cost of ${value ?? "what is not known"}`} /></td>
    </tr>
  );
}

/** The dispatches of it, where they can be listed. */
function Value({ by, value }: { by: Property; value: string }) {
  if (by === "adapter") return <a href={link("dispatches", undefined, { provider: value })}>{value}</a>;
  if (by === "agent") return <a href={link("dispatches", undefined, { agentId: value })}>{value}</a>;
  return <>{value}</>;
}
