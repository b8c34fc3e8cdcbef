"""Results and the data of events of a bridge, compared with what `openapi.json` says, of which the types are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from process import Process, against_a_bridge, repository

from forge_bridge import Bridge, DispatchRequest, ForgeSDK

COMPONENTS = json.loads((Path(__file__).parents[3] / "bridge/openapi.json").read_text())["components"]
MODELS = [
    "ok",
    "stream:3",
    "usage",
    "tools",
    "session",
    "structured",
    "fail",
    "retract",
    "busy:1",
    "large:2000000",
    "panic",
]
PLAN: dict[str, Any] = {
    "specs": {"s": "# s"},
    "tasks": [
        {"id": "a", "type": 2, "instructions": "write a.txt hi\ntool Read 20\nsay hi\nfail-once adapter_error"},
        {"id": "b", "type": 3, "instructions": 'spawn {"title": "c", "type": 1, "instructions": "write c.txt hi"}'},
        {"id": "r", "type": "refinery", "dependencies": ["a", "b"], "instructions": ""},
    ],
}


def close(schema: Any) -> None:
    """Forbids members that are not listed, unless the description announces further ones."""
    if isinstance(schema, dict):
        is_open = "Other members" in str(schema.get("description", ""))
        if "properties" in schema and "type" in schema and not is_open:
            schema.setdefault("additionalProperties", False)
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []:
        close(value)


close(COMPONENTS)


def problems(schema: Any, value: Any) -> list[str]:
    validator = Draft202012Validator({"allOf": [schema], "components": COMPONENTS})
    return [error.message for error in validator.iter_errors(value)]


def differences(types: str, events: list[Any]) -> list[Any]:
    """Events whose type is not listed, or whose data is otherwise than listed."""
    listed = COMPONENTS["schemas"][types]["properties"]
    found = [(event["type"], problems(listed.get(event["type"], False), event.get("data", {}))) for event in events]
    return [one for one in found if one[1]]


@against_a_bridge
def test_what_dispatches_send_is_documented(bridge: Process, serve: Any) -> None:
    client = Bridge(bridge.url)
    for model in MODELS:
        request: DispatchRequest = {
            "taskId": model,
            "agentId": "a",
            "message": "Hello",
            "model": model,
            "callbackUrl": None,
        }
        request["tools"] = [{"name": "echo", "inputSchema": {}}]
        result = client.run(request)
        assert problems({"$ref": "#/components/schemas/Result"}, result) == [], model
    # Nothing listens there.
    failing: DispatchRequest = {
        "taskId": "dead",
        "agentId": "a",
        "message": "Hello",
        "callbackUrl": "http://127.0.0.1:9/",
    }
    failing["callback"] = {"retry": {"maxElapsedSeconds": 1}}
    client.dispatch(failing)
    assert [event["type"] for event in client.dispatch_events("dead", until="delivered")][-1] == "callback.dead"
    page: dict[str, Any] = client._http.json("GET", "/api/v2/events", query={"after": "0", "limit": 1000})
    assert {event["type"] for event in page["events"]} > {"adapter.health", "model.retrying", "callback.attempted"}
    assert differences("EventData", page["events"]) == []


@against_a_bridge
def test_what_runs_send_is_documented(bridge: Process, tmp_path: Path) -> None:
    forge = ForgeSDK(bridge.url)
    run_id = forge.create_run(f"file://{repository(bridge.home / 'events.git', tmp_path)}")["runId"]
    tasks = [{"title": task["id"], "dependencies": [], **task} for task in PLAN["tasks"]]
    forge.send_captain_message(run_id, json.dumps({**PLAN, "tasks": tasks}))
    events = list(forge.stream_events(run_id))
    assert {event["type"] for event in events} > {"agent.started", "task.failed", "refinery.merged", "run.completed"}
    assert differences("ForgeEventData", events) == []
    assert problems({"$ref": "#/components/schemas/Run"}, forge.get_run(run_id)) == []
