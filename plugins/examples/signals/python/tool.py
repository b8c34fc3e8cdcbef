"""A tool that uses the adapter: two calls of a model in one session. A block stops it with an error."""

import os
import time

from adapter import ForgAdapter

forg = ForgAdapter("example-python-forg", os.environ.get("FORG_USER_ID"))
forg.start_session()
try:
    for tokens_in in (100, 200):
        start = time.monotonic()
        text, model, used = "an answer", "claude-opus-4-5", (tokens_in, 50)
        latency_ms = round((time.monotonic() - start) * 1000)
        blocked, message = forg.emit(model, *used, latency_ms=latency_ms)
        if blocked:
            raise SystemExit(f"FORG policy blocked this request: {message}")
        print(text)
finally:
    forg.end_session()
