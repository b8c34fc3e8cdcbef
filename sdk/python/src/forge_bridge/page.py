"""Types of the methods that are not of the HTTP interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import NotRequired, ReadOnly, TypedDict

from .wire import DispatchRequestBase, RunStatus

Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Part of a list. It can have fewer items than asked for and still have a `next_cursor`."""

    items: list[Item]
    next_cursor: str | None
    """`cursor` of the next page; `None` after the last one."""


class AwaitedRequest(DispatchRequestBase):
    """Request of `run`: without a callback, unless one is named."""

    # Read-only, so that a `DispatchRequest`, which requires it, is one as well.
    callbackUrl: NotRequired[ReadOnly[str | None]]


class StartedRun(TypedDict):
    """A run that was created."""

    runId: str
    status: RunStatus
