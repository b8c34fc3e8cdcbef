import { useEffect, useState } from "preact/hooks";

/** Parsed hash: `#/dispatches?status=running` is `{ page: "dispatches", id: undefined, query }`. */
export interface Route {
  page: string;
  id: string | undefined;
  query: URLSearchParams;
}

const NOT_FOUND = "not-found";
/** Pages that list records, and the page of one: `#/runs/ID` is `#/run/ID`. */
const RECORDS: Record<string, string> = { runs: "run", dispatches: "dispatch" };

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  try {
    const id = decodeURIComponent(rest.join("/")) || undefined;
    return { page: (id && RECORDS[page]) || page || "now", id, query: new URLSearchParams(query) };
  } catch {
    // A percent sign that begins no UTF-8 character: no link of the console has one.
    return { page: NOT_FOUND, id: undefined, query: new URLSearchParams() };
  }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export function link(page: string, id?: string, query: Record<string, string | undefined> = {}): string {
  const pairs = Object.entries(query).filter((pair): pair is [string, string] => !!pair[1]);
  const search = new URLSearchParams(pairs).toString();
  return `#/${page}${id ? `/${encodeURIComponent(id)}` : ""}${search ? `?${search}` : ""}`;
}

/** Writes the filters of a page to its address, so that they can be shared and survive a reload. */
export function setQuery(route: Route, changes: Record<string, string | undefined>): void {
  const next = Object.fromEntries([...route.query.entries(), ...Object.entries(changes)]);
  location.replace(link(route.page, route.id, next));
}
