"""Client of dispatches, deliveries, adapters and events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, cast

import httpx
from typing_extensions import Self

from ..page import AwaitedRequest, Page
from ..wire import (
    Accepted,
    Adapter,
    AdapterList,
    BridgeEvent,
    Cost,
    Delivery,
    DeliveryStatus,
    Destination,
    Dispatch,
    DispatchRequest,
    Health,
    NodeList,
    OutputFile,
    Result,
    StreamTicket,
    Throughput,
)
from .management import AsyncManagement
from .services import AsyncServices
from .stream import IDLE_SECONDS, OnState, resume
from .transport import AsyncTransport, at, decode


class AsyncBridge(AsyncServices):
    """Client of the HTTP interface of a bridge. Every method raises a `BridgeError`.

    `token` is a bearer token, or a function that returns it for each request. `timeout` is the time that an answer
    may take to begin or to continue, in seconds; every method has it as well. `max_retries` is the number of
    repetitions of a request that is safe to repeat, after no answer, 408, 429 and 5xx. `http` is a client of yours,
    for proxies and certificates; it is not closed.
    """

    def __init__(
        self,
        base_url: str,
        token: str | Callable[[], str | None] | None = None,
        *,
        timeout: float = 60.0,
        max_retries: int = 2,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._http = AsyncTransport(base_url, token, timeout, max_retries, http)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def run(
        self,
        request: AwaitedRequest,
        *,
        idempotency_key: str | None = None,
        on_event: Callable[[BridgeEvent], None] | None = None,
        cancel_on_interrupt: bool = False,
        timeout: float | None = None,
    ) -> Result:
        """Posts a dispatch, waits for its end and returns the result, also one with the status `error`.

        Waits as long as it takes, over disconnects and restarts of the bridge; the time of the work is bounded by the
        request. Without a callback unless `callbackUrl` is given. `on_event` is called with each event, from the
        acceptance to the result. An interrupt or a cancelled task ends the waiting alone, and the same request waits
        for the same dispatch again; with `cancel_on_interrupt` it cancels the dispatch, too.
        """
        posted = cast(DispatchRequest, {**request, "callbackUrl": request.get("callbackUrl")})
        dispatch_id = (await self.dispatch(posted, idempotency_key=idempotency_key, timeout=timeout))["dispatchId"]
        try:
            async for event in self.dispatch_events(dispatch_id):
                if on_event is not None:
                    on_event(event)
            while True:
                record = await self.show(dispatch_id, wait=60, timeout=timeout)
                if "result" in record:
                    return record["result"]
        except BaseException as error:
            if cancel_on_interrupt and not isinstance(error, Exception):
                await self.cancel(dispatch_id, timeout=timeout)
            raise

    async def dispatch(
        self, request: DispatchRequest, *, idempotency_key: str | None = None, timeout: float | None = None
    ) -> Accepted:
        """Posts a dispatch. The same task id (or idempotency key) with the same body is answered from the record, so
        that an unanswered request is repeated safely. One that has ended with an error is dispatched again, unless
        there is a key."""
        path = "/api/v2/dispatch"
        return await self._http.json("POST", path, body=request, key=idempotency_key, is_safe=True, timeout=timeout)

    async def show(self, id: str, *, wait: int | None = None, timeout: float | None = None) -> Dispatch:
        """Returns one dispatch, by its own id or its task id; with `wait` once it has ended, or after that many
        seconds (at most 60)."""
        bound = (self._http.timeout if timeout is None else timeout) + (wait or 0)
        return await self._http.json("GET", "/api/v2" + at("dispatch", id), query={"wait": wait}, timeout=bound)

    async def show_all(self, task_id: str, *, timeout: float | None = None) -> list[Dispatch]:
        """Returns all dispatches of a task, newest first."""
        path = "/api/v2" + at("dispatch", task_id)
        return (await self._page(path, "dispatches", timeout, {"all": True})).items

    async def request(self, id: str, *, timeout: float | None = None) -> DispatchRequest:
        """Returns the request as it can be posted again, without headers, bearer and secret of the callback."""
        return await self._http.json("GET", "/api/v2" + at("dispatch", id, "request"), timeout=timeout)

    async def run_again(
        self, id: str, changes: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Accepted:
        """Dispatches the request of a dispatch again, with these changes, as a new task that names it as `retryOf`.

        `notBefore` and `deadline` are left out, and so are headers, bearer and secret of the callback. `id` is a
        dispatch id.
        """
        request = await self.request(id, timeout=timeout)
        kept = {name: value for name, value in request.items() if name not in ("notBefore", "deadline")}
        task_id = f"{request['taskId'][:50]}-retry-{uuid.uuid4()}"
        again = {**kept, "taskId": task_id, "retryOf": id, **(changes or {})}
        return await self.dispatch(cast(DispatchRequest, again), timeout=timeout)

    async def output(self, id: str, *, timeout: float | None = None) -> str:
        """Returns the whole output; a result has at most its first MiB."""
        path = "/api/v2" + at("dispatch", id, "output")
        return await self._http.ask("GET", path, timeout=timeout, read=lambda response: response.content.decode())

    async def files(self, id: str, *, timeout: float | None = None) -> list[OutputFile]:
        """Returns the files that the run produced, without their content."""
        record = await self.show(id, timeout=timeout)
        return record["result"].get("outputFiles", []) if "result" in record else []

    async def file(self, id: str, name: str, *, timeout: float | None = None) -> bytes:
        """Downloads one of `files`."""
        path = "/api/v2" + at("dispatch", id, "files", name)
        return await self._http.ask("GET", path, timeout=timeout, read=lambda response: response.content)

    async def dispatches(
        self,
        *,
        status: Literal["accepted", "queued", "running", "finished", "ok", "error"] | None = None,
        provider: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        task_prefix: str | None = None,
        callback: DeliveryStatus | None = None,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[Dispatch]:
        """Returns dispatches, newest first; `since` is RFC 3339 or an age such as `30m`, `1h` or `7d`."""
        query = {
            "status": status,
            "provider": provider,
            "agentId": agent_id,
            "runId": run_id,
            "taskPrefix": task_prefix,
            "callback": callback,
            "since": since,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._page("/api/v2/dispatches", "dispatches", timeout, query)

    async def cancel(self, id: str, *, timeout: float | None = None) -> bool:
        """Cancels a dispatch. Returns true if that was still possible."""
        path = "/api/v2" + at("dispatch", id, "cancel")
        answer: dict[str, bool] = await self._http.json("POST", path, is_safe=True, timeout=timeout)
        return answer["cancelled"]

    async def deliveries(
        self,
        *,
        status: DeliveryStatus | None = None,
        host: str | None = None,
        since: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[Delivery]:
        """Returns deliveries, newest first; `host` is a host or host:port."""
        query = {"status": status, "host": host, "since": since, "limit": limit, "cursor": cursor}
        return await self._page("/api/v2/deliveries", "deliveries", timeout, query)

    async def delivery(self, id: str, *, timeout: float | None = None) -> Delivery:
        return await self._http.json("GET", "/api/v2" + at("deliveries", id), timeout=timeout)

    async def retry(self, id: str, *, timeout: float | None = None) -> int:
        """Sends a delivery again, with the same `webhook-id`. Returns the number of deliveries made due."""
        answer: dict[str, int] = await self._http.json(
            "POST", "/api/v2" + at("deliveries", id, "retry"), timeout=timeout
        )
        return answer["retried"]

    async def retry_all(
        self,
        *,
        host: str | None = None,
        since: str | None = None,
        status: DeliveryStatus | None = None,
        dry_run: bool | None = None,
        timeout: float | None = None,
    ) -> int:
        """Sends all dead letters again, or those to a host or of results since a time; with `status`, deliveries in
        that state. Returns their number; with `dry_run` nothing is sent."""
        query = {"host": host, "since": since, "status": status, "dryRun": dry_run}
        answer: dict[str, int] = await self._http.json("POST", "/api/v2/deliveries/retry", query=query, timeout=timeout)
        return answer["retried"]

    async def destinations(self, *, timeout: float | None = None) -> list[Destination]:
        """Returns the receivers whose circuit breaker is open or half-open; others are called normally."""
        return (await self._page("/api/v2/deliveries/destinations", "destinations", timeout)).items

    async def close_destination(self, origin: str, *, timeout: float | None = None) -> None:
        """Closes the circuit breaker of a receiver, so that everything due there is sent at once."""
        path = "/api/v2" + at("deliveries", "destinations", origin, "close")
        await self._http.ask("POST", path, is_safe=True, timeout=timeout, read=decode)

    async def nodes(self, *, timeout: float | None = None) -> NodeList:
        """Returns the bridges that share the store, and the one that answers."""
        return await self._http.json("GET", "/api/v2/nodes", timeout=timeout)

    async def throughput(self, *, timeout: float | None = None) -> Throughput:
        """Returns the last hour of the bridge, or the time since its start, in steps of 10 s."""
        return await self._http.json("GET", "/api/v2/throughput", timeout=timeout)

    async def cost(self, since: str | None = None, *, timeout: float | None = None) -> Cost:
        """Adds up what dispatches used by day, adapter, agent and model, since a time, the most expensive first."""
        return await self._http.json("GET", "/api/v2/cost", query={"since": since}, timeout=timeout)

    async def adapters(self, *, timeout: float | None = None) -> AdapterList:
        """Returns the adapters, in the order of the configuration, and the default one."""
        return await self._http.json("GET", "/api/v2/adapters", timeout=timeout)

    async def adapter(self, provider: str, *, timeout: float | None = None) -> Adapter:
        return await self._http.json("GET", "/api/v2" + at("adapters", provider), timeout=timeout)

    async def reload(self, provider: str, *, timeout: float | None = None) -> Adapter:
        """Loads the library file of an adapter again; running executions finish on the old generation."""
        return await self._http.json("POST", "/api/v2" + at("adapters", provider, "reload"), timeout=timeout)

    async def pause(self, provider: str, *, timeout: float | None = None) -> Adapter:
        """Pauses an adapter, also across restarts of the bridge: running executions continue, accepted dispatches
        wait."""
        return await self._http.json(
            "POST", "/api/v2" + at("adapters", provider, "pause"), is_safe=True, timeout=timeout
        )

    async def resume(self, provider: str, *, timeout: float | None = None) -> Adapter:
        return await self._http.json(
            "POST", "/api/v2" + at("adapters", provider, "resume"), is_safe=True, timeout=timeout
        )

    def management(self, provider: str | None = None) -> AsyncManagement:
        """Management of the agents, skills and models of an adapter's runtime; needs a token with the scope `admin`.
        Without a provider the default adapter answers if it supports the method, else the only adapter that does."""
        return AsyncManagement(self._http, provider)

    async def health(self, *, verbose: bool | None = None, timeout: float | None = None) -> Health:
        """Returns the health of the bridge; with `verbose` the profiles of the adapters as well, for a token with the
        scope `read`. An offline bridge answers 503 with the same body, which is no error here."""
        return await self._http.json(
            "GET",
            "/api/health",
            query={"verbose": verbose},
            timeout=timeout,
            expects=lambda status: status in (200, 503),
        )

    async def ticket(self, *, timeout: float | None = None) -> StreamTicket:
        """Returns a ticket that opens one stream within a minute in place of a token: `?ticket=` for `EventSource`."""
        return await self._http.json("POST", "/api/v2/stream-tickets", is_safe=True, timeout=timeout)

    async def reference(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Returns the HTTP interface as OpenAPI 3.1."""
        return await self._http.json("GET", "/openapi.json", timeout=timeout)

    async def events(
        self,
        *,
        provider: str | None = None,
        agent_id: str | None = None,
        task_id: str | None = None,
        type: str | None = None,
        after: str = "now",
        on_state: OnState | None = None,
    ) -> AsyncIterator[BridgeEvent]:
        """Yields all events after a cursor; `0` is the earliest, and the default starts now. `on_state` is called
        with `open` and with `retrying` and the error."""
        query = {"provider": provider, "agentId": agent_id, "taskId": task_id, "type": type}
        now: str | None = None

        @asynccontextmanager
        async def open(after: str | None) -> AsyncIterator[httpx.Response]:
            nonlocal now
            if after == "now":
                # Resolved once: a stream disconnected before its first event resumes there.
                after = now = now or await self._now()
            async with self._http.stream("/api/v2/events", {**query, "after": after}, IDLE_SECONDS) as response:
                yield response

        async for event in resume(open, after, "id", on_state):
            yield event

    async def recent_events(self, count: int = 100, *, timeout: float | None = None) -> Page[BridgeEvent]:
        """Returns up to `count` of the newest events (at most 1000), oldest first, and the cursor after them."""
        query = {"last": count, "limit": count}
        page = await self._page("/api/v2/events", "events", timeout, query)
        for event in page.items:
            # The bridge leaves it out where it is empty.
            event.setdefault("data", {})
        return page

    async def dispatch_events(
        self,
        id: str,
        *,
        until: Literal["finished", "delivered"] | None = None,
        after: str | None = None,
        on_state: OnState | None = None,
    ) -> AsyncIterator[BridgeEvent]:
        """Yields the events of one dispatch, from its acceptance to its result, or to the end of its delivery."""
        path = "/api/v2" + at("dispatch", id, "events")
        async for event in resume(
            lambda after: self._http.stream(path, {"until": until, "after": after}, IDLE_SECONDS), after, "id", on_state
        ):
            yield event

    async def _now(self) -> str:
        page: dict[str, str] = await self._http.json("GET", "/api/v2/events", query={"after": "now", "limit": 1})
        return page["nextCursor"]
