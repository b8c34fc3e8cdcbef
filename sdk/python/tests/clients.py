"""Both kinds of clients, called in the same way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import httpx

from forge_bridge import AsyncBridge, AsyncForgeSDK, Bridge, ForgeSDK

KINDS = ["sync", "async"]


class Client:
    """A client for one call: its methods return answers, and the list of all events in place of a stream."""

    def __init__(self, kind: str, url: str, *, runs: bool = False, managed: str | None = None, **options: Any) -> None:
        self._kind = kind
        self._managed = managed
        self._url = url
        self._runs = runs
        self._options = options

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._kind == "async":
                return asyncio.run(self._awaited(name, args, options))
            # Without certificates, which take longer to load than most of these tests.
            with httpx.Client(verify=False) as http:
                client: Any = (ForgeSDK if self._runs else Bridge)(self._url, "secret", http=http, **self._options)
                answer = getattr(self._target(client), name)(*args, **options)
                return list(answer) if inspect.isgenerator(answer) else answer

        return call

    async def _awaited(self, name: str, args: Any, options: Any) -> Any:
        async with httpx.AsyncClient(verify=False) as http:
            client: Any = (AsyncForgeSDK if self._runs else AsyncBridge)(
                self._url, "secret", http=http, **self._options
            )
            answer = getattr(self._target(client), name)(*args, **options)
            return [one async for one in answer] if inspect.isasyncgen(answer) else await answer

    def _target(self, client: Any) -> Any:
        return client if self._managed is None else client.management(self._managed)
