"""An agent of the A2A SDK for the tests. Calls the model at MODEL_URL, appends the ids of cancelled tasks to CANCELS
and acts on the prompt:

ASK (input required, answered by the next message), DENY (rejected), BOOM (failed), PIECES (an artifact in
pieces; with WAIT, it is complete when CANCELS.go exists), DATA (a data part and a file), HUGE (an artifact of 6 MiB),
DROP (the first streams are cut), RETURN (the files of the message), MEDIATYPES (the media types of these files), anything
else: the model's text.
Prints its port and serves both versions; `python agent.py 0.3` serves a card of 0.3 only, `plain` one
without streaming.
"""

import asyncio
import os
import socket
import sys

import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState,
                       TaskStatus)
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

KIND = sys.argv[1] if len(sys.argv) > 1 else "both"
TOKEN = os.environ.get("TOKEN")
MODEL = os.environ["MODEL_URL"]


class Agent(AgentExecutor):
    async def execute(self, context: RequestContext, queue) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        text = context.get_user_input()
        say = lambda words: updater.new_agent_message([Part(text=words)])
        if not context.current_task:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=status,
                                           history=[context.message]))
        await updater.start_work()
        if "ASK" in text:
            return await updater.requires_input(say("which?"))
        if "DENY" in text:
            return await updater.reject(say("not me"))
        if "BOOM" in text:
            return await updater.failed(say("boom"))
        if "RETURN" in text:
            files = [part for part in context.message.parts if part.WhichOneof("content") == "raw"]
            await updater.add_artifact(files, artifact_id="a")
            return await updater.complete()
        if "MEDIATYPES" in text:
            files = [part.media_type for part in context.message.parts if part.media_type]
            await updater.add_artifact([Part(text=" ".join(files))], artifact_id="a")
            return await updater.complete()
        if "HUGE" in text:
            await updater.add_artifact([Part(text="x" * (6 << 20))], artifact_id="a")
            return await updater.complete()
        if "PIECES" in text:
            for number, piece in enumerate(["one", " two", " three"]):
                await updater.add_artifact([Part(text=piece)], artifact_id="a", append=number > 0)
                await asyncio.sleep(0.3 if "DROP" in text else 0.01)
            while "WAIT" in text and not os.path.exists(os.environ["CANCELS"] + ".go"):
                await asyncio.sleep(0.02)
            return await updater.complete()
        history = [context.context_id] if context.current_task else []
        answer = await self.ask(text, updater, say)
        if answer is None:
            return await updater.failed(say("the model refused"))
        await updater.add_artifact([Part(text=answer + "".join(f" [{h}]" for h in history))], name="out")
        await updater.complete()

    async def ask(self, text: str, updater, say) -> str | None:
        body = {"model": "fake-1", "stream": True, "messages": [{"role": "user", "content": text}]}
        answer, told = "", 0
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            async with client.stream("POST", MODEL + "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    return None
                async for line in response.aiter_lines():
                    if '"content":"' in line:
                        answer += line.split('"content":"', 1)[1].split('"', 1)[0]
                        if told < 3:
                            told += 1
                            await updater.update_status(TaskState.TASK_STATE_WORKING, say(answer))
        return answer

    async def cancel(self, context: RequestContext, queue) -> None:
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()
        with open(os.environ["CANCELS"], "a") as cancels:
            print(context.task_id, file=cancels)


class Cut:
    """Cuts the first streams of messages that contain DROP, and rejects requests without the token."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if TOKEN and dict(scope["headers"]).get(b"authorization") != f"Bearer {TOKEN}".encode():
            return await JSONResponse({}, status_code=401)(scope, receive, send)
        message = await receive()
        sent = 0

        async def again():
            nonlocal message
            if message is not None:
                first, message = message, None
                return first
            return await receive()

        cut = b"DROP" in message.get("body", b"")

        async def cutting(event) -> None:
            nonlocal sent
            sent += event["type"] == "http.response.body"
            if cut and sent > 2:
                raise ConnectionResetError
            await send(event)

        await self.app(scope, again, cutting if cut else send)


def main() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    card = AgentCard(
        name="fake", description="d", version="1",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
                              for version in ("1.0", "0.3")],
        capabilities=AgentCapabilities(streaming=True), default_input_modes=["text/plain"],
        default_output_modes=["text/plain"], skills=[AgentSkill(id="s", name="s", description="d", tags=["t"])])
    shown = {"name": "fake", "capabilities": {"streaming": KIND != "plain"}, "protocolVersion": "0.3", "url": url,
             "preferredTransport": "JSONRPC"}
    if KIND != "0.3":
        shown["supportedInterfaces"] = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    handler = DefaultRequestHandler(agent_executor=Agent(), task_store=InMemoryTaskStore(), agent_card=card)
    app = Starlette(routes=[
        Route("/.well-known/agent-card.json", lambda request: JSONResponse(shown)),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)])
    print(port, flush=True)
    config = uvicorn.Config(Cut(app), log_level="warning")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


main()
