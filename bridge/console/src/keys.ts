import { useEffect, useRef } from "preact/hooks";
import { link } from "./router";

/** Pages by key: `g` followed by the key opens the page. */
export const PAGES: Record<string, string> = { n: "now", d: "dispatches", u: "runs", a: "adapters", r: "agents", s: "services", i: "signals", c: "cost", l: "deliveries", e: "events", t: "try" };
const KEPT = "forge-bridge.keys";
/** Maximum time between `g` and the letter. */
const PATIENCE_MS = 1500;

/** Setting for the shortcuts. Single keys can disturb speech input, so users can turn them off. */
export const keys = {
  get on(): boolean {
    return localStorage.getItem(KEPT) !== "off";
  },
  set on(wanted: boolean) {
    if (wanted) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, "off");
  },
};

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.closest("input, select, textarea, dialog") !== null || target.isContentEditable);
}

/** Calls `press` for keys pressed outside of fields and without modifiers. */
export function useKeys(press: (key: string) => void): void {
  const latest = useRef(press);
  latest.current = press;
  useEffect(() => {
    const down = (event: KeyboardEvent) => {
      if (!keys.on || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
      if (event.key === "/") event.preventDefault();
      latest.current(event.key);
    };
    window.addEventListener("keydown", down);
    return () => window.removeEventListener("keydown", down);
  }, []);
}

/** Shortcuts that work on every page. */
export function useGlobalKeys(help: () => void): void {
  const going = useRef(0);
  useKeys((key) => {
    if (Date.now() - going.current < PATIENCE_MS) {
      going.current = 0;
      const page = PAGES[key];
      if (page) location.assign(`/${link(page)}`);
      return;
    }
    if (key === "g") going.current = Date.now();
    if (key === "?") help();
    if (key === "/") document.querySelector<HTMLInputElement>("main input[type=search]")?.focus();
  });
}
