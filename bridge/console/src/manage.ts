import { type Adapter, BridgeError, type Management } from "@forge-bridge/client";
import { useState } from "preact/hooks";
import { bridge } from "./session";

/** Pages of a runtime, with the interfaces of which an adapter must have one. */
export const RUNTIME_PAGES = [
  ["agents", "Agents", ["agents", "runtime"]],
  ["skills", "Skills", ["skills", "runtime"]],
  ["models", "Models and security", ["system", "runtime"]],
] as const;

/** Management of the runtime behind one adapter. */
export interface Runtime extends Management {
  provider: string;
}

export function runtimeOf(provider: string): Runtime {
  return Object.assign(bridge.management(provider), { provider });
}

/** Returns true if the adapter has one of these interfaces, such as `agents`; adapters state `agents@1`. */
export function hasInterface(adapter: Adapter, names: readonly string[]): boolean {
  return adapter.interfaces.some((stated) => names.includes(stated.replace(/@.*/, "")));
}

function isUnsupported(error: unknown): boolean {
  return error instanceof BridgeError && error.code === "NOT_SUPPORTED";
}

/** Returns null if the adapter does not have the method: its part of the page is left out. */
export async function ifSupported<T>(answer: Promise<T>): Promise<T | null> {
  try {
    return await answer;
  } catch (error) {
    if (isUnsupported(error)) return null;
    throw error;
  }
}

/** Changes that an adapter answered with `NOT_SUPPORTED`, as `provider method`; kept until the page is reloaded. */
const unsupported = new Set<string>();

export type Method = keyof Management;

export function canCall(runtime: Runtime, method: Method): boolean {
  return !unsupported.has(`${runtime.provider} ${method}`);
}

export interface Change {
  /** Result of the last change, for a status line. */
  said: string;
  problem: unknown;
  busy: boolean;
  /** Runs a change; `done` returns the text of its result. */
  run: <T>(method: Method, change: () => Promise<T>, done: (answer: T) => string) => void;
}

/** State of the changes of one part of a page. A method that the adapter does not have is not offered again. */
export function useChange(runtime: Runtime): Change {
  const [state, setState] = useState<Omit<Change, "run">>({ said: "", problem: undefined, busy: false });
  const run: Change["run"] = (method, change, done) => {
    setState({ said: "…", problem: undefined, busy: true });
    change().then(
      (answer) => setState({ said: done(answer), problem: undefined, busy: false }),
      (error: unknown) => {
        if (!isUnsupported(error)) return setState({ said: "", problem: error, busy: false });
        unsupported.add(`${runtime.provider} ${method}`);
        setState({ said: `The adapter ${runtime.provider} does not support this. Nothing was changed.`, problem: undefined, busy: false });
      },
    );
  };
  return { ...state, run };
}
