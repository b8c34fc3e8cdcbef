"""Drives a server with the official client as the adapter does, and prints the shapes of its answers."""

import asyncio
import json
import sys
import uuid

from langgraph_sdk import get_client


def shape(value):
    return sorted(value) if isinstance(value, dict) else type(value).__name__


async def main() -> None:
    client = get_client(url=sys.argv[1], api_key="k")
    thread = str(uuid.uuid4())
    run = await client.runs.create(
        thread, "agent", input={"messages": [{"role": "user", "content": "hello"}]},
        config={"configurable": {"model_url": sys.argv[2]}},
        stream_mode=["messages-tuple"], stream_resumable=True, if_not_exists="create",
        multitask_strategy="reject",
    )
    events = [
        part async for part in client.runs.join_stream(thread, run["run_id"], last_event_id="-1")
    ]
    seen = await client.runs.get(thread, run["run_id"])
    state = await client.threads.get_state(thread)
    found = await client.assistants.search(limit=1)
    print(json.dumps({
        "run_id": str(uuid.UUID(run["run_id"])) == run["run_id"],
        "messages": any(part.event == "messages" and part.data[0]["content"] for part in events),
        "ids": all(part.id for part in events),
        "run": (shape(seen), seen["status"]),
        "state": (shape(state), shape(state["values"]["messages"]), state["next"], state["tasks"]),
        "assistant": shape(found[0]),
    }))


asyncio.run(main())
