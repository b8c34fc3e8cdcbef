import type { ArtifactInfo } from "@forge-bridge/client";
import { useEffect, useRef } from "preact/hooks";
import { number, plural } from "../format";
import { useLoad } from "../load";
import { link } from "../router";
import { forge } from "../session";
import { Copy } from "./copy";
import { Empty, Problem, Skeleton } from "./notice";
import { Time } from "./time";

/** Files of a run that are no part of the repository, with the content of one of them. */
export function Artifacts({ runId, artifacts, selected }: { runId: string; artifacts: Record<string, ArtifactInfo>; selected: string | undefined }) {
  const all = Object.entries(artifacts).sort(([one], [other]) => (one < other ? -1 : 1));
  return (
    <section class="stack" aria-labelledby="artifacts">
      <h2 id="artifacts">Artifacts</h2>
      {all.length === 0 && <Empty>None yet: the Captain writes specifications and tasks, each task a walkthrough.</Empty>}
      {all.length > 0 && (
        <details open={selected !== undefined}>
          <summary>{plural(all.length, "file")}</summary>
          <ol class="attempts listing" tabIndex={0} aria-label="Artifacts">
            {all.map(([path, info]) => (
              <li key={path}>
                <a class="id" href={link("run", runId, { artifact: path })} aria-current={path === selected ? "true" : undefined}><code>{path}</code></a>
                <span class="dim number">{number(info.size)} bytes, <Time at={info.updatedAt} /></span>
              </li>
            ))}
          </ol>
        </details>
      )}
      {selected !== undefined && <Content key={selected} runId={runId} path={selected} version={artifacts[selected]?.updatedAt} />}
    </section>
  );
}

function Content({ runId, path, version }: { runId: string; path: string; version: string | undefined }) {
  const page = useLoad(() => forge.getArtifact(runId, path), [runId, path, version]);
  const text = useRef<HTMLPreElement>(null);
  // The link can be far away on a narrow screen.
  useEffect(() => text.current?.scrollIntoView({ block: "nearest" }), [page.data === undefined]);
  return (
    <>
      <div class="title"><h3 class="id">{path}</h3> {page.data && <Copy text={page.data} name={path} />}</div>
      <Problem error={page.error} />
      {page.data === undefined && !page.error && <Skeleton lines={4} />}
      {page.data !== undefined && <pre class="said" ref={text} tabIndex={0} aria-label={`Content of ${path}`}>{page.data}</pre>}
    </>
  );
}
