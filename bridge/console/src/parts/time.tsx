import { time } from "../format";

/** Time of day; the tooltip shows the complete time with milliseconds. */
export function Time({ at }: { at: string | null | undefined }) {
  return at ? <time class="number" dateTime={at} title={at}>{time(at)}</time> : null;
}
