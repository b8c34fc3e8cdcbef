"""Streams of events over disconnects."""

from __future__ import annotations

import json
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from clients import KINDS, Client
from server import Answer, Request

from forge_bridge import BridgeError, ForgeSDK
from forge_bridge._sync.stream import events

TEXTS = ["a", "ü€😀\u2028\u0085\r\n", ""]
EVENTS = [
    {"id": f"log-{n}", "eventId": f"log-{n}", "type": "assistant.text", "data": {"delta": text}}
    for n, text in enumerate(TEXTS)
]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("_sync", "_async"):
        monkeypatch.setattr(f"forge_bridge.{kind}.stream.backoff", lambda *_: 0.0)


def after(request: Request) -> str | None:
    return parse_qs(urlsplit(request.path).query).get("after", [None])[0]


def written(cursor: str | None, events: list[Any] = EVENTS) -> bytes:
    """Events after this cursor as the bridge writes them, with heartbeats between."""
    start = next((index + 1 for index, event in enumerate(events) if event["id"] == cursor), 0)
    return b"".join(
        b"\n: keepalive\n" + json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events[start:]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_cut_anywhere_yields_each_event_once(serve: Any, kind: str) -> None:
    whole = written(None)
    place = 0
    asked: list[str | None] = []

    def answer(request: Request) -> Answer:
        asked.append(after(request))
        if after(request) == "log-2":
            return Answer(204)
        return (
            Answer(body=whole[:place], cut=place % 2 == 0) if len(asked) == 1 else Answer(body=written(after(request)))
        )

    server = serve(answer)
    # Beside each end of a line, inside each character of several bytes, and here and there.
    special = [place for place in range(1, len(whole)) if whole[place - 1] > 127 or whole[place] in b"\n{"]
    for place in sorted({*special, *range(0, len(whole), 29)}):
        asked.clear()
        assert Client(kind, server.url).dispatch_events("d") == EVENTS, place


@pytest.mark.parametrize("kind", KINDS)
def test_all_events_begin_now_once(serve: Any, kind: str) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        asked.append(f"{request.headers['accept'].split('/')[1]} {after(request)}")
        if request.headers["accept"] == "application/json":
            return Answer(body={"events": [], "nextCursor": "log-7"})
        return [Answer(cut=True), Answer(503, "{}"), Answer(body=written(None)), Answer(204)][len(asked) - 2]

    assert Client(kind, serve(answer).url).events(task_id="t") == EVENTS
    assert asked == ["json now", "x-ndjson log-7", "x-ndjson log-7", "x-ndjson log-7", "x-ndjson log-2"]


@pytest.mark.parametrize("kind", KINDS)
def test_silence_counts_as_a_disconnect(serve: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("_sync", "_async"):
        monkeypatch.setattr(f"forge_bridge.{package}.client.IDLE_SECONDS", 0.05)
    answers = [Answer(body="\n", hold=True), Answer(body=written(None)), Answer(204)]
    states: list[Any] = []
    client = Client(kind, serve(lambda _: answers.pop(0)).url)
    assert (
        client.events(after="0", on_state=lambda state, error: states.append((state, error and error.code))) == EVENTS
    )
    assert states == [("open", None), ("retrying", "TIMEOUT"), ("open", None)]


@pytest.mark.parametrize("kind", KINDS)
def test_permanent_errors_are_raised(serve: Any, kind: str) -> None:
    expired = {"error": "removed", "code": "CURSOR_EXPIRED", "details": {"firstSafeCursor": "log-9"}}
    with pytest.raises(BridgeError) as raised:
        Client(kind, serve(lambda _: Answer(410, expired)).url).events(after="log-1")
    assert raised.value.details == {"firstSafeCursor": "log-9"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_revoked_token_ends_with_the_reason(serve: Any, kind: str) -> None:
    last = b'{"type": "unauthorized", "error": "revoked", "code": "UNAUTHORIZED"}\n'
    answers = [
        Answer(body=written(None) + last),
        Answer(401, {"error": "this token is not known", "code": "UNAUTHORIZED"}),
    ]
    server = serve(lambda _: answers.pop(0))
    with pytest.raises(BridgeError, match="this token is not known"):
        Client(kind, server.url).dispatch_events("d")
    assert after(server.seen[1]) == "log-2"


@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_of_a_run_ends_after_its_last_event(serve: Any, kind: str) -> None:
    ended = {"id": "log-3", "eventId": "log-3", "type": "run.completed", "data": {"status": "completed"}}
    server = serve(lambda _: Answer(body=written(None, [*EVENTS, ended]), hold=True))
    assert Client(kind, server.url, runs=True).stream_events("r", events="core") == [*EVENTS, ended]
    assert server.lines == ["GET /api/v1/runs/r/stream?events=core"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["log-3", "now"])
def test_the_stream_after_the_end_of_a_run_ends(serve: Any, kind: str, start: str) -> None:
    streams = 0

    def answer(request: Request) -> Answer:
        nonlocal streams
        if request.path == "/api/v1/runs/r/stream?after=log-3":
            streams += 1
            return Answer()
        # The run ends while the second connection is open.
        return Answer(body={"completedAt": None if streams < 2 else "2026-01-01T00:00:00Z", "lastEventId": "log-3"})

    assert Client(kind, serve(answer).url, runs=True).stream_events("r", after=start) == []
    assert streams == 2


def test_a_reader_that_begins_again_after_the_end_of_a_run_asks_ever_more_rarely(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []

    def backoff(failures: int, *_: Any) -> float:
        ends.append(failures)
        return 0.0

    monkeypatch.setattr("forge_bridge._sync.stream.backoff", backoff)
    ended = {"completedAt": "2026-01-01T00:00:00Z", "lastEventId": "log-3"}
    server = serve(lambda request: Answer() if "/stream" in request.path else Answer(body=ended))
    with ForgeSDK(server.url) as forge:
        for _ in range(3):
            assert list(forge.stream_events("r", after="log-3")) == []
    # Each reader pauses after its empty stream too, before it asks if the run has ended.
    assert ends == [1, 1, 1, 2, 1, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_ends_empty_is_opened_again_ever_more_rarely(
    serve: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def backoff(count: int, _: float) -> float:
        failures.append(count)
        return 0.0

    monkeypatch.setattr(f"forge_bridge._{kind}.stream.backoff", backoff)
    opened = 0

    def answer(_: Request) -> Answer:
        nonlocal opened
        opened += 1
        if opened == 4:
            return Answer(body=written(None, EVENTS[:1]))
        return Answer(204) if opened == 7 else Answer(body=b"")

    assert Client(kind, serve(answer).url).dispatch_events("d") == EVENTS[:1]
    assert failures == [1, 2, 3, 1, 2]


def test_a_long_line_is_joined_once_however_many_pieces_it_comes_in() -> None:
    line = json.dumps({"type": "a", "data": {"delta": "x" * (1 << 20)}}).encode() + b"\n"
    searched = 0

    class Piece(bytes):
        def split(self, *given: Any) -> Any:
            nonlocal searched
            searched += len(self)
            return super().split(*given)

        def __radd__(self, other: bytes) -> bytes:
            return Piece(bytes(other) + bytes(self))

    class Response:
        def iter_bytes(self) -> Any:
            return (Piece(line[at : at + 1024]) for at in range(0, len(line), 1024))

    [event] = events(cast(Any, Response()))
    assert len(event["data"]["delta"]) == 1 << 20
    assert searched == len(line)
