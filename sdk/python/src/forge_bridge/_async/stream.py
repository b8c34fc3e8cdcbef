"""Streams of events that resume after a disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx

from ..errors import BridgeError
from .transport import backoff

IDLE_SECONDS = 40.0
"""Silence, heartbeats included, after which a stream counts as disconnected. The bridge sends one every 15 s."""

LONGEST_PAUSE = 10.0

OnState = Callable[[str, "BridgeError | None"], None]
Open = Callable[["str | None"], "AbstractAsyncContextManager[httpx.Response | None]"]


async def resume(open: Open, after: str | None, cursor: str, on_state: OnState | None) -> AsyncIterator[Any]:
    """Yields every event once, over as many connections as needed. `open` opens the stream after an event; it ends
    with 204 or `None`. Raises errors that are not temporary."""
    failures = 0
    while True:
        try:
            async with open(after) as response:
                if response is None or response.status_code == 204:
                    return
                if on_state is not None:
                    on_state("open", None)
                is_empty = True
                async for event in events(response):
                    is_empty = False
                    failures = 0
                    after = event[cursor]
                    yield event
            if is_empty:
                # No progress, as after a failure: a proxy, or a bridge that stops, can end every stream at once.
                failures += 1
                await asyncio.sleep(backoff(failures, LONGEST_PAUSE))
            continue
        except (BridgeError, httpx.RequestError, ValueError) as error:
            failure = error if isinstance(error, BridgeError) else BridgeError.unanswered(error)
            if not failure.is_temporary:
                raise failure from (None if failure is error else error)
            failures += 1
            if on_state is not None:
                on_state("retrying", failure)
        await asyncio.sleep(backoff(failures, LONGEST_PAUSE) if failure.retry_after is None else failure.retry_after)


async def pause_after_end(ends: int) -> None:
    """Pauses after this number of streams in a row that ended without an event."""
    await asyncio.sleep(backoff(ends, LONGEST_PAUSE))


async def events(response: httpx.Response) -> AsyncIterator[Any]:
    """Yields one event per line; empty lines and those with ":" are heartbeats. A cut last line is dropped, since it
    is sent again."""
    # Pieces of the line that has not ended: joined once, so that a long line costs what it is long.
    rest: list[bytes] = []
    # Not by lines of httpx: they end at U+2028 and others as well, which JSON can have inside of texts.
    async for piece in response.aiter_bytes():
        first, *lines = piece.split(b"\n")
        rest.append(first)
        if not lines:
            continue
        lines.insert(0, b"".join(rest))
        rest = [lines.pop()]
        for line in lines:
            if not line.strip() or line.startswith(b":"):
                continue
            event = json.loads(line)
            # Last line of a stream whose token is no longer valid: the next connection is refused with the reason.
            if event["type"] == "unauthorized":
                return
            # The bridge leaves it out where it is empty.
            event.setdefault("data", {})
            yield event
