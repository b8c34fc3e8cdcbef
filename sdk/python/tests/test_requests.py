"""Repetitions and errors of requests."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from clients import KINDS, Client
from server import Answer, Request

from forge_bridge import AsyncBridge, Bridge, BridgeError

REQUEST = {"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": None}
CUT = Answer(body="{", cut=True)
ERROR = {"error": "no", "code": "C"}


def status(code: int, **headers: str) -> Answer:
    return Answer(code, ERROR, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("_sync", "_async"):
        monkeypatch.setattr(f"forge_bridge.{kind}.transport.backoff", lambda *_: 0.0)
        monkeypatch.setattr(f"forge_bridge.{kind}.stream.backoff", lambda *_: 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answers, call, count, code",
    [
        ([CUT, status(503)], ("dispatches",), 3, None),
        ([status(500), status(502), status(408)], ("show", "x"), 3, "C"),
        ([CUT, CUT, CUT], ("show", "x"), 3, "UNREACHABLE"),
        ([Answer(body="<html>")], ("show", "x"), 2, None),
        ([status(404)], ("show", "x"), 1, "C"),
        ([status(503, Retry_After="31")], ("show", "x"), 1, "C"),
        ([CUT], ("dispatch", REQUEST), 2, None),
        ([CUT], ("external_query", "a.b"), 2, None),
        ([CUT], ("external_command", "a.b"), 1, "UNREACHABLE"),
        ([CUT], ("retry", "d"), 1, "UNREACHABLE"),
        ([status(503)], ("approve", "d"), 1, "C"),
        ([status(429, Retry_After="0")], ("retry", "d"), 2, None),
    ],
)
def test_only_what_is_safe_is_repeated(
    serve: Any, kind: str, answers: Any, call: Any, count: int, code: str | None
) -> None:
    left = list(answers)
    further = {"dispatches": [], "retried": 1, "result": 1, "dispatchId": "d"}
    server = serve(lambda _: left.pop(0) if left else Answer(body=further))
    method, *args = call
    if code is None:
        getattr(Client(kind, server.url), method)(*args)
    else:
        with pytest.raises(BridgeError) as raised:
            getattr(Client(kind, server.url), method)(*args)
        assert raised.value.code == code
    assert len(server.seen) == count


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_has_what_the_answer_says(serve: Any, kind: str) -> None:
    details = [{"field": "f", "message": "m"}]
    body = {"error": "no", "code": "INVALID_REQUEST", "details": details, "requestId": "req_1"}
    server = serve(lambda _: Answer(400, body, {"Retry-After": "7"}))
    with pytest.raises(BridgeError) as raised:
        Client(kind, server.url).show("x")
    error = raised.value
    assert (error.status, error.code, error.details, error.request_id) == (400, "INVALID_REQUEST", details, "req_1")
    assert (error.retry_after, error.is_temporary, str(error)) == (7, False, "[INVALID_REQUEST] no (req_1)")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_an_external_service_has_its_diagnostics(serve: Any, kind: str) -> None:
    held = {
        "ok": False,
        "error": "held",
        "code": "FORGE_APPROVAL_REQUIRED",
        "diagnostics": [1],
        "traceId": "t",
        "dispatchId": "d",
    }
    server = serve(lambda _: Answer(202, held))
    with pytest.raises(BridgeError) as raised:
        Client(kind, server.url).external_command("a.b")
    error = raised.value
    assert (error.status, error.details, error.trace_id, error.dispatch_id) == (202, [1], "t", "d")
    with pytest.raises(BridgeError, match="write service.entry"):
        Client(kind, server.url).external_query("nodot")


@pytest.mark.parametrize("kind", KINDS)
def test_answers_that_are_missing_or_not_of_the_bridge(serve: Any, kind: str) -> None:
    page = serve(lambda _: Answer(502, "<html>"))
    with pytest.raises(BridgeError) as raised:
        Client(kind, page.url, max_retries=0).show("x")
    assert (raised.value.code, raised.value.is_temporary, raised.value.message) == ("HTTP_502", True, "<html>")
    with pytest.raises(BridgeError) as raised:
        Client(kind, "http://127.0.0.1:9", max_retries=0).show("x")
    assert (raised.value.status, raised.value.code) == (0, "UNREACHABLE")
    silent = serve(lambda _: Answer(body="{", hold=True))
    with pytest.raises(BridgeError) as raised:
        Client(kind, silent.url, max_retries=0).show("x", timeout=0.05)
    assert (raised.value.status, raised.value.code, raised.value.is_temporary) == (0, "TIMEOUT", True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_offline_bridge_has_a_health(serve: Any, kind: str) -> None:
    server = serve(lambda _: Answer(503, {"status": "offline"}))
    assert Client(kind, server.url).health() == {"status": "offline"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_with_dots_is_refused_before_another_route_is_asked(serve: Any, kind: str) -> None:
    server = serve(lambda _: Answer(body={}))
    for call in (("get_artifact", "a", "../../b/artifacts/x"), ("get_task", "..", "t"), ("stream_events", ".")):
        with pytest.raises(BridgeError, match="cannot be part of a path"):
            method, *args = call
            getattr(Client(kind, server.url, runs=True), method)(*args)
    for call in (("show", ".."), ("cancel", "."), ("adapter", ".."), ("file", "x", "..")):
        with pytest.raises(BridgeError, match="cannot be part of a path"):
            method, *args = call
            getattr(Client(kind, server.url), method)(*args)
    assert server.seen == []


def stream(request: Request) -> Answer:
    """A bridge with one dispatch of two events, whose first stream is cut after the first one."""
    event = '{"id": "log-%d", "type": "execution.%s"}\n'
    if request.method == "POST":
        return Answer(body={"dispatchId": "d"})
    if "/events" not in request.path:
        return Answer(body={"result": {"status": "ok", "output": "done"}})
    if "after" not in request.path:
        return Answer(body=event % (1, "queued"), cut=True)
    return Answer(body=event % (2, "completed")) if request.path.endswith("log-1") else Answer(204)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_follows_its_events_over_a_cut_stream(serve: Any, kind: str) -> None:
    server = serve(stream)
    seen: list[Any] = []
    request = {"taskId": "t", "agentId": "a", "message": "m"}
    assert Client(kind, server.url).run(request, on_event=seen.append) == {"status": "ok", "output": "done"}
    assert [(event["type"], event["data"]) for event in seen] == [("execution.queued", {}), ("execution.completed", {})]
    assert b'"callbackUrl":null' in server.seen[0].body
    events = "GET /api/v2/dispatch/d/events"
    expected = [
        "POST /api/v2/dispatch",
        events,
        f"{events}?after=log-1",
        f"{events}?after=log-2",
        "GET /api/v2/dispatch/d?wait=60",
    ]
    assert server.lines == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cancels", [False, True])
def test_an_interrupt_cancels_the_dispatch_only_if_that_is_asked_for(serve: Any, kind: str, cancels: bool) -> None:
    server = serve(
        lambda request: Answer(body={"cancelled": True}) if request.path.endswith("cancel") else stream(request)
    )

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    request = {"taskId": "t", "agentId": "a", "message": "m"}
    with pytest.raises(KeyboardInterrupt):
        Client(kind, server.url).run(request, on_event=interrupt, cancel_on_interrupt=cancels)
    assert server.lines[2:] == (["POST /api/v2/dispatch/d/cancel"] if cancels else [])


HALF = "half a character: \ud83d"


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_sent_is_refused_as_such_and_at_once(serve: Any, kind: str) -> None:
    server = serve(lambda _: Answer(body={}))
    body = {"taskId": "t", "agentId": "a", "message": HALF, "callbackUrl": None}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("dispatch", (body,), {}),
        ("dispatch", ({**body, "message": float("nan")},), {}),
        ("dispatch", ({**body, "message": object()},), {}),
        ("dispatch", ({**body, "message": "m"},), {"idempotency_key": "ü"}),
        ("dispatch", ({**body, "message": "m"},), {"idempotency_key": "a\nb"}),
        ("show", (HALF,), {}),
    ]
    for method, args, named in calls:
        with pytest.raises(BridgeError) as raised:
            getattr(Client(kind, server.url), method)(*args, **named)
        assert (raised.value.status, raised.value.code) == (400, "INVALID_REQUEST"), (method, args, named)
        assert "does not answer" not in raised.value.message
    assert server.seen == []


async def shown(url: str, token: str | None = None) -> Any:
    async with AsyncBridge(url, token) as bridge:
        return await bridge.show("x")


def test_a_token_is_sent_without_the_line_end_of_its_file(serve: Any) -> None:
    server = serve(lambda _: Answer(body={}))
    for token in ("secret", "secret\n", " secret\r\n"):
        with Bridge(server.url, token) as bridge:
            bridge.show("x")
        asyncio.run(shown(server.url, token))
    assert [request.headers["authorization"] for request in server.seen] == ["Bearer secret"] * 6


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda _: Answer(body={"a": 1}))
    for proxy in ("socks5://127.0.0.1:9", "http://127.0.0.1:9"):
        monkeypatch.setenv("ALL_PROXY", proxy)
        with Bridge(server.url) as bridge:
            answer: Any = bridge.show("x")
        assert answer == {"a": 1}
        assert asyncio.run(shown(server.url)) == {"a": 1}


def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(BridgeError, match="proxy of the environment.*socksio"):
        Bridge("http://bridge.example")
