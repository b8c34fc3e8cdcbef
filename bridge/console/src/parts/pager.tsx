import { link, type Route } from "../router";

/** Links to the first and the next page; the position is part of the address. */
export function Pager({ route, next, shown }: { route: Route; next: string | null | undefined; shown: number }) {
  const query = Object.fromEntries(route.query.entries());
  const first = link(route.page, undefined, { ...query, cursor: undefined });
  const within = route.query.get("cursor");
  if (!within && !next) return null;
  return (
    <nav class="pager" aria-label="Pages of the list">
      {within ? <a class="button" href={first}>Newest</a> : <span class="button off">Newest</span>}
      {next ? <a class="button" href={link(route.page, undefined, { ...query, cursor: next })}>Older</a> : <span class="button off">Older</span>}
      {next && shown === 0 && <span class="dim">No matches so far; older ones are not searched yet.</span>}
    </nav>
  );
}
