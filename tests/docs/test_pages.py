"""Runs the blocks of the pages in `docs/`: programs, commands with the output shown below them, settings and JSON.

    FORGE_BRIDGE=target/debug/forge-bridge python -m pytest tests/docs

`tests/e2e/docs` runs it, and the program in Rust. It needs bash, curl, Go, jq and openssl (`.ci/setup`), and a Node of
version 20.3 or newer (`FORGE_NODE`) with the client in `sdk/typescript` built.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blocks import ROOT, Block, blocks, of
from bridge import PLUGINS, SECRET, Bridge
from receivers import Receiver, address, reserve

PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
# Languages of blocks, and the pages whose tests run those of a language; without pages the language is only read.
RUN = {
    "sh": [
        *("adapters.md", "external-services.md", "management.md", "operate.md", "receive.md", "runs.md", "security.md"),
        "signals.md",
    ],
    "js": ["receive.md"],
    "ts": ["external-services.md"],
    "python": ["adapters.md", "receive.md"],
    "go": ["receive.md"],
    "rust": ["receive.md"],
}
READ = {"json", "text", "toml"}
# Further files whose links are followed.
LINKING = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "adapters/README.md", "config/README.md"),
    *("config/deploy/README.md", "examples/README.md", "plugins/README.md", "tests/README.md", "tests/bench/README.md"),
]


def test_every_block_is_run_or_has_a_reason() -> None:
    for page in PAGES:
        for block in blocks(page):
            runs = page in RUN.get(block.language, []) or block.language in READ
            assert runs or block.reason, f"{block.place}: no test runs {block.language or 'a block without a language'}"


@pytest.mark.parametrize("page", PAGES)
def test_json_and_settings_can_be_read(page: str) -> None:
    for block in of(page, "json"):
        json.loads(block.code)
    for block in of(page, "toml"):
        tomllib.loads(block.code)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_for_whom_it_is_within_its_length(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    assert lines[0].startswith("# ") and lines[1] == "" and lines[2].startswith("For those who"), page
    assert len(lines) <= 250, f"{page} has {len(lines)} lines"


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), *LINKING])
def test_links_lead_to_files_and_headings(page: str) -> None:
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: [{text}]({target})"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{page}: [{text}]({target})"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Bridge]]:
    started: list[Bridge] = []

    def begin(settings: str = "", **variables: str) -> Bridge:
        started.append(Bridge(tmp_path, settings, **variables))
        started[-1].start()
        return started[-1]

    yield begin
    for bridge in started:
        bridge.stop()


def post(bridge: Bridge, **dispatch: Any) -> Any:
    body = json.dumps({"agentId": "me", "message": "Hello", "callbackUrl": None, **dispatch}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{bridge.url}/api/v2/dispatch", body, headers)) as answer:
        return json.load(answer)


def get(bridge: Bridge, path: str) -> Any:
    with urllib.request.urlopen(bridge.url + path) as answer:
        return json.load(answer)


def until(what: str, true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


# ---- receive.md


def port_for_a_program() -> int:
    """A port that nothing listens at, outside of those that systems give to others who ask for any."""
    while True:
        port = random.randrange(20000, 32000)
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
        except OSError:
            return port


def package(folder: Path) -> None:
    """Installs the client in `sdk/typescript`."""
    place = folder / "node_modules/@forge-bridge/client"
    place.parent.mkdir(parents=True)
    place.symlink_to(ROOT / "sdk/typescript")


def js(code: str, folder: Path) -> list[str]:
    file = folder / "receiver.mjs"
    file.write_text(code)
    package(folder)
    return [os.environ.get("FORGE_NODE") or "node", str(file)]


def python(code: str, folder: Path) -> list[str]:
    file = folder / "receiver.py"
    file.write_text(code)
    return [sys.executable, str(file)]


def go(code: str, folder: Path) -> list[str]:
    assert shutil.which("go"), "Go is not installed: .ci/setup"
    file = folder / "receiver.go"
    file.write_text(code)
    program = folder / "receiver"
    environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(folder / "go"), "GOPATH": str(folder / "path")}
    subprocess.run(["go", "build", "-o", str(program), str(file)], check=True, env=environment)
    return [str(program)]


BUILDS = {"js": js, "python": python, "go": go}
PROGRAMS = [block for language in BUILDS for block in of("receive.md", language)]


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"{block.language}:{block.line}")
def test_a_receiver_accepts_what_the_bridge_sends_and_refuses_the_rest(
    block: Block, start: Callable[..., Bridge], tmp_path: Path
) -> None:
    bridge = start(BRIDGE_CALLBACK_SECRETS=SECRET)
    port = port_for_a_program()
    assert "8080" in block.code
    command = BUILDS[block.language](block.code.replace("8080", str(port)), tmp_path)
    bridge.addresses["127.0.0.1:8080"] = f"127.0.0.1:{port}"
    environment = {**os.environ, "WEBHOOK_SECRET": SECRET, "PYTHONPATH": str(ROOT / "sdk/python/src")}
    with open(tmp_path / "received", "w") as output:
        receiver = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output)
    try:
        [check] = of("receive.md", "sh")
        until("the receiver", lambda: answers(port))
        bridge.run(check)
        for task in ("one", "two"):
            post(bridge, taskId=task, callbackUrl=f"http://127.0.0.1:{port}/results")
        until("both callbacks", lambda: get(bridge, "/api/health")["deliveries"] == {"pending": 0, "dead": 0})
        until("both results", lambda: all(task in (tmp_path / "received").read_text() for task in ("one", "two")))
    finally:
        receiver.kill()
        receiver.wait()


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/", b"{}"))
    except urllib.error.HTTPError as refused:
        return refused.code == 401
    except OSError:
        return False
    return False


def test_the_program_in_rust_is_the_one_that_is_compiled() -> None:
    [block] = of("receive.md", "rust")
    assert block.code == (ROOT / "tests/e2e/docs/receiver.rs").read_text()


# ---- operate.md

OPERATE = """
[adapters.echo]
max_concurrent = 4
[adapters.acme-ai]
library = "echo"
health = "offline"
health_message = "api.acme.example does not answer: connection refused"
"""


def test_the_bad_night(start: Callable[..., Bridge]) -> None:
    bridge = start(OPERATE, BRIDGE_ADAPTERS="echo,acme-ai", BRIDGE_CALLBACK_SECRETS=SECRET)
    down, refusing = reserve(), reserve()
    bridge.addresses |= {"127.0.0.1:9100": address(down), "127.0.0.1:9200": address(refusing)}
    receiver = Receiver(refusing, SECRET, 422, '{"error":"unknown member: usage"}')
    for number in range(24):
        post(bridge, taskId=f"order-{number}", provider="echo", callbackUrl=f"http://{address(down)}/results")
    post(bridge, taskId="wait-1", provider="acme-ai")
    post(bridge, taskId="later-1", provider="echo", notBefore="2126-11-27T00:00:00Z", queueTimeoutSeconds=86400)
    for number in (1, 2):
        post(bridge, taskId=f"sess-{number}", provider="echo", model="slow:600000", timeout=900, sessionId="s")
    for number in (1, 2, 3):
        post(bridge, taskId=f"bill-{number}", provider="echo", callbackUrl=f"http://{address(refusing)}/results")
    until("dead letters", lambda: get(bridge, "/api/health")["deliveries"] == {"pending": 24, "dead": 3})
    until("an open circuit", lambda: get(bridge, "/api/v2/deliveries/destinations")["destinations"])
    recovered = []
    try:
        for block in of("operate.md", "sh"):
            if "destinations retry" in block.code:
                recovered.append(Receiver(down, SECRET))
            if "callback test" in block.code:
                receiver.status, receiver.text = 0, ""
            bridge.run(block)
            if "destinations retry" in block.code:
                until("the rest", lambda: get(bridge, "/api/health")["deliveries"]["pending"] == 0)
        until("the replay", lambda: get(bridge, "/api/health")["deliveries"] == {"pending": 0, "dead": 0})
        assert recovered, "operate.md closes a circuit"
    finally:
        for server in [receiver, *recovered]:
            server.close()


# ---- adapters.md, security.md


def test_an_adapter_in_python_is_tested_served_and_replaced(start: Callable[..., Bridge], tmp_path: Path) -> None:
    [block] = of("adapters.md", "python")
    program = tmp_path / "plugins/forge-adapter-shout"
    program.parent.mkdir()
    program.write_text(block.code)
    program.chmod(0o755)
    bridge = start(BRIDGE_ADAPTERS="echo,shout", BRIDGE_PLUGIN_PATH=f"{tmp_path}/plugins,{PLUGINS}")
    post(bridge, taskId="loud", provider="shout", message="two words")
    result = get(bridge, "/api/v2/dispatch/loud?wait=30")["result"]
    assert (result["status"], result["output"]) == ("ok", "TWO WORDS"), result
    for block in of("adapters.md", "sh"):
        bridge.run(block)


def test_tokens_and_keys(start: Callable[..., Bridge]) -> None:
    bridge = start()
    for block in of("security.md", "sh"):
        bridge.run(block)


# ---- external-services.md, management.md, runs.md, signals.md


# Names the caller, as `external.auth = "dev-headers"` reads it.
CALLER = """
const send = globalThis.fetch;
globalThis.fetch = (url, init) => {
  const headers = { ...Object.fromEntries(new Headers(init?.headers)), "x-forge-user-id": "u1", "x-forge-role": "admin" };
  return send(url, { ...init, headers });
};
"""
PRINT = """
console.log(JSON.stringify(await client.externalQuery(api.external.queries["billing.listInvoices"], {})));
"""


def test_a_service_is_called(start: Callable[..., Bridge], tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "plugins/examples/billing-python/billing.py"), "0"]
    service = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout
        found = re.search(r"http://[\d.:]+", service.stdout.readline())
        assert found
        bridge = start((ROOT / "config/examples/external.toml").read_text())
        bridge.command("forge", "manifest", "import", f"{found[0]}/manifest")
        until("its entries", lambda: get(bridge, "/api/health")["services"]["known"] == 1)
        [call] = of("external-services.md", "sh")
        assert json.loads(bridge.shell(call))["result"]["title"] == "Invoice"
        bridge.command("forge", "generate")
        [client] = of("external-services.md", "ts")
        package(tmp_path)
        (tmp_path / "package.json").write_text('{"type": "module"}')
        (tmp_path / "caller.js").write_text(CALLER)
        (tmp_path / "client.ts").write_text(client.code.replace("http://127.0.0.1:7420", bridge.url) + PRINT)
        node = [os.environ.get("FORGE_NODE") or "node", "--import", "./caller.js", "client.ts"]
        ran = subprocess.run(node, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        assert [invoice["title"] for invoice in json.loads(ran.stdout)] == ["Invoice", "Invoice"]
    finally:
        service.kill()
        service.wait()


def test_agents_are_pushed_and_compared(start: Callable[..., Bridge], tmp_path: Path) -> None:
    bridge = start(BRIDGE_ADAPTERS="manager")
    (tmp_path / "SOUL.md").write_text("Kind.\n")
    (tmp_path / "SKILL.md").write_text("---\nname: plums\ndescription: Plums\n---\nPick plums.\n")
    for block in of("management.md", "sh"):
        bridge.run(block)


@pytest.fixture
def runs(start: Callable[..., Bridge], tmp_path: Path) -> Bridge:
    """A bridge for the commands of runs.md, and the repository that they name."""
    author = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in (
        ["init", "--quiet", "--initial-branch=main", "work"],
        ["-C", "work", "commit", "--quiet", "--allow-empty", "-m", "first"],
        ["clone", "--quiet", "--bare", "work", "shop.git"],
    ):
        environment = {**os.environ, **author, "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(["git", *command], cwd=tmp_path, check=True, env=environment)
    settings = of("runs.md", "toml")[0].code
    assert '"/srv/git"' in settings
    bridge = start(settings.replace("/srv/git", str(tmp_path)), BRIDGE_ADAPTERS="echo")
    bridge.addresses |= {"/srv/git": str(tmp_path), "https://git.example.com": f"file://{tmp_path}"}
    return bridge


def test_a_run_without_a_model_ends(runs: Bridge) -> None:
    # The first line has the answer to the message in front.
    events = [json.loads(line) for line in re.findall(r'\{"eventId".*', runs.shell(of("runs.md", "sh")[0]))]
    assert (events[-1]["type"], events[-1]["data"]["status"]) == ("run.completed", "completed")


def test_the_commands_of_a_run(runs: Bridge) -> None:
    # A Captain without a model is given the plan itself.
    tasks = [{"id": "plums", "title": "Plums", "type": 2, "dependencies": [], "instructions": "write plums.txt sweet"}]
    runs.variables["PLAN"] = json.dumps({"tasks": tasks})
    commands = of("runs.md", "sh")[1]
    code = commands.code.replace('"In two languages"', '"$PLAN"')
    # The run is followed from another terminal, and approved when its plan is there.
    tail, approve = "forge-bridge runs tail $run ", "forge-bridge runs approve $run "
    assert tail in code and approve in code
    code = code.replace(tail, f"{tail}> followed & ")
    code = code.replace(approve, f"until {approve}2> refused; do sleep 0.05; done; wait $!; cat followed")
    said = runs.shell(dataclasses.replace(commands, code=code))
    for text in ("plan.approved", "status completed, totalCompleted 1", "/plums/1 is an ancestor of it"):
        assert text in said, said


def test_signals_are_sent_and_read(start: Callable[..., Bridge], tmp_path: Path) -> None:
    bridge = start()
    bridge.variables["TOKEN"] = "0123456789abcdef0123456789abcdef"
    shutil.copy(ROOT / "config/examples/signal-rules.json", tmp_path / "rules.json")
    record = {"adapter": "test", "model": "m", "tokens_in": 1, "tokens_out": 1, "ts": "2026-11-25T10:00:00Z"}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    said = [bridge.shell(block) for block in of("signals.md", "sh")]
    assert "session_key" in said[0] and '"logged":true' in said[1]
    assert '"totalTokensIn":200' in said[-1], said[-1]
