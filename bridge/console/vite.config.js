import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

// Four files with fixed names: the bridge embeds them (`bridge/crates/server/src/console.rs`).
export default defineConfig({
  base: "./",
  resolve: {
    alias: { "@forge-bridge/client": fileURLToPath(new URL("../../sdk/typescript/src/index.ts", import.meta.url)) },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: { "/api": process.env.BRIDGE_URL ?? "http://127.0.0.1:7420" } },
  build: {
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        chunkFileNames: "charts.js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "console.css" : "[name][extname]"),
      },
    },
  },
});
