"""Client of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal

import httpx
from typing_extensions import Self

from ..page import Page, StartedRun
from ..wire import Budget, ChangeRequest, ForgeEvent, RunState, RunStatus, RunSummary, RunTask, RunVerification
from .stream import IDLE_SECONDS, OnState, pause_after_end, resume
from .transport import AsyncTransport, at, decode


class AsyncForgeSDK:
    """Client of the routes for runs. Every method raises a `BridgeError`.

    `base_url` is that of the bridge, with or without `/api/v1`; the other arguments are those of `AsyncBridge`.
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
        base = base_url.rstrip("/").removesuffix("/api/v1")
        self._http = AsyncTransport(base, token, timeout, max_retries, http)
        # Streams in a row that ended without an event, by run.
        self._empty_ends: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def create_run(
        self,
        repo_url: str,
        *,
        ref: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        plan_review: bool | None = None,
        approval: Literal["user", "auto"] | None = None,
        budget: Budget | None = None,
        message: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> StartedRun:
        """Attaches a repository and begins the interview with the Captain.

        `ref` is the branch, tag or whole id of a commit to begin with; `model` and `provider` are those of all steps.
        With `plan_review` the plan waits for `approve_plan`; with the approval `auto` change requests are approved at
        once. With a `message` to the Captain it does not speak first.
        """
        body = {
            "repoUrl": repo_url, "ref": ref, "model": model, "provider": provider, "planReview": plan_review,
            "approval": approval, "budget": budget, "message": message,
        }  # fmt: skip
        given = {name: value for name, value in body.items() if value is not None}
        return await self._http.json("POST", "/api/v1/runs", body=given, key=idempotency_key, timeout=timeout)

    async def get_run(self, run_id: str, *, timeout: float | None = None) -> RunState:
        return await self._http.json("GET", _run(run_id), timeout=timeout)

    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        timeout: float | None = None,
    ) -> Page[RunSummary]:
        """Returns runs, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        page: dict[str, Any] = await self._http.json("GET", "/api/v1/runs", query=query, timeout=timeout)
        return Page(page["runs"], page["nextCursor"])

    async def stream_events(
        self,
        run_id: str,
        *,
        after: str | None = None,
        events: Literal["all", "core"] | None = None,
        on_state: OnState | None = None,
    ) -> AsyncIterator[ForgeEvent]:
        """Yields the events of a run once each, over as many connections as needed: from the first one, or after
        `after`, to the next `run.completed`; `after` continues behind it if the run was reopened. `core` leaves out
        the types that the public design of runs does not name.

        After the last event of an ended run it ends after a pause, which doubles each time, so that a reader that
        begins again in a loop asks rarely."""
        now: str | None = None
        last: str | None = None

        @asynccontextmanager
        async def open(after: str | None) -> AsyncIterator[httpx.Response | None]:
            nonlocal now, last
            if after == "now":
                # Resolved once: a stream disconnected before its first event resumes there.
                after = now = now or (await self.get_run(run_id))["lastEventId"]
            if after is not None and after == last:
                # The last stream gave nothing: it was disconnected, or `after` is the last event of an ended run.
                run = await self.get_run(run_id)
                if run["completedAt"] is not None and run["lastEventId"] == after:
                    yield None
                    return
            last = after
            async with self._http.stream(
                _run(run_id, "stream"), {"after": after, "events": events}, IDLE_SECONDS
            ) as response:
                yield response

        is_empty = True
        async for event in resume(open, after, "eventId", on_state):
            if is_empty:
                self._empty_ends.pop(run_id, None)
            is_empty = False
            yield event
            if event["type"] == "run.completed":
                return
        if is_empty:
            self._empty_ends[run_id] = self._empty_ends.get(run_id, 0) + 1
            await pause_after_end(self._empty_ends[run_id])

    async def list_events(
        self,
        run_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        wait: int | None = None,
        timeout: float | None = None,
    ) -> Page[ForgeEvent]:
        """Returns a page of the events of a run, oldest first; `next_cursor` is the `after` of the next page. With
        `wait` it waits that many seconds for the first event."""
        query = {"after": after, "limit": limit, "wait": wait}
        bound = (self._http.timeout if timeout is None else timeout) + (wait or 0)
        page: dict[str, Any] = await self._http.json("GET", _run(run_id, "events"), query=query, timeout=bound)
        return Page(page["events"], page["nextCursor"])

    async def pause_run(
        self, run_id: str, mode: Literal["abort"] | None = None, *, timeout: float | None = None
    ) -> None:
        """Starts nothing new. Agents are asked to end with what they have, if their adapter takes messages, and run
        to their end if not; `abort` cancels them, and a resume repeats them. Code `INVALID_STATE`: paused before,
        or ended."""
        await self._post(_run(run_id, "pause"), timeout, None if mode is None else {"mode": mode})

    async def resume_run(self, run_id: str, *, timeout: float | None = None) -> None:
        await self._post(_run(run_id, "resume"), timeout)

    async def cancel_run(self, run_id: str, *, timeout: float | None = None) -> None:
        """Cancels what runs, then ends the run as `cancelled`."""
        await self._post(_run(run_id, "cancel"), timeout)

    async def approve_plan(self, run_id: str, *, timeout: float | None = None) -> None:
        """Starts the execution of a plan that waits for its review."""
        await self._post(_run(run_id, "plan", "approve"), timeout)

    async def reopen_plan(self, run_id: str, *, timeout: float | None = None) -> None:
        """Returns to the interview from a plan that waits for its review."""
        await self._post(_run(run_id, "plan", "reopen"), timeout)

    async def verify_run(self, run_id: str, *, timeout: float | None = None) -> RunVerification:
        """Folds the events of a run and compares the result with the stored state."""
        return await self._http.json("GET", _run(run_id, "verify"), timeout=timeout)

    async def send_captain_message(self, run_id: str, message: str, *, timeout: float | None = None) -> None:
        """Sends a message to the Captain; its answer is an event."""
        await self._post("/api/v1/captain/message", timeout, {"runId": run_id, "message": message})

    async def list_tasks(self, run_id: str, *, timeout: float | None = None) -> list[RunTask]:
        """Returns the tasks in the order of the plan."""
        return await self._http.json("GET", _run(run_id, "tasks"), timeout=timeout)

    async def get_task(self, run_id: str, task_id: str, *, timeout: float | None = None) -> RunTask:
        return await self._http.json("GET", _run(run_id, "tasks", task_id), timeout=timeout)

    async def retry_run(self, run_id: str, *, budget: Budget | None = None, timeout: float | None = None) -> None:
        """Continues a run that ended without completing, or tries at once what waits.

        `budget` replaces that of the run. Code `INVALID_STATE`: the run is completed, or nothing of it failed or waits.
        """
        await self._post(_run(run_id, "retry"), timeout, {"budget": budget} if budget else None)

    async def retry_task(self, run_id: str, task_id: str, *, timeout: float | None = None) -> None:
        """Starts another attempt of a task that failed or became stale, or tries at once what waits."""
        await self._post(_run(run_id, "tasks", task_id, "retry"), timeout)

    async def get_artifact(self, run_id: str, path: str, *, timeout: float | None = None) -> str:
        """Returns the content of an artifact, such as `tasks/a.md`."""
        route = _run(run_id, "artifacts", *path.split("/"))
        return await self._http.ask("GET", route, timeout=timeout, read=lambda response: response.content.decode())

    async def list_change_requests(self, run_id: str, *, timeout: float | None = None) -> list[ChangeRequest]:
        return await self._http.json("GET", _run(run_id, "change-requests"), timeout=timeout)

    async def approve_change_request(self, run_id: str, cr_id: str, *, timeout: float | None = None) -> None:
        """Lets the plan be changed as requested. Code `INVALID_STATE`: the change request is not pending."""
        await self._post(_run(run_id, "change-requests", cr_id, "approve"), timeout)

    async def reject_change_request(
        self, run_id: str, cr_id: str, reason: str | None = None, *, timeout: float | None = None
    ) -> None:
        """Leaves the plan as it is. Code `INVALID_STATE`: the change request is not pending."""
        body = None if reason is None else {"reason": reason}
        await self._post(_run(run_id, "change-requests", cr_id, "reject"), timeout, body)

    async def _post(self, path: str, timeout: float | None, body: object = None) -> None:
        await self._http.ask("POST", path, body=body, timeout=timeout, read=decode)


def _run(run_id: str, *parts: str) -> str:
    return "/api/v1" + at("runs", run_id, *parts)
