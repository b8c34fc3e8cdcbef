// Formatted by hand: the first `Intl` formatter costs 15 ms each time a page is opened.
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function ofDay(date: Date): string {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** Time of day, preceded by the date unless it is today. */
export function time(iso: string | null | undefined): string {
  if (!iso) return "";
  const date = new Date(iso);
  const today = date.toDateString() === new Date().toDateString();
  return today ? ofDay(date) : `${MONTHS[date.getMonth()]} ${date.getDate()} ${ofDay(date)}`;
}

/** Time of day of a Unix time in seconds. */
export function clock(seconds: number): string {
  return ofDay(new Date(seconds * 1000));
}

export function millis(from: string | undefined, to: string | undefined): number | undefined {
  if (!from || !to) return undefined;
  return Math.max(0, Date.parse(to) - Date.parse(from));
}

export function duration(ms: number | undefined): string {
  if (ms === undefined) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return rough(ms);
}

/** Formats a duration that is still growing, in whole seconds. */
export function rough(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return "not reported";
  const [whole = "", part] = String(value).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function dollars(value: number | null | undefined): string {
  if (value === null || value === undefined) return "not reported";
  return `$${value < 0.01 ? value.toFixed(6) : value.toFixed(4)}`;
}

/** Amount of a sum of signals, such as `cost_usd` or `tokens`. */
export function amount(value: number, field: string | null): string {
  if (field === "cost_usd") return value === 0 || value >= 0.01 ? `$${number(Number(value.toFixed(2)))}` : dollars(value);
  return `${number(value)} ${field?.replace("_", " ") ?? ""}`;
}

export function json(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
