// Checks that the console sends requests only through the client package.

import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";

const source = new URL("./src/", import.meta.url).pathname;
const files = readdirSync(source, { recursive: true }).filter((name) => /\.tsx?$/.test(name));
const found = files.flatMap((name) =>
  readFileSync(path.join(source, name), "utf8")
    .split("\n")
    .flatMap((line, index) => (/\b(fetch|EventSource|XMLHttpRequest|WebSocket)\b/.test(line) ? [`src/${name}:${index + 1}: ${line.trim()}`] : [])),
);
if (found.length > 0) {
  console.error(`requests must go through @forge-bridge/client:\n${found.join("\n")}`);
  process.exit(1);
}
console.log(`${files.length} files send requests only through the client`);
