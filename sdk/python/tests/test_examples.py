"""The examples of README.md, checked by mypy and run against a bridge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from process import SECRET, Process, against_a_bridge, repository
from server import Answer, Server
from standardwebhooks.webhooks import Webhook

from forge_bridge import Bridge, verify_webhook

HERE = Path(__file__).parent.parent

TEXT = (HERE / "README.md").read_text()
EXAMPLES: dict[str, str] = {}
for section in re.split(r"\n##+ ", TEXT)[1:]:
    if block := re.search(r"```python\n(.*?)```", section, re.DOTALL):
        EXAMPLES[section.split("\n", 1)[0]] = block[1]

CALLS = "run|dispatch|cancel|run_again|show|files|file|output|create_run|send_captain_message"


def with_asyncio(code: str) -> str:
    """The example as the clients for asyncio have it."""
    code = re.sub(r"\b(Bridge|ForgeSDK)\b", r"Async\1", code)
    code = re.sub(rf"(?<!\w)((?:bridge|forge)\.(?:{CALLS})\()", r"await \1", code)
    code = re.sub(r"for (\w+) in ((?:bridge|forge)\.\w*events\()", r"async for \1 in \2", code)
    # An awaited call whose answer is used at once.
    code = re.sub(r"await ((?:bridge|forge)\.\w+\((?:[^()]|\([^()]*\))*\))(?=[\[.])", r"(await \1)", code)
    imports = [line for line in code.splitlines() if re.match(r"(import|from) ", line)]
    rest = "\n".join(line for line in code.splitlines() if line not in imports)
    return "\n".join(
        [
            "import asyncio",
            *imports,
            "",
            "",
            "async def main() -> None:",
            textwrap.indent(rest, "    "),
            "",
            "",
            "asyncio.run(main())",
            "",
        ]
    )


SPELLINGS = {(title, "as it is"): code for title, code in EXAMPLES.items()}
SPELLINGS |= {
    (title, "with asyncio"): with_asyncio(code)
    for title, code in EXAMPLES.items()
    if re.search(r"^\w+ = (Bridge|ForgeSDK)\(", code, re.MULTILINE)
}


def test_the_examples_are_typed(tmp_path: Path, types: Path) -> None:
    assert (len(EXAMPLES), len(SPELLINGS)) == (11, 20)
    for number, code in enumerate(SPELLINGS.values()):
        (tmp_path / f"example_{number}.py").write_text(code)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(types), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


class Example:
    """A running example."""

    def __init__(self, code: str, url: str, folder: Path, replaced: dict[str, str] | None = None) -> None:
        for old, new in {**(replaced or {}), "http://127.0.0.1:7420": url}.items():
            code = code.replace(old, new)
        file = folder / "example.py"
        file.write_text(code)
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE / "src"),
            "WEBHOOK_SECRET": SECRET,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.child = subprocess.Popen(
            [sys.executable, str(file)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""

    def until(self, text: str) -> None:
        """Reads what it prints, up to this text."""
        assert self.child.stdout is not None
        while text not in self.said:
            line = self.child.stdout.readline()
            assert line, self.child.communicate()
            self.said += line

    def output(self) -> str:
        output, errors = self.child.communicate(timeout=60)
        assert self.child.returncode in (0, -15), output + errors
        return self.said + output


EXPECTED = {
    "Run a dispatch and print its result": "Hello\n",
    "Stream output as it comes": "".join(f"Once upon a time {n}\n" for n in range(1, 6)),
    "Structured output by a schema": "Plums 250\n",
    "Repeat a request safely": "True True\n",
    "Cancel and run again": "True\ncancelled\nTrue\n",
    "Attachments in, files out": "note.txt 9 Buy plums\nnote.txt text/plain 9\n\n",
    "Errors, and which are worth a retry": "priority: must be a whole number from -10 to 10\n400 INVALID_REQUEST not again\nrate_limited True 1\n",
    "With asyncio": "0\n1\n2\n",
}


@against_a_bridge
@pytest.mark.parametrize("title, spelling", [one for one in SPELLINGS if one[0] in EXPECTED])
def test_an_example_prints_what_it_says(bridge: Process, tmp_path: Path, title: str, spelling: str) -> None:
    # The task ids of the other spelling are taken.
    code = re.sub(r'"(\w+-\d+)"', rf'"\1 {spelling}"', SPELLINGS[title, spelling])
    assert Example(code, bridge.url, tmp_path).output() == EXPECTED[title]


@against_a_bridge
def test_receive_a_callback_and_verify_it(bridge: Process, tmp_path: Path) -> None:
    free = Server(lambda _: Answer())
    port = free.url.rpartition(":")[2]
    free.close()
    receiver = Example(EXAMPLES["Receive a callback and verify it"], bridge.url, tmp_path, {"8080": port})
    receiver.until("listening")
    client = Bridge(bridge.url)
    request: Any = {"agentId": "me", "message": "Hello", "callbackUrl": f"http://127.0.0.1:{port}/"}
    forged: Any = {**request, "taskId": "forged", "callback": {"secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"}}
    client.dispatch(forged)
    for event in client.dispatch_events("forged", until="delivered"):
        if event["type"] == "callback.attempted":
            assert event["data"]["status"] == 401
            break
    signed: Any = {**request, "taskId": "signed"}
    client.dispatch(signed)
    receiver.until("signed ok")
    assert list(client.dispatch_events("signed", until="delivered"))[-1]["type"] == "callback.delivered"
    # The same delivery once more.
    client.retry(client.show("signed")["deliveries"][0]["id"])
    for event in client.events(task_id="signed", after="0"):
        if event["type"] == "callback.attempted" and event["data"]["attempt"] == 2:
            break
    receiver.child.terminate()
    assert receiver.output() == "listening\nsigned ok\n"


@against_a_bridge
def test_the_library_of_standard_webhooks_verifies_a_callback_as_well(bridge: Process, serve: Any) -> None:
    sink = serve(lambda _: Answer(204))
    Bridge(bridge.url).run({"taskId": "standard", "agentId": "me", "message": "Hello €", "callbackUrl": sink.url})
    assert list(Bridge(bridge.url).dispatch_events("standard", until="delivered"))[-1]["type"] == "callback.delivered"
    [callback] = sink.seen
    result = verify_webhook(callback.body, callback.headers, SECRET)
    assert (result["taskId"], result["status"], result.get("output")) == ("standard", "ok", "Hello €")
    assert Webhook(SECRET).verify(callback.body, callback.headers) == result


@against_a_bridge
@pytest.mark.parametrize("spelling", ["as it is", "with asyncio"])
def test_follow_all_events_over_a_restart(bridge: Process, tmp_path: Path, spelling: str) -> None:
    code = SPELLINGS["Follow all events, over a restart", spelling]
    client = Bridge(bridge.url)

    def run(task: str, model: str = "ok") -> Any:
        return client.run({"taskId": f"{task} {spelling}", "agentId": "me", "message": "Hello", "model": model})

    (tmp_path / "cursor").write_text(run("zeroth")["events"]["lastCursor"])
    run("first")
    said = Example(code, bridge.url, tmp_path).output()
    # The second run of the example is open while the bridge restarts.
    second = Example(code, bridge.url, tmp_path)
    run("second", "fail")
    second.until(f"execution.failed second {spelling}")
    bridge.stop()
    bridge.start()
    run("third")
    said += second.output()
    lines = re.findall(rf"^\d+ execution\.(.*) {spelling}$", said, re.MULTILINE)
    ends = {"first": "completed", "second": "failed", "third": "completed"}
    assert lines == [f"{kind} {task}" for task, end in ends.items() for kind in ("accepted", "queued", "started", end)]


@against_a_bridge
@pytest.mark.parametrize("spelling", ["as it is", "with asyncio"])
def test_a_run_on_a_repository(bridge: Process, tmp_path: Path, spelling: str) -> None:
    origin = repository(bridge.home / f"{spelling.replace(' ', '-')}.git", tmp_path)
    plan = '{"tasks": [{"id": "hello", "title": "Say hello", "type": 1, "dependencies": [], "instructions": "write hello.txt hi"}]}'
    replaced = {"https://github.com/org/repo": f"file://{origin}", '"Build a REST API"': repr(plan)}
    example = Example(SPELLINGS["A run on a repository", spelling], bridge.url, tmp_path, replaced)
    assert example.output() == "captain: The plan has 1 task.\nmerged: 1\ncompleted\n"
