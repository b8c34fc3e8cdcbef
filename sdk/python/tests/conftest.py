"""Servers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from process import PROGRAM, Process
from server import Answer, Request, Server


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Request], Answer]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[Request], Answer]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache of the type checker, shared by the tests."""
    return tmp_path_factory.mktemp("types")


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(PROGRAM, tmp_path_factory.mktemp("bridge"))
    process.start()
    yield process
    process.stop()
