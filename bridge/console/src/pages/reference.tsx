import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { leisure } from "../leisure";
import { useLoad } from "../load";
import { Empty, Problem } from "../parts/notice";
import { type Operation, type Parameter, type Reference, type Schema, operations, shape } from "../reference";
import { bridge } from "../session";

/** Schemas that no operation refers to, by the section that shows them. */
const FURTHER: Record<string, string> = { Events: "EventData", Runs: "ForgeEventData" };

/** Reference of the HTTP interface, from `openapi.json`. */
export function ReferencePage() {
  const page = useLoad(async () => (await bridge.reference()) as Reference, []);
  const reference = page.data;
  if (!reference) return <><h1>HTTP interface</h1><Problem error={page.error} />{page.loading && <Empty>Loading …</Empty>}</>;
  const all = operations(reference);
  return (
    <div class="reference">
      <nav aria-label="Operations">
        {reference.tags.map((tag) => (
          <div key={tag.name}>
            <b>{tag.name}</b>
            <ul>
              {all.filter((one) => one.tags?.includes(tag.name)).map((one) => (
                <li key={one.operationId}><Anchor to={one.operationId}>{one.summary}</Anchor></li>
              ))}
            </ul>
          </div>
        ))}
      </nav>
      <div class="stacked">
        <h1>HTTP interface</h1>
        <p><Prose text={reference.info.description} /></p>
        <p class="dim">Also as OpenAPI 3.1: <a href="/openapi.json">openapi.json</a>. Each member has its type, unit and default.</p>
        {reference.tags.map((tag, turn) => (
          <div key={tag.name} class="stacked">
            <h2 class="tag">{tag.name}</h2>
            <p class="dim"><Prose text={tag.description} /></p>
            {all.filter((one) => one.tags?.includes(tag.name)).map((one, place) => (
              <Later key={one.operationId} first={turn + place === 0}><Card reference={reference} one={one} /></Later>
            ))}
            {FURTHER[tag.name] && <Further reference={reference} name={FURTHER[tag.name]!} />}
          </div>
        ))}
        <h2 class="tag">The callback</h2>
        {Object.values(reference.webhooks).map((item) => item.post && <Card key="webhook" reference={reference} one={{ ...item.post, method: "post", path: "your callbackUrl" }} />)}
        <h2 class="tag">Errors</h2>
        {["Error", "ErrorCode", "ErrorDetails"].map((name) => <Further key={name} reference={reference} name={name} />)}
      </div>
    </div>
  );
}

/** Renders its content at once if it comes first, otherwise when the page is idle: all operations together take long. */
function Later({ first, children }: { first: boolean; children: ComponentChildren }) {
  const [isDue, setDue] = useState(first);
  useEffect(() => void leisure().then(() => setDue(true)), []);
  return <>{isDue && children}</>;
}

function Further({ reference, name }: { reference: Reference; name: string }) {
  return <Fold summary={<code>{name}</code>}><Members reference={reference} schema={{ $ref: `#/components/schemas/${name}` }} /></Fold>;
}

/** Link to an operation; scrolls by script, since the hash of the address belongs to the console's router. */
function Anchor({ to, children }: { to: string; children: ComponentChildren }) {
  const jump = (event: Event) => {
    event.preventDefault();
    const element = document.getElementById(to);
    element?.scrollIntoView();
    element?.focus({ preventScroll: true });
  };
  return <a href={`#${to}`} onClick={jump}>{children}</a>;
}

function Card({ reference, one }: { reference: Reference; one: Operation }) {
  const body = one.requestBody?.content["application/json"]?.schema;
  return (
    <section id={one.operationId} tabIndex={-1} aria-label={one.summary}>
      <div class="title">
        <h3>{one.summary}</h3>
        <code><b>{one.method.toUpperCase()}</b> {one.path}</code>
      </div>
      {one.description && <p><Prose text={one.description} /></p>}
      {one.parameters && <Parameters list={one.parameters} />}
      {body && <><h4>Body</h4><Members reference={reference} schema={body} /></>}
      <h4>Responses</h4>
      <dl class="answers">
        {Object.entries(one.responses).map(([status, answer]) => {
          const whole = shape(reference, answer);
          return (
            <div key={status}>
              <dt class="number">{status}</dt>
              <dd>
                <Prose text={whole.description} />
                {status.startsWith("2") && Object.entries(whole.content ?? {}).map(([kind, { schema }]) => (
                  <Fold key={kind} summary={<code>{kind}</code>}>
                    {schema && <Members reference={reference} schema={schema} />}
                  </Fold>
                ))}
              </dd>
            </div>
          );
        })}
      </dl>
    </section>
  );
}

function Parameters({ list }: { list: Parameter[] }) {
  return (
    <>
      <h4>Parameters</h4>
      <dl class="members">
        {list.map((one) => (
          <div key={`${one.in}${one.name}`}>
            <dt><code>{one.name}</code> <span class="dim">{one.in}{one.required ? ", required" : ""}</span></dt>
            <dd><Prose text={one.description} /> <Facts schema={one.schema} /></dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function Members({ reference, schema, depth = 0 }: { reference: Reference; schema: Schema; depth?: number }) {
  const whole = shape(reference, schema);
  const choices = whole.anyOf ?? whole.oneOf;
  if (choices) return <>{choices.map((choice, index) => <Members key={index} reference={reference} schema={choice} depth={depth} />)}</>;
  if (whole.items) return <><span class="dim">a list of</span> <Members reference={reference} schema={whole.items} depth={depth} /></>;
  if (!whole.properties) return <p><Prose text={whole.description} /> <Facts schema={whole} /></p>;
  return (
    <>
      {depth === 0 && whole.description && <p class="dim"><Prose text={whole.description} /></p>}
      <dl class="members">
        {Object.entries(whole.properties).map(([name, member]) => {
          const inner = shape(reference, member);
          const nested = inner.properties ?? shape(reference, inner.items ?? {}).properties;
          return (
            <div key={name}>
              <dt><code>{name}</code> {whole.required?.includes(name) && <span class="dim">required</span>}</dt>
              <dd>
                <Prose text={member.description ?? inner.description} /> <Facts schema={inner} />
                {nested && depth < 3 && <Fold summary="members"><Members reference={reference} schema={inner} depth={depth + 1} /></Fold>}
              </dd>
            </div>
          );
        })}
      </dl>
    </>
  );
}

/** Details element whose content is rendered when opened: together these are most of the page. */
function Fold({ summary, children }: { summary: ComponentChildren; children: ComponentChildren }) {
  const [opened, setOpened] = useState(false);
  return <details onToggle={() => setOpened(true)}><summary>{summary}</summary>{opened && children}</details>;
}

/** Text whose parts in backquotes are set as code. */
function Prose({ text }: { text: string | undefined }) {
  return <>{text?.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

/** Type, bounds and default on one line. */
function Facts({ schema }: { schema: Schema }) {
  const facts = [
    Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type,
    schema.format,
    schema.enum?.map((value) => JSON.stringify(value)).join(", "),
    schema.minimum !== undefined && `from ${schema.minimum}`,
    schema.exclusiveMinimum !== undefined && `above ${schema.exclusiveMinimum}`,
    schema.maximum !== undefined && `to ${schema.maximum}`,
    schema.maxLength !== undefined && `at most ${schema.maxLength} bytes`,
    schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
  ].filter(Boolean);
  return facts.length ? <span class="dim">({facts.join("; ")})</span> : null;
}
