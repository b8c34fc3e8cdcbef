"""Client of external services and of signals, a part of `AsyncBridge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..errors import BridgeError
from ..page import Page
from ..wire import Approval, ExternalServices, Intervention, SignalRule, SignalSession, SignalTotalsList
from .transport import AsyncTransport, at, decode


class AsyncServices:
    """Methods of `AsyncBridge` for external services and signals."""

    _http: AsyncTransport

    async def external_command(
        self, ref: str, args: object = None, *, idempotency_key: str | None = None, timeout: float | None = None
    ) -> Any:
        """Calls a command (`service.entry`) of an external service and returns its result.

        It is never sent twice; with an `idempotency_key` the same call is answered with the same result, also after a
        restart of the bridge. A command that waits for an approval is an error with the code
        `FORGE_APPROVAL_REQUIRED` and its `dispatch_id`.
        """
        return await self._external("commands", ref, args, timeout, key=idempotency_key)

    async def external_query(self, ref: str, args: object = None, *, timeout: float | None = None) -> Any:
        """Calls a query (`service.entry`) of an external service and returns its result."""
        return await self._external("queries", ref, args, timeout, is_safe=True)

    async def external_services(self, *, timeout: float | None = None) -> ExternalServices:
        """Returns the external services that are known, and findings in their files."""
        return await self._http.json("GET", "/api/v2/external", timeout=timeout)

    async def approvals(
        self,
        *,
        status: Literal["waiting", "approved", "rejected"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[Approval]:
        """Returns the commands that wait for an approval, or those that were decided, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return await self._page("/api/v2/approvals", "approvals", timeout, query)

    async def approve(self, dispatch_id: str, reason: str | None = None, *, timeout: float | None = None) -> None:
        """Lets a held command start."""
        path = "/api/v2" + at("approvals", dispatch_id, "approve")
        await self._http.ask("POST", path, body={"reason": reason}, timeout=timeout, read=decode)

    async def reject(self, dispatch_id: str, reason: str | None = None, *, timeout: float | None = None) -> None:
        """Ends a held command as `blocked_by_policy`."""
        path = "/api/v2" + at("approvals", dispatch_id, "reject")
        await self._http.ask("POST", path, body={"reason": reason}, timeout=timeout, read=decode)

    async def signal_sessions(
        self,
        *,
        adapter: str | None = None,
        user: str | None = None,
        project: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[SignalSession]:
        """Returns sessions of tools that send signals, newest first; `active` selects those that have not ended."""
        query = {
            "adapter": adapter, "user": user, "project": project, "active": active, "limit": limit, "cursor": cursor,
        }  # fmt: skip
        return await self._page("/api/v2/signals/sessions", "sessions", timeout, query)

    async def signal_session(self, id: str, *, timeout: float | None = None) -> SignalSession:
        """Returns a session with its last 100 records, newest first."""
        return await self._http.json("GET", "/api/v2" + at("signals", "sessions", id), timeout=timeout)

    async def signal_totals(
        self,
        by: Literal["user", "project", "adapter", "model"],
        since: str | None = None,
        *,
        timeout: float | None = None,
    ) -> SignalTotalsList:
        """Adds up the signals by user, project, adapter or model, since a time, the most expensive first."""
        query = {"by": by, "since": since}
        return await self._http.json("GET", "/api/v2/signals/totals", query=query, timeout=timeout)

    async def interventions(
        self,
        *,
        session: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[Intervention]:
        """Returns interventions of rules, newest first."""
        query = {"session": session, "limit": limit, "cursor": cursor}
        return await self._page("/api/v2/signals/interventions", "interventions", timeout, query)

    async def signal_rules(self, *, timeout: float | None = None) -> list[SignalRule]:
        """Returns the rules and budgets in force, with their fullest windows."""
        return (await self._page("/api/v2/signals/rules", "rules", timeout)).items

    async def _external(
        self,
        kind: str,
        ref: str,
        args: object,
        timeout: float | None,
        *,
        key: str | None = None,
        is_safe: bool | None = None,
    ) -> Any:
        service, dot, name = ref.partition(".")
        if not service or not dot:
            message = f'"{ref}" is not a reference: write service.entry'
            raise BridgeError(message, code="FORGE_EXTERNAL_RUNTIME_NOT_FOUND")
        answer: dict[str, Any] = await self._http.json(
            "POST",
            at("external", service, kind, name),
            body={"args": {} if args is None else args},
            key=key,
            is_safe=is_safe,
            timeout=timeout,
            # A call that is held for approval is answered 202 and has no result either.
            expects=lambda status: status == 200,
        )
        return answer["result"]

    async def _page(
        self, path: str, name: str, timeout: float | None, query: Mapping[str, object] | None = None
    ) -> Page[Any]:
        page: dict[str, Any] = await self._http.json("GET", path, query=query, timeout=timeout)
        return Page(page[name], page.get("nextCursor"))
