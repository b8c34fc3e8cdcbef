import { useNow } from "../clock";
import { dollars, duration, number } from "../format";
import type { Span } from "../spans";

/** Smallest width of a bar, in percent. */
const NARROWEST = 0.4;

/** Spans below each other over one time axis, with duration, tokens and cost of each. */
export function Waterfall({ spans, label }: { spans: Span[]; label: string }) {
  const now = useNow(spans.some((span) => span.to === undefined));
  if (spans.length === 0) return null;
  const first = Math.min(...spans.map((span) => span.from));
  const last = Math.max(first + 1, ...spans.map((span) => span.to ?? now));
  const share = (ms: number) => (Math.max(0, ms) / (last - first)) * 100;
  return (
    <ol class="waterfall" aria-label={label}>
      {spans.map(({ key, name, kind, depth, from, to = now, tokens, costUsd, note, bad, href }) => {
        const width = Math.max(NARROWEST, share(to - from));
        const left = Math.min(share(from - first), 100 - width);
        return (
          <li key={key}>
            <span class="cut" style={{ paddingLeft: `${depth}em` }} title={name}>{href ? <a href={href}>{name}</a> : name}</span>
            <span class="lane" aria-hidden="true"><i class={bad ? "bad" : kind} style={{ left: `${left}%`, width: `${width}%` }} /></span>
            <span class="number right">{duration(to - from)}</span>
            <span class="dim small">
              {[tokens && `${number(tokens)} tokens`, typeof costUsd === "number" && dollars(costUsd)].filter(Boolean).join(", ")}{" "}
              {note && <span class={bad ? "bad" : ""}>{note}</span>}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
