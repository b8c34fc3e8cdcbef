"""Route, body and answer of every method."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from clients import KINDS, Client
from server import Answer

from forge_bridge import AsyncBridge, AsyncForgeSDK, AsyncManagement, Bridge, BridgeError, ForgeSDK, Management, Page

LIST: dict[str, Any] = {
    "dispatches": [1],
    "deliveries": [1],
    "destinations": [1],
    "adapters": [1],
    "approvals": [1],
    "sessions": [1],
}
LIST |= {"interventions": [1], "totals": [1], "rules": [1], "runs": [1], "events": [1], "nextCursor": "c"}
ONE = {"result": {"outputFiles": [1]}, "cancelled": True, "retried": 2}
PAGE: Page[Any] = Page([1], "c")
REQUEST = {"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": None}

# Method, its arguments, the request, its body, the answer and what is returned.
BRIDGE: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any, Any, Any]] = [
    ("dispatch", (REQUEST,), {"idempotency_key": "k"}, "POST /api/v2/dispatch", REQUEST, ONE, ONE),
    ("show", ("a/b",), {}, "GET /api/v2/dispatch/a%2Fb", None, ONE, ONE),
    ("show", ("a",), {"wait": 5}, "GET /api/v2/dispatch/a?wait=5", None, ONE, ONE),
    ("show_all", ("a",), {}, "GET /api/v2/dispatch/a?all=true", None, LIST, [1]),
    ("request", ("a",), {}, "GET /api/v2/dispatch/a/request", None, REQUEST, REQUEST),
    ("output", ("a",), {}, "GET /api/v2/dispatch/a/output", None, "€", "€"),
    ("files", ("a",), {}, "GET /api/v2/dispatch/a", None, ONE, [1]),
    ("files", ("a",), {}, "GET /api/v2/dispatch/a", None, {}, []),
    ("file", ("a", "b c.md"), {}, "GET /api/v2/dispatch/a/files/b%20c.md", None, b"\xff", b"\xff"),
    (
        "dispatches",
        (),
        {"status": "ok", "agent_id": "a b", "limit": 3},
        "GET /api/v2/dispatches?status=ok&agentId=a+b&limit=3",
        None,
        LIST,
        PAGE,
    ),
    ("cancel", ("a",), {}, "POST /api/v2/dispatch/a/cancel", None, ONE, True),
    ("deliveries", (), {"host": "h:1"}, "GET /api/v2/deliveries?host=h%3A1", None, LIST, PAGE),
    ("delivery", ("d",), {}, "GET /api/v2/deliveries/d", None, ONE, ONE),
    ("retry", ("d",), {}, "POST /api/v2/deliveries/d/retry", None, ONE, 2),
    (
        "retry_all",
        (),
        {"since": "1h", "dry_run": True},
        "POST /api/v2/deliveries/retry?since=1h&dryRun=true",
        None,
        ONE,
        2,
    ),
    ("destinations", (), {}, "GET /api/v2/deliveries/destinations", None, LIST, [1]),
    (
        "close_destination",
        ("http://h:1",),
        {},
        "POST /api/v2/deliveries/destinations/http%3A%2F%2Fh%3A1/close",
        None,
        ONE,
        None,
    ),
    ("nodes", (), {}, "GET /api/v2/nodes", None, LIST, LIST),
    (
        "recent_events",
        (5,),
        {},
        "GET /api/v2/events?last=5&limit=5",
        None,
        {"events": [{"id": "1"}], "nextCursor": "c"},
        Page([{"id": "1", "data": {}}], "c"),
    ),
    ("throughput", (), {}, "GET /api/v2/throughput", None, ONE, ONE),
    ("cost", ("7d",), {}, "GET /api/v2/cost?since=7d", None, LIST, LIST),
    ("adapters", (), {}, "GET /api/v2/adapters", None, LIST, LIST),
    ("adapter", ("e",), {}, "GET /api/v2/adapters/e", None, ONE, ONE),
    ("reload", ("e",), {}, "POST /api/v2/adapters/e/reload", None, ONE, ONE),
    ("pause", ("e",), {}, "POST /api/v2/adapters/e/pause", None, ONE, ONE),
    ("resume", ("e",), {}, "POST /api/v2/adapters/e/resume", None, ONE, ONE),
    (
        "external_command",
        ("b.create.it", {"x": 1}),
        {"idempotency_key": "k"},
        "POST /external/b/commands/create.it",
        {"args": {"x": 1}},
        {"result": 7},
        7,
    ),
    ("external_query", ("b.list",), {}, "POST /external/b/queries/list", {"args": {}}, {"result": 7}, 7),
    ("external_services", (), {}, "GET /api/v2/external", None, ONE, ONE),
    ("approvals", (), {"status": "approved"}, "GET /api/v2/approvals?status=approved", None, LIST, PAGE),
    ("approve", ("d", "fine"), {}, "POST /api/v2/approvals/d/approve", {"reason": "fine"}, ONE, None),
    ("reject", ("d",), {}, "POST /api/v2/approvals/d/reject", {"reason": None}, ONE, None),
    ("signal_sessions", (), {"active": False}, "GET /api/v2/signals/sessions?active=false", None, LIST, PAGE),
    ("signal_session", ("s",), {}, "GET /api/v2/signals/sessions/s", None, ONE, ONE),
    ("signal_totals", ("model", "7d"), {}, "GET /api/v2/signals/totals?by=model&since=7d", None, LIST, LIST),
    ("interventions", (), {"session": "s"}, "GET /api/v2/signals/interventions?session=s", None, LIST, PAGE),
    ("signal_rules", (), {}, "GET /api/v2/signals/rules", None, LIST, [1]),
    ("health", (), {"verbose": True}, "GET /api/health?verbose=true", None, ONE, ONE),
    ("ticket", (), {}, "POST /api/v2/stream-tickets", None, ONE, ONE),
    ("reference", (), {}, "GET /openapi.json", None, ONE, ONE),
]
RUNTIME: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any, Any, Any]] = [
    ("agents", (), {}, "GET agents", None, [1], [1]),
    ("agent", ("a/b",), {}, "GET agents/a%2Fb", None, ONE, ONE),
    (
        "create_agent",
        ({"agentId": "a", "colour": "blue"},),
        {},
        "POST agents",
        {"agentId": "a", "colour": "blue"},
        None,
        None,
    ),
    ("update_agent", ({"agentId": "a"},), {}, "PUT agents/a", {"agentId": "a"}, ONE, ONE),
    ("remove_agent", ("a",), {}, "DELETE agents/a", None, None, None),
    ("files", ("a",), {}, "GET agents/a/files", None, [1], [1]),
    ("file", ("a", "x/y z.md"), {}, "GET agents/a/files/x/y%20z.md", None, ONE, ONE),
    ("write_file", ("a", "x.md", "hi"), {}, "PUT agents/a/files/x.md", {"content": "hi"}, None, None),
    ("remove_file", ("a", "x.md"), {}, "DELETE agents/a/files/x.md", None, None, None),
    ("bindings", ("a",), {}, "GET agents/a/bindings", None, [1], [1]),
    (
        "set_bindings",
        ("a", [{"channel": "c"}]),
        {},
        "PUT agents/a/bindings",
        {"bindings": [{"channel": "c"}]},
        None,
        None,
    ),
    ("skills", (), {}, "GET skills", None, [1], [1]),
    ("skill", ("s",), {}, "GET skills/s", None, ONE, ONE),
    ("create_skill", ({"skillKey": "s"},), {}, "POST skills", {"skillKey": "s"}, ONE, ONE),
    ("update_skill", ({"skillKey": "s"},), {}, "PUT skills/s", {"skillKey": "s"}, None, None),
    ("remove_skill", ("s",), {}, "DELETE skills/s", None, None, None),
    ("skill_status", ("s",), {}, "GET skills/s/status", None, ONE, ONE),
    ("install_dependencies", ("s",), {}, "POST skills/s/dependencies", None, ONE, ONE),
    ("models", (), {}, "GET models", None, [1], [1]),
    ("system_models", (), {}, "GET system/models", None, [1], [1]),
    ("security_posture", (), {}, "GET system/security", None, ONE, ONE),
    ("reload_config", (), {}, "POST system/reload", None, ONE, ONE),
]
RUNS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any, Any, Any]] = [
    (
        "create_run",
        ("r",),
        {"plan_review": True, "idempotency_key": "k"},
        "POST runs",
        {"repoUrl": "r", "planReview": True},
        ONE,
        ONE,
    ),
    ("get_run", ("a/b",), {}, "GET runs/a%2Fb", None, ONE, ONE),
    ("list_runs", (), {"status": "failed"}, "GET runs?status=failed", None, LIST, PAGE),
    ("list_events", ("a",), {"after": "7"}, "GET runs/a/events?after=7", None, LIST, PAGE),
    ("pause_run", ("a",), {}, "POST runs/a/pause", None, ONE, None),
    ("pause_run", ("a", "abort"), {}, "POST runs/a/pause", {"mode": "abort"}, ONE, None),
    ("resume_run", ("a",), {}, "POST runs/a/resume", None, ONE, None),
    ("cancel_run", ("a",), {}, "POST runs/a/cancel", None, ONE, None),
    ("approve_plan", ("a",), {}, "POST runs/a/plan/approve", None, ONE, None),
    ("reopen_plan", ("a",), {}, "POST runs/a/plan/reopen", None, ONE, None),
    ("verify_run", ("a",), {}, "GET runs/a/verify", None, ONE, ONE),
    ("send_captain_message", ("a", "hi"), {}, "POST captain/message", {"runId": "a", "message": "hi"}, ONE, None),
    ("list_tasks", ("a",), {}, "GET runs/a/tasks", None, [1], [1]),
    ("get_task", ("a", "t u"), {}, "GET runs/a/tasks/t%20u", None, ONE, ONE),
    ("retry_run", ("a",), {"budget": {"maxTokens": 9}}, "POST runs/a/retry", {"budget": {"maxTokens": 9}}, ONE, None),
    ("retry_task", ("a", "t"), {}, "POST runs/a/tasks/t/retry", None, ONE, None),
    ("get_artifact", ("a", "specs/x? #.md"), {}, "GET runs/a/artifacts/specs/x%3F%20%23.md", None, "# €", "# €"),
    ("list_change_requests", ("a",), {}, "GET runs/a/change-requests", None, [1], [1]),
    ("approve_change_request", ("a", "c"), {}, "POST runs/a/change-requests/c/approve", None, ONE, None),
    (
        "reject_change_request",
        ("a", "c/1", "no"),
        {},
        "POST runs/a/change-requests/c%2F1/reject",
        {"reason": "no"},
        ONE,
        None,
    ),
]
# Streams, and what is made of other methods.
ELSEWHERE = {"run", "run_again", "events", "dispatch_events", "stream_events", "management", "close", "aclose"}


def check(serve: Any, kind: str, row: Any, line: str, **options: Any) -> None:
    method, args, named, _, body, answer, expected = row
    server = serve(lambda _: Answer(204) if answer is None else Answer(body=answer))
    base = server.url + options.pop("path", "")
    assert getattr(Client(kind, base, **options), method)(*args, **named) == expected
    [request] = server.seen
    assert request.line == line
    assert (json.loads(request.body) if request.body else None) == body
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers.get("idempotency-key") == named.get("idempotency_key")
    assert request.headers.get("content-type") == (None if body is None else "application/json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", BRIDGE, ids=lambda row: row[3])
def test_a_method_of_the_bridge(serve: Any, kind: str, row: Any) -> None:
    check(serve, kind, row, row[3])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", RUNTIME, ids=lambda row: row[3])
def test_a_method_of_a_runtime(serve: Any, kind: str, row: Any) -> None:
    method, path = row[3].split(" ")
    check(serve, kind, row, f"{method} /api/v2/{path}?provider=acme+ai", managed="acme ai")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", RUNS, ids=lambda row: row[3])
@pytest.mark.parametrize("path", ["", "/", "/api/v1/"])
def test_a_method_of_runs(serve: Any, kind: str, row: Any, path: str) -> None:
    method, route = row[3].split(" ", 1)
    check(serve, kind, row, f"{method} /api/v1/{route}", runs=True, path=path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_runs_again_as_another_task_with_changes(serve: Any, kind: str) -> None:
    stored = {**REQUEST, "model": "m", "priority": 3, "deadline": "2126-01-01T00:00:00Z"}
    server = serve(lambda request: Answer(body=stored if request.line.startswith("GET") else ONE))
    assert Client(kind, server.url).run_again("dsp_1", {"model": "other"}) == ONE
    asked, posted = server.seen
    assert (asked.line, posted.line) == ("GET /api/v2/dispatch/dsp_1/request", "POST /api/v2/dispatch")
    body = json.loads(posted.body)
    assert body.pop("taskId").startswith("t-retry-")
    kept = {name: value for name, value in REQUEST.items() if name != "taskId"}
    assert body == {**kept, "model": "other", "priority": 3, "retryOf": "dsp_1"}


def with_dots(value: Any, segments: list[str], dots: str) -> Iterator[Any]:
    """The argument with dots in place of each of its parts that is a segment of the path."""
    if isinstance(value, str) and value in segments:
        yield dots
    elif isinstance(value, str) and "/" in value and value.split("/")[0] in segments:
        yield f"{dots}/x"
    elif isinstance(value, str) and "." in value and value.split(".")[0] in segments:
        yield f"{value.split('.')[0]}.{dots}"
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from ({**value, name: other} for other in with_dots(part, segments, dots))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dots", [".", ".."])
def test_dots_are_no_ids_in_any_method(serve: Any, kind: str, dots: str) -> None:
    server = serve(lambda _: Answer(body={}))
    refused = set()
    for rows, options in ((BRIDGE, {}), (RUNTIME, {"managed": "m"}), (RUNS, {"runs": True})):
        for method, args, named, line, *_ in rows:
            segments = [unquote(part) for part in line.split(" ", 1)[1].split("?")[0].split("/")]
            for index, value in enumerate(args):
                for other in with_dots(value, segments, dots):
                    with pytest.raises(BridgeError, match="cannot be part of a path") as raised:
                        call = getattr(Client(kind, server.url, **options), method)
                        call(*args[:index], other, *args[index + 1 :], **named)
                    assert (raised.value.status, raised.value.code) == (400, "INVALID_REQUEST")
                    refused.add((method, index))
    assert len(refused) > 45
    assert server.seen == []


def test_every_method_is_listed_and_both_kinds_have_it() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    for kind, other, rows in (
        (Bridge, AsyncBridge, BRIDGE),
        (Management, AsyncManagement, RUNTIME),
        (ForgeSDK, AsyncForgeSDK, RUNS),
    ):
        assert methods(kind) - {"close"} == methods(other) - {"aclose"}
        assert methods(kind) - {row[0] for row in rows} <= ELSEWHERE
