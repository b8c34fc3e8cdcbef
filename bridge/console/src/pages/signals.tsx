import type { RuleWindow, SignalRule, SignalSession } from "@forge-bridge/client";
import { amount, dollars, number, plural, time } from "../format";
import { useHealth } from "../health";
import { firstFull, useLoad, useReloadOn } from "../load";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Table } from "../parts/table";
import { Time } from "../parts/time";
import { link } from "../router";
import { bridge } from "../session";

/** Fallback for changes without an event: a total grows with each signal. */
const EVERY_MS = 5000;
const LISTED = 50;

/** Budgets and rules with what is left, live sessions of AI tools, and interventions. */
export function Signals() {
  const health = useHealth();
  const rules = useLoad(() => bridge.signalRules(), [], EVERY_MS, "signal-rules");
  const sessions = useLoad(() => firstFull((cursor) => bridge.signalSessions({ active: true, limit: LISTED, cursor }), undefined), [], EVERY_MS, "signal-sessions");
  const interventions = useLoad(() => bridge.interventions({ limit: LISTED }), [], EVERY_MS, "interventions");
  useReloadOn(["signal."], () => {
    rules.reload();
    sessions.reload();
    interventions.reload();
  });
  const ready = rules.data && sessions.data && interventions.data;
  const error = rules.error ?? sessions.error ?? interventions.error;
  const agent = health.data?.signals.agent;
  return (
    <>
      <h1>Signals</h1>
      <Problem error={error} />
      {agent && <Agent address={agent} />}
      {!ready && !error && <Skeleton lines={12} />}
      {rules.data && <Rules rules={rules.data} />}
      {sessions.data && (
        <section aria-labelledby="sessions">
          <h2 id="sessions">Live sessions</h2>
          {sessions.data.items.length === 0 ? <Empty>No tool has a live session.</Empty> : <Sessions items={sessions.data.items} />}
          {sessions.data.nextCursor && <p class="dim small">Older ones are not shown.</p>}
        </section>
      )}
      {interventions.data && (
        <section aria-labelledby="interventions">
          <h2 id="interventions">Interventions</h2>
          {interventions.data.items.length === 0 ? <Empty>No rule has warned or blocked yet.</Empty> : (
            <Table label="Interventions" heads={["At", "Severity", "Rule", "Message", "Session", "Acknowledged"]}>
              {interventions.data.items.map((one) => (
                <tr key={one.interventionId}>
                  <td><Time at={one.at} /></td>
                  <td><Badge state={one.severity} /></td>
                  <td class="cut" title={one.ruleId}>{one.ruleId}</td>
                  <td class="free">{one.message}</td>
                  <td class="cut" title={one.sessionId}>{one.sessionId}</td>
                  <td>{one.acknowledgedAt ? <Time at={one.acknowledgedAt} /> : <span class="dim">no</span>}</td>
                </tr>
              ))}
            </Table>
          )}
          {interventions.data.nextCursor && <p class="dim small">Older ones are not shown.</p>}
        </section>
      )}
    </>
  );
}

/** State of the local agent, unless it listens. */
function Agent({ address }: { address: string }) {
  if (address === "unavailable") return <p class="notice bad">The address of the local agent (<code>signals.listen</code>) is in use by another program.</p>;
  if (address === "off") return <p class="dim">The local agent is off.</p>;
  return <p class="dim">Tools on the bridge's machine report to the local agent at <code>{address}</code>.</p>;
}

function Rules({ rules }: { rules: SignalRule[] }) {
  if (rules.length === 0) {
    return (
      <section aria-labelledby="rules">
        <h2 id="rules">Budgets and rules</h2>
        <Empty>No rules are configured, so nothing warns or blocks. Name a file of rules with <code>signals.rules</code>; <code>forg rules schema</code> prints its schema.</Empty>
      </section>
    );
  }
  const budgets = rules.filter((rule) => isBudget(rule));
  const others = rules.filter((rule) => !isBudget(rule));
  return (
    <>
      {budgets.length > 0 && <div class="cards">{budgets.map((rule) => <Card key={rule.id} rule={rule} />)}</div>}
      {others.length > 0 && <div class="cards">{others.map((rule) => <Card key={rule.id} rule={rule} />)}</div>}
    </>
  );
}

function isBudget(rule: SignalRule): boolean {
  return rule.limitUsd !== undefined || rule.limitTokens !== undefined;
}

const SPANS: Record<SignalRule["window"], string> = {
  "1h": "in an hour", "1d": "in a day", "7d": "in seven days", month: "in a calendar month (UTC)", session: "in a session", "all-time": "in all time",
};

function Card({ rule }: { rule: SignalRule }) {
  const budget = isBudget(rule);
  const action = budget ? (rule.onExceed ?? "block") : rule.action;
  const off = rule.enabled === false;
  return (
    <section class="card" aria-label={rule.id}>
      <div class="title">
        <h2>{rule.name ?? rule.id}</h2>
        <Badge state={budget ? "accepted" : "queued"} label={budget ? "budget" : "rule"} />
        {off && <Badge state="paused" label="not enabled" />}
        {rule.counting && <Badge state="connecting" label="counting" />}
        <span class="dim">for each {rule.scope === "org" ? "organisation" : rule.scope}, {SPANS[rule.window]}, then {action}</span>
      </div>
      {!budget && <p class="dim">{conditions(rule)}</p>}
      {rule.windows.length > 0 && <ul class="bars">{rule.windows.map((window) => <Bar key={window.scopeValue} rule={rule} window={window} />)}</ul>}
      {rule.windows.length === 0 && !off && rule.field && <p class="dim">{rule.counting ? "The stored signals are being counted." : "No signals in this window."}</p>}
    </section>
  );
}

const OPERATORS: Record<string, string> = { gt: ">", gte: "≥", lt: "<", lte: "≤", eq: "=", in: "in", not_in: "not in" };

/** Conditions in words: `cost usd ≥ 5 and model in a, b`. */
function conditions({ condition }: SignalRule): string {
  const tests = Object.entries(condition ?? {}).flatMap(([field, operations]) =>
    Object.entries(operations).map(([operator, value]) => `${field.replace("_", " ")} ${OPERATORS[operator] ?? operator} ${Array.isArray(value) ? value.join(", ") : String(value)}`),
  );
  return tests.join(" and ");
}

/** Bar of what is used, with what is left in words: never colour alone. */
function Bar({ rule, window }: { rule: SignalRule; window: RuleWindow }) {
  const unit = (value: number) => amount(value, rule.field);
  const name = window.scopeValue || "all";
  const share = window.limit > 0 ? window.used / window.limit : 1;
  const percent = Math.floor(share * 100);
  const exceeded = window.left <= 0;
  const warned = percent >= (rule.warnPercent ?? 80);
  const tone = exceeded ? "bad" : warned ? "warn" : "good";
  return (
    <li>
      <span class="cut" title={name}>{name}</span>
      <progress class={tone} max={1} value={Math.min(1, share)} aria-label={`${rule.id}, ${name}`}>{percent} %</progress>
      <span class="number">
        {unit(window.used)} of {unit(window.limit)}, <b class={exceeded ? "bad" : ""}>{exceeded ? "used up" : `${unit(window.left)} left`}</b>
        {window.until && <span class="dim">, until {time(window.until)}</span>}
      </span>
    </li>
  );
}

function Sessions({ items }: { items: SignalSession[] }) {
  return (
    <Table label="Live sessions" heads={["Session", "Tool", "User", "Project", "Last signal", ["Signals", "right"], ["Tokens in, out", "right"], ["Cost", "right"]]}>
      {items.map((one) => (
        <tr key={one.sessionId}>
          <td class="cut" title={one.sessionId}>{one.dispatchId ? <a href={link("dispatch", one.dispatchId)}>{one.sessionId}</a> : one.sessionId}</td>
          <td class="cut">{one.adapter} {one.pausedAt && <Badge state="paused" />}</td>
          <td class="cut">{one.userId ?? <span class="dim">none</span>}</td>
          <td class="cut">{one.projectId ?? <span class="dim">none</span>}</td>
          <td><Time at={one.lastAt} /></td>
          <td class="number right">{number(one.signalCount)}</td>
          <td class="number right">{number(one.totalTokensIn)}, {number(one.totalTokensOut)}</td>
          <td class="number right">{cost(one)}</td>
        </tr>
      ))}
    </Table>
  );
}

/** A cost that is unknown is no cost of zero. */
function cost({ totalCostUsd, unpricedCount }: SignalSession): string {
  if (unpricedCount === 0) return dollars(totalCostUsd);
  return `${totalCostUsd > 0 ? `${dollars(totalCostUsd)} and ` : ""}${plural(unpricedCount, "signal")} unpriced`;
}
