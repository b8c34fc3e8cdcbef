import { link, type Route } from "../router";

/** To the first page and to the next; where one stands is in the address. */
export function Pager({ route, next }: { route: Route; next: string | null | undefined }) {
  const query = Object.fromEntries(route.query.entries());
  const first = link(route.page, undefined, { ...query, cursor: undefined });
  return (
    <nav class="pager" aria-label="Pages">
      {route.query.get("cursor") ? <a href={first}>Newest</a> : <span class="dim">Newest</span>}
      {next ? <a href={link(route.page, undefined, { ...query, cursor: next })}>Older</a> : <span class="dim">Older</span>}
    </nav>
  );
}
