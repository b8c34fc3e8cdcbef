import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach } from "vitest";

export type Handler = (request: IncomingMessage, response: ServerResponse) => void;

let servers: Server[] = [];

/** Starts a server that ends with the test, and returns its URL. */
export async function listen(handler: Handler): Promise<string> {
  const server = createServer(handler);
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export async function text(request: IncomingMessage): Promise<string> {
  let body = "";
  for await (const piece of request) body += piece;
  return body;
}

afterEach(async () => {
  for (const server of servers) {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
  servers = [];
});
