import { useEffect, useState } from "preact/hooks";
import { rough, time } from "./format";
import { HealthContext } from "./health";
import { useGlobalKeys } from "./keys";
import { live, useLiveState } from "./live";
import { useLoad } from "./load";
import { Adapters } from "./pages/adapters";
import { Deliveries } from "./pages/deliveries";
import { DispatchPage } from "./pages/dispatch";
import { Dispatches } from "./pages/dispatches";
import { Events } from "./pages/events";
import { Now } from "./pages/now";
import { ReferencePage } from "./pages/reference";
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
  ["adapters", "Adapters"],
  ["deliveries", "Deliveries"],
  ["events", "Events"],
  ["try", "Try it"],
] as const;
/** So far behind, the page offers to skip to the present. */
const LATE_SECONDS = 3;

export function App() {
  const route = useRoute();
  // The reference has an address of its own.
  const docs = location.pathname === "/docs";
  const health = useLoad(() => bridge.health(), [], 2000);
  // Asked again of another bridge at the same address: it may want another token.
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
  const name = docs ? "API" : (PAGES.find(([page]) => page === route.page)?.[1] ?? "Dispatch");
  const [shown, setShown] = useState(false);
  useEffect(() => {
    document.title = `${name} · forge-bridge`;
    if (shown) document.getElementById("page")?.focus();
    setShown(true);
  }, [route.page, route.id]);
  const current = docs ? "docs" : route.page === "dispatch" ? "dispatches" : route.page;
  return (
    <HealthContext.Provider value={health}>
      <a class="skip" href="#page" onClick={(event) => { event.preventDefault(); document.getElementById("page")?.focus(); }}>
        Skip to the page
      </a>
      <header>
        <a class="brand" href={`/${link("now")}`}>forge-bridge</a>
        <nav aria-label="Pages">
          {PAGES.map(([page, label]) => (
            <a key={page} href={`/${link(page)}`} aria-current={page === current ? "page" : undefined}>{label}</a>
          ))}
          <a href="/docs" aria-current={current === "docs" ? "page" : undefined}>API</a>
        </nav>
        <div class="status">
          {health.data && <span class="dim number">{health.data.version}, up {rough(health.data.uptimeSeconds * 1000)}</span>}
          {health.data?.draining && <Badge state="degraded" label="draining" />}
          <Badge state={health.error ? "offline" : (health.data?.status ?? "connecting")} label={health.error ? "no answer" : undefined} />
          {!docs && <Stream />}
          <button type="button" class="small" aria-label="Keys" title="Keys (?)" onClick={() => setHelp(true)}>?</button>
        </div>
      </header>
      <main id="page" tabIndex={-1} aria-label={name}>
        {health.error && heard ? (
          <p class="notice warn" role="status">The bridge does not answer; it is asked again every two seconds. What is shown is from {time(heard)}.</p>
        ) : null}
        {docs ? <ReferencePage /> : <Page route={route} />}
      </main>
      <KeysDialog open={help} close={() => setHelp(false)} />
      <TokenDialog wanted={!docs && wantsToken(access.error)} />
    </HealthContext.Provider>
  );
}

/** How the event stream is; a page that cannot keep up says so. */
function Stream() {
  const { state, behind } = useLiveState();
  if (state === "open" && behind >= LATE_SECONDS) {
    return (
      <button type="button" class="small" onClick={() => live.skip()} title="More happens than this page can read. Goes on from now.">
        {rough(behind * 1000)} behind, skip
      </button>
    );
  }
  return <span title="The event stream"><Badge state={state} label={state === "open" ? "live" : state} /></span>;
}

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case "dispatches":
      return <Dispatches route={route} />;
    case "dispatch":
      return route.id ? <DispatchPage key={route.id} id={route.id} /> : <Dispatches route={route} />;
    case "adapters":
      return <Adapters />;
    case "deliveries":
      return <Deliveries route={route} />;
    case "events":
      return <Events />;
    case "try":
      return <Try />;
    default:
      return <Now />;
  }
}
