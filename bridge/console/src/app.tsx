import { useEffect, useState } from "preact/hooks";
import { duration } from "./format";
import { useLiveState } from "./live";
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
import { TokenDialog } from "./parts/token";
import { link, type Route, useRoute } from "./router";
import { bridge, wantsToken } from "./session";

const PAGES = [
  ["now", "Now"],
  ["dispatches", "Dispatches"],
  ["adapters", "Adapters"],
  ["deliveries", "Deliveries"],
  ["events", "Events"],
  ["try", "Try it"],
] as const;

export function App() {
  const route = useRoute();
  // The reference has an address of its own.
  const docs = location.pathname === "/docs";
  const health = useLoad(() => bridge.health(), [], 2000);
  const access = useLoad(() => bridge.adapters(), []);
  const state = useLiveState();
  const name = docs ? "API" : (PAGES.find(([page]) => page === route.page)?.[1] ?? "Dispatch");
  const [shown, setShown] = useState(false);
  useEffect(() => {
    document.title = `${name} · forge-bridge`;
    if (shown) document.getElementById("page")?.focus();
    setShown(true);
  }, [route.page, route.id]);
  const current = docs ? "docs" : route.page === "dispatch" ? "dispatches" : route.page;
  return (
    <div class="shell">
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
          {health.data && <span class="dim number">{health.data.version}, up {duration(health.data.uptimeSeconds * 1000)}</span>}
          {health.data?.draining && <Badge state="degraded" label="draining" />}
          <Badge state={health.error ? "offline" : (health.data?.status ?? "connecting")} label={health.error ? "no answer" : undefined} />
          {!docs && <span title="The event stream"><Badge state={state} label={state === "open" ? "live" : state} /></span>}
        </div>
      </header>
      <main id="page" tabIndex={-1} aria-label={name}>
        {docs ? <ReferencePage /> : <Page route={route} />}
      </main>
      <TokenDialog wanted={!docs && wantsToken(access.error)} />
    </div>
  );
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
