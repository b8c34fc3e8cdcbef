"""Requests of a client: authentication, repetitions and errors."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from ..errors import BridgeError

Answer = TypeVar("Answer")

LONGEST_PAUSE = 30.0


def at(*parts: str) -> str:
    """Path of these parts, each escaped. Dots are refused: a URL cannot have them as parts, and would name another route."""
    for part in parts:
        if part in (".", ".."):
            raise BridgeError.unsendable(f'"{part}" cannot be part of a path')
    try:
        return "/" + "/".join(quote(part, safe="") for part in parts)
    except UnicodeEncodeError as error:
        raise BridgeError.unsendable(f"an id is no text: {error}") from error


def encode(body: object) -> bytes | None:
    """Body as JSON. What JSON cannot hold, such as half a character, is refused with its place."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BridgeError.unsendable(f"the body is no JSON: {error}") from error


def backoff(failures: int, most: float) -> float:
    """Pause after a number of failures: doubles from 250 ms up to `most` seconds, with jitter."""
    ceiling = min(most, 0.25 * 2.0 ** min(failures, 16))
    return ceiling * (0.5 + random.random() / 2)


def is_success(status: int) -> bool:
    return 200 <= status < 300


def decode(response: httpx.Response) -> Any:
    return None if response.status_code == 204 else response.json()


def connect(base_url: str, limits: httpx.Limits) -> httpx.AsyncClient:
    """Client of this bridge. One on this machine is not called through a proxy of the environment, which cannot reach it."""
    if urlsplit(base_url).hostname in ("localhost", "127.0.0.1", "::1"):
        return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(limits=limits))
    try:
        return httpx.AsyncClient(limits=limits)
    except ImportError as error:
        # Of a SOCKS proxy in ALL_PROXY; httpx names the package that it needs.
        raise BridgeError.unsendable(f"the proxy of the environment cannot be used: {error}") from error


class AsyncTransport:
    """HTTP client of a bridge. Safe to share."""

    def __init__(
        self,
        base_url: str,
        token: str | Callable[[], str | None] | None,
        timeout: float,
        max_retries: int,
        http: httpx.AsyncClient | None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._token = token
        self.timeout = timeout
        self._max_retries = max_retries
        # Without a bound: each stream holds a connection, and a request that waits for one would time out.
        self._http = http or connect(base_url, httpx.Limits(max_keepalive_connections=20))
        self._owns_http = http is None

    async def aclose(self) -> None:
        if self._owns_http:
            await self._http.aclose()

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        # A token of a file or a secret of Kubernetes often ends with its line.
        token = token and token.strip()
        return {**headers, **({"Authorization": f"Bearer {token}"} if token else {})}

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str | None = None,
        is_safe: bool | None = None,
        timeout: float | None = None,
        expects: Callable[[int], bool] = is_success,
        accept: str = "*/*",
        read: Callable[[httpx.Response], Answer],
    ) -> Answer:
        """Sends a request and reads its answer; raises an answer that is an error. `is_safe`: a second execution
        changes nothing, so that the request can be repeated; the default is true for GET and with a key."""
        content = encode(body)
        headers = {"Accept": accept}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        safe = (method == "GET" or key is not None) if is_safe is None else is_safe
        failures = 0
        while True:
            try:
                response = await self._http.request(
                    method,
                    self._base_url + path,
                    params=parameters(query),
                    content=content,
                    headers=self._headers(headers),
                    timeout=self.timeout if timeout is None else timeout,
                    follow_redirects=False,
                )
                if not expects(response.status_code):
                    raise BridgeError.of(response)
                return read(response)
            except (BridgeError, httpx.RequestError, ValueError) as error:
                failure = error if isinstance(error, BridgeError) else BridgeError.unanswered(error)
                failures += 1
                # What was refused as too much was not begun.
                is_repeatable = failure.status == 429 or (safe and failure.is_temporary)
                wait = backoff(failures, LONGEST_PAUSE) if failure.retry_after is None else failure.retry_after
                if not is_repeatable or failures > self._max_retries or wait > LONGEST_PAUSE:
                    raise failure from (None if failure is error else error)
            await asyncio.sleep(wait)

    async def json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        key: str | None = None,
        is_safe: bool | None = None,
        timeout: float | None = None,
        expects: Callable[[int], bool] = is_success,
    ) -> Answer:  # type: ignore[type-var, unused-ignore]
        """Sends a request and returns its answer, of the type that the caller expects; `None` without content."""
        read: Callable[[httpx.Response], Answer] = decode
        return await self.ask(
            method,
            path,
            query=query,
            body=body,
            key=key,
            is_safe=is_safe,
            timeout=timeout,
            expects=expects,
            accept="application/json",
            read=read,
        )

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, object], idle: float) -> AsyncIterator[httpx.Response]:
        """Opens a stream of lines. Silence for `idle` seconds is a timeout."""
        headers = self._headers({"Accept": "application/x-ndjson"})
        timeout = httpx.Timeout(self.timeout, read=idle)
        url = self._base_url + path
        async with self._http.stream(
            "GET", url, params=parameters(query), headers=headers, timeout=timeout
        ) as response:
            if not is_success(response.status_code):
                await response.aread()
                raise BridgeError.of(response)
            yield response


def parameters(query: Mapping[str, object] | None) -> dict[str, Any] | None:
    """Parameters that are given."""
    given = {name: value for name, value in (query or {}).items() if value is not None and value != ""}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()} or None
