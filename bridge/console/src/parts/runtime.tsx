import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { useLoad } from "../load";
import { type Change, hasInterface, RUNTIME_PAGES, type Runtime, runtimeOf } from "../manage";
import { link, type Route } from "../router";
import { bridge } from "../session";
import { Empty, Problem, Skeleton } from "./notice";

interface Properties {
  route: Route;
  title: string;
  children: (runtime: Runtime) => ComponentChildren;
}

/** Frame of a page about one runtime: the choice of the adapter, and the pages that it has. */
export function RuntimeFrame({ route, title, children }: Properties) {
  const page = useLoad(() => bridge.adapters(), [], undefined, "runtimes");
  const wanted = RUNTIME_PAGES.find(([name]) => name === route.page)?.[2] ?? [];
  const able = page.data?.adapters.filter((adapter) => hasInterface(adapter, wanted)) ?? [];
  const named = route.query.get("provider");
  const standard = able.find((adapter) => adapter.provider === page.data?.default) ?? able[0];
  const adapter = named ? able.find((one) => one.provider === named) : standard;
  const provider = adapter?.provider;
  const runtime = useMemo(() => (provider === undefined ? undefined : runtimeOf(provider)), [provider]);
  return (
    <>
      <h1>{title}</h1>
      <Problem error={page.error} />
      {!page.data && !page.error && <Skeleton lines={6} />}
      {page.data && able.length === 0 && <Empty>No loaded adapter manages {route.page} of a runtime.</Empty>}
      {able.length > 0 && !adapter && <Empty>The adapter {named} manages no {route.page}. <a href={link(route.page)}>Show another one</a></Empty>}
      {adapter && (
        <div class="title">
          <label class="inline">
            Adapter{" "}
            <select value={provider} onChange={(event) => { location.hash = link(route.page, undefined, { provider: event.currentTarget.value }); }}>
              {able.map((one) => <option key={one.provider} value={one.provider}>{one.provider}</option>)}
            </select>
          </label>
          <nav class="tabs" aria-label="Runtime">
            {RUNTIME_PAGES.filter(([, , interfaces]) => hasInterface(adapter, interfaces)).map(([name, label]) => (
              <a key={name} href={link(name, undefined, { provider })} aria-current={name === route.page ? "page" : undefined}>{label}</a>
            ))}
          </nav>
        </div>
      )}
      {adapter && adapter.health.status !== "healthy" && <p class="notice warn">{adapter.provider} is {adapter.health.status}{adapter.health.message && `: ${adapter.health.message}`}</p>}
      {runtime && <div class="stacked" key={`${runtime.provider} ${route.id ?? ""}`}>{children(runtime)}</div>}
    </>
  );
}

/** Result or error of a change. */
export function Changed({ change }: { change: Change }) {
  return (
    <>
      <p role="status" class={change.said ? "dim" : "hidden"}>{change.said}</p>
      <Problem error={change.problem} />
    </>
  );
}
