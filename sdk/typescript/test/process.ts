import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";

export const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/** A bridge with the echo adapter in a folder of its own, which can be restarted on the same address. */
export class Process {
  readonly home = mkdtempSync(join(tmpdir(), "forge-bridge-sdk-"));
  url = "";
  #child: ChildProcess | undefined;

  constructor(readonly program: string) {}

  async start(): Promise<void> {
    const env = {
      PATH: process.env["PATH"],
      HOME: this.home,
      BRIDGE_LISTEN: this.url === "" ? "127.0.0.1:0" : new URL(this.url).host,
      BRIDGE_SIGNALS_LISTEN: "127.0.0.1:0",
      BRIDGE_DATA_DIR: join(this.home, "data"),
      BRIDGE_SECRET_KEY_FILE: join(this.home, "secret.key"),
      BRIDGE_PLUGIN_PATH: process.env["FORGE_PLUGINS"] ?? dirname(this.program),
      BRIDGE_ADAPTERS: "echo",
      BRIDGE_CALLBACK_ALLOW: "loopback",
      BRIDGE_CALLBACK_SECRETS: SECRET,
      BRIDGE_DRAIN_ACCEPT: "0s",
      BRIDGE_RUNS_PROVIDER: "echo",
      BRIDGE_RUNS_MODEL: "run",
      BRIDGE_RUNS_LOCAL_ROOTS: this.home,
    };
    const child = spawn(this.program, [], { env, cwd: this.home, stdio: ["ignore", "ignore", "pipe"] });
    this.#child = child;
    const log: string[] = [];
    const lines = createInterface({ input: child.stderr });
    this.url = await new Promise<string>((resolve, reject) => {
      lines.on("line", (line) => {
        log.push(line);
        const found = /listening on (http:\/\/[\d.:]+)/.exec(line);
        if (found?.[1]) resolve(found[1]);
      });
      child.once("error", reject);
      child.once("exit", (code) => reject(new Error(`the bridge ended with ${code}:\n${log.join("\n")}`)));
    });
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGTERM");
    await ended;
  }

  async end(): Promise<void> {
    await this.stop();
    rmSync(this.home, { recursive: true, force: true });
  }
}
