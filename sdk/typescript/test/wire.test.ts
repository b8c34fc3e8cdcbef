import { execFileSync } from "node:child_process";
import { test } from "vitest";

test("the generated types are those of openapi.json", () => {
  execFileSync("python3", [new URL("../../wire/generate.py", import.meta.url).pathname, "--check"], { encoding: "utf8" });
});
