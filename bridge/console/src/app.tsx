import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { rough, time } from "./format";
import { HealthContext } from "./health";
import { useGlobalKeys } from "./keys";
import { live, useLiveState } from "./live";
import { useLoad } from "./load";
import { RUNTIME_PAGES } from "./manage";
import { Adapters } from "./pages/adapters";
import { Agents } from "./pages/agents";
import { Cost } from "./pages/cost";
import { Deliveries } from "./pages/deliveries";
import { DispatchPage } from "./pages/dispatch";
import { Dispatches } from "./pages/dispatches";
import { Events } from "./pages/events";
import { Models } from "./pages/models";
import { Nodes } from "./pages/nodes";
import { Now } from "./pages/now";
import { ReferencePage } from "./pages/reference";
import { RunPage } from "./pages/run";
import { Runs } from "./pages/runs";
import { Services } from "./pages/services";
import { Signals } from "./pages/signals";
import { Skills } from "./pages/skills";
import { Try } from "./pages/try";
import { Badge } from "./parts/badge";
import { KeysDialog } from "./parts/keys";
import { TokenDialog } from "./parts/token";
import { link, type Route, useRoute } from "./router";
import { bridge, wantsToken } from "./session";
import { countEvents, sample } from "./throughput";

const PAGES = [
  ["now", "Now"],
  ["dispatches", "Dispatches"],
  ["runs", "Runs"],
  ["adapters", "Adapters"],
  ["agents", "Agents"],
  ["services", "Services"],
  ["signals", "Signals"],
  ["cost", "Cost"],
  ["deliveries", "Deliveries"],
  ["events", "Events"],
  ["try", "Try it"],
] as const;
/** Shown only where several bridges can share the store. */
const NODES = ["nodes", "Nodes"] as const;
/** Pages of one record: the page that lists it, and the name. */
const PARTS: Record<string, [string, string]> = { dispatch: ["dispatches", "Dispatch"], run: ["runs", "Run"] };
/** Lag from which the page offers to skip to the present. */
const LATE_SECONDS = 3;

export function App() {
  const route = useRoute();
  // The API reference has its own address.
  const docs = location.pathname === "/docs";
  const health = useLoad(() => bridge.health(), [], 2000);
  // Repeated for another bridge at the same address, which might require another token.
  const access = useLoad(() => bridge.adapters(), [health.data?.instanceId]);
  const [help, setHelp] = useState(false);
  useGlobalKeys(() => setHelp(true));
  useEffect(() => (docs ? undefined : countEvents()), []);
  const [heard, setHeard] = useState<string>();
  useEffect(() => {
    if (!health.data) return;
    sample(health.data);
    setHeard(new Date().toISOString());
  }, [health.data]);
  const name = docs ? "API" : ([...PAGES, NODES, ...RUNTIME_PAGES].find(([page]) => page === route.page)?.[1] ?? PARTS[route.page]?.[1] ?? "Not found");
  const [shown, setShown] = useState(false);
  // With the page, not after it is painted: a key that is pressed between could have moved the focus already.
  useLayoutEffect(() => {
    document.title = `${name} · forge-bridge`;
    if (shown) document.getElementById("page")?.focus({ preventScroll: true });
    setShown(true);
    // A new entry of the history begins at the top; one that is returned to is scrolled by the browser.
    if (docs || history.state) return;
    history.replaceState(true, "");
    scrollTo(0, 0);
  }, [route.page, route.id]);
  // On a narrow screen the pages scroll sideways.
  useLayoutEffect(() => document.querySelector("header nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [route.page, shown, health.data?.store.node]);
  const isRuntime = RUNTIME_PAGES.some(([page]) => page === route.page);
  const current = docs ? "docs" : PARTS[route.page]?.[0] ?? (isRuntime ? "agents" : route.page);
  return (
    <HealthContext.Provider value={health}>
      <a class="skip" href="#page" onClick={(event) => { event.preventDefault(); document.getElementById("page")?.focus(); }}>
        Skip to content
      </a>
      <header>
        {/* Checkers take what stands before the first link to another page for skip links. */}
        <a class="brand" href={`./${link("now")}`}>forge-bridge</a>
        <nav aria-label="Pages">
          {(health.data?.store.node ? [...PAGES, NODES] : PAGES).map(([page, label]) => (
            <a key={page} href={`/${link(page)}`} aria-current={page === current ? "page" : undefined}>{label}</a>
          ))}
          <a href="/docs" aria-current={current === "docs" ? "page" : undefined}>API</a>
        </nav>
        <div class="status">
          {health.data && <span class="dim number">{health.data.version}, up {rough(health.data.uptimeSeconds * 1000)}</span>}
          {health.data?.draining && <Badge state="degraded" label="draining" />}
          <Badge state={health.error ? "offline" : (health.data?.status ?? "connecting")} label={health.error ? "no answer" : undefined} />
          {!docs && <Stream />}
          <button type="button" class="small" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={() => setHelp(true)}>?</button>
        </div>
      </header>
      <main id="page" tabIndex={-1} aria-label={name}>
        {health.error && heard ? (
          <p class="notice warn" role="status">The bridge does not answer; retrying every two seconds. The data shown are from {time(heard)}.</p>
        ) : null}
        {health.data?.store.message && (
          <p class={`notice ${health.data.store.status === "offline" ? "bad" : "warn"}`} role="status">The store is {health.data.store.status}: {health.data.store.message}.</p>
        )}
        {docs ? <ReferencePage /> : <Page route={route} />}
      </main>
      <KeysDialog open={help} close={() => setHelp(false)} />
      <TokenDialog wanted={!docs && wantsToken(access.error)} />
    </HealthContext.Provider>
  );
}

/** State of the event stream, or the lag of a page that cannot keep up. */
function Stream() {
  const { state, behind } = useLiveState();
  if (state === "open" && behind >= LATE_SECONDS) {
    return (
      <button type="button" class="small" onClick={() => live.skip()} title="Events arrive faster than this page can read them. Continues from now.">
        {rough(behind * 1000)} behind, skip
      </button>
    );
  }
  return <span title="Event stream"><Badge state={state} label={state === "open" ? "live" : state} /></span>;
}

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case "dispatches":
      return <Dispatches route={route} />;
    case "dispatch":
      return route.id ? <DispatchPage key={route.id} id={route.id} /> : <Dispatches route={route} />;
    case "runs":
      return <Runs route={route} />;
    case "run":
      return route.id ? <RunPage key={route.id} route={route} id={route.id} /> : <Runs route={route} />;
    case "adapters":
      return <Adapters />;
    case "agents":
      return <Agents route={route} />;
    case "skills":
      return <Skills route={route} />;
    case "models":
      return <Models route={route} />;
    case "services":
      return <Services />;
    case "signals":
      return <Signals />;
    case "cost":
      return <Cost route={route} />;
    case "deliveries":
      return <Deliveries route={route} />;
    case "nodes":
      return <Nodes />;
    case "events":
      return <Events />;
    case "try":
      return <Try key={route.id} from={route.id} />;
    case "now":
      return <Now />;
    default:
      return <NotFound />;
  }
}

function NotFound() {
  return (
    <>
      <h1>Not found</h1>
      <p>There is no page at this address. <a href={`/${link("now")}`}>Show the bridge</a></p>
    </>
  );
}
