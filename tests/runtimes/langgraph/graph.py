"""Graphs for the tests. They call the fake model at `MODEL_URL`, or at `model_url` of the run's configuration.

agent   a chat with a tool, a question to a human, a structured answer, progress; by markers in the prompt:
        `ASK` asks a human, `TWICE` asks two questions at once, `TICK` ticks for three seconds, `CRASH` raises,
        `LOOP` never ends, `SCHEMA` follows a schema, `HUGE` answers with 6 MiB
shop    a state without messages: `question` in, `reply.text` out
"""

import asyncio
import os
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    structured_response: dict
    seen: Annotated[dict, lambda old, new: {**(old or {}), **new}]


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


def configured(config: RunnableConfig) -> dict:
    return config.get("configurable") or {}


def model(config: RunnableConfig) -> ChatOpenAI:
    chosen = configured(config)
    url = chosen.get("model_url") or os.environ["MODEL_URL"]
    return ChatOpenAI(
        model=chosen.get("model") or "fake-1", base_url=url + "/v1", api_key="fake",
        max_retries=0, streaming=True, stream_usage=True, timeout=60,
    )


def said(state: Talk) -> str:
    human = [m for m in state["messages"] if m.type == "human"]
    return human[-1].text if human else ""


async def think(state: Talk, config: RunnableConfig):
    text, write = said(state), get_stream_writer()
    answered = state["messages"][-1].type == "tool"
    if "TICK" in text and not answered:
        for tick in range(30):
            write({"tick": tick})
            await asyncio.sleep(0.1)
    if "HUGE" in text:
        return {"messages": [AIMessage("x" * (6 << 20))]}
    if "CRASH" in text:
        raise ValueError("the graph failed")
    write({"progress": "half"})
    offered = [
        {"type": "function", "function": {"name": t["name"], "parameters": t["inputSchema"]}}
        for t in configured(config).get("tools") or []
    ]
    chat = model(config).bind_tools([add, *offered])
    if "SCHEMA" in text:
        schema = configured(config)["schema"]
        structured = await model(config).with_structured_output(
            {"title": "answer", "description": "an answer", **schema}, method="json_schema"
        ).ainvoke(state["messages"])
        return {"structured_response": structured}
    if "ASK" in text and not answered:
        answer = interrupt({"question": "go on?", "about": text})
        reply = await chat.ainvoke([("user", f"the human said {answer}")])
    else:
        reply = await chat.ainvoke(state["messages"])
    return {"messages": [reply], "seen": {
        key: value for key, value in configured(config).items() if key in ("model", "colour")
    }}


async def act(state: Talk):
    calls = [call for call in state["messages"][-1].tool_calls if call["name"] == "add"]
    return {"messages": [
        ToolMessage(add.invoke(call["args"]), tool_call_id=call["id"], name=call["name"]) for call in calls
    ]}


def after_thinking(state: Talk):
    if "LOOP" in said(state):
        return "think"
    if "TWICE" in said(state):
        return [Send("ask", {"about": about}) for about in ("size", "colour")]
    calls = getattr(state["messages"][-1], "tool_calls", [])
    return "act" if any(call["name"] == "add" for call in calls) else END


def ask(state: dict):
    return {"seen": {"answer": interrupt({"about": state["about"]})}}


talk = StateGraph(Talk)
talk.add_node("think", think)
talk.add_node("act", act)
talk.add_node("ask", ask)
talk.add_edge(START, "think")
talk.add_conditional_edges("think", after_thinking, ["think", "act", "ask", END])
talk.add_edge("act", "think")
agent = talk.compile()


class Order(TypedDict, total=False):
    question: str
    reply: dict


async def serve(state: Order, config: RunnableConfig):
    reply = await model(config).ainvoke(state["question"])
    return {"reply": {"text": reply.text}}


counter = StateGraph(Order)
counter.add_node("serve", serve)
counter.add_edge(START, "serve")
counter.add_edge("serve", END)
shop = counter.compile()
