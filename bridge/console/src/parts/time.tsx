import { time } from "../format";

/** A time of day; the whole of it, with its milliseconds, where one points at it. */
export function Time({ at }: { at: string | null | undefined }) {
  return at ? <time class="number" dateTime={at} title={at}>{time(at)}</time> : null;
}
