#!/usr/bin/env python3
"""External service in Python, with the standard library alone: invoices in memory.

    python3 billing.py [port]        serve over HTTP; prints the address
    python3 billing.py --stdio       answer one call on standard input, as a `stdio` service

The bridge checks the policy of an entry before it calls; this service trusts what the bridge sends and has to be
reachable by the bridge alone.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY_BYTES = 10 * 1024 * 1024

invoices = []


def create_invoice(args, auth):
    title = args.get("title")
    if not isinstance(title, str) or not title:
        raise ValueError("title must be a text")
    invoice = {"id": f"inv_{len(invoices) + 1}", "title": title, "tenant": auth.get("tenantId")}
    invoices.append(invoice)
    return invoice


def list_invoices(_args, auth):
    return [invoice for invoice in invoices if invoice["tenant"] == auth.get("tenantId")]


ENTRIES = {
    ("commands", "createInvoice"): create_invoice,
    ("queries", "listInvoices"): list_invoices,
}


def manifest(base_url):
    return {
        "forgeProtocol": "1.0",
        "language": "python",
        "framework": "http.server",
        "service": {"name": "billing", "transport": "http", "baseUrl": base_url, "health": "/health"},
        "entries": [
            {
                "name": "createInvoice",
                "kind": "command",
                "description": "Create an invoice",
                "path": "/commands/createInvoice",
                "policy": "billing.write",
                "transaction": "external-managed",
                "risk": "write",
                "effects": ["invoice.created"],
                "inputSchema": {
                    "type": "object",
                    "required": ["title"],
                    "properties": {"title": {"type": "string"}},
                },
            },
            {
                "name": "listInvoices",
                "kind": "query",
                "description": "List the invoices of the tenant",
                "path": "/queries/listInvoices",
                "policy": "billing.read",
                "transaction": "read-only",
                "risk": "read",
                "tenantScoped": True,
            },
        ],
    }


def answer(handler, envelope):
    """Calls an entry; returns the status and the body."""
    trace = envelope.get("forge", {}).get("traceId")
    try:
        result = handler(envelope.get("args") or {}, envelope.get("auth") or {"kind": "anonymous"})
        return 200, {"ok": True, "result": result, "traceId": trace}
    except ValueError as error:
        return failure(400, "BILLING_INVALID", str(error), trace)


def failure(status, code, message, trace=None):
    diagnostic = {"severity": "error", "code": code, "message": message}
    return status, {"ok": False, "diagnostics": [], "error": diagnostic, "traceId": trace}


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            self.reply(200, {"ok": True, "service": "billing"})
        elif self.path == "/manifest":
            self.reply(200, manifest("http://%s:%d" % self.server.server_address))
        else:
            self.reply(*failure(404, "BILLING_NOT_FOUND", "unknown route"))

    def do_POST(self):
        handler = ENTRIES.get(tuple(self.path.strip("/").split("/")))
        length = int(self.headers.get("content-length") or 0)
        if handler is None:
            self.close_connection = True
            self.reply(*failure(404, "BILLING_NOT_FOUND", "unknown entry"))
        elif length > BODY_BYTES:
            self.close_connection = True
            self.reply(*failure(413, "BILLING_TOO_LARGE", "the body is too large"))
        else:
            try:
                envelope = json.loads(self.rfile.read(length))
            except ValueError:
                envelope = None
            if isinstance(envelope, dict):
                self.reply(*answer(handler, envelope))
            else:
                self.reply(*failure(400, "BILLING_INVALID", "the body is not a JSON object"))

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def main():
    if sys.argv[1:] == ["--stdio"]:
        envelope = json.load(sys.stdin)
        kind = {"command": "commands", "query": "queries"}[envelope["forge"]["kind"]]
        status, body = answer(ENTRIES[kind, envelope["forge"]["entry"]], envelope)
        json.dump(body, sys.stdout)
        sys.exit(0 if status == 200 else 1)
    server = ThreadingHTTPServer(("127.0.0.1", int((sys.argv[1:] or ["8788"])[0])), Service)
    print("http://%s:%d" % server.server_address, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
