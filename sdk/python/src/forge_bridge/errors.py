"""Errors of the bridge, and answers that did not come."""

from __future__ import annotations

import json
from typing import Any

import httpx


class BridgeError(Exception):
    """Error answer of the bridge, or no answer at all (`status` 0)."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "UNREACHABLE",
        request_id: str | None = None,
        details: Any = None,
        trace_id: str | None = None,
        dispatch_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        """Code of the error envelope, an `ErrorCode` such as `NOT_FOUND`; `HTTP_<status>` if something else answered;
        `UNREACHABLE` or `TIMEOUT` without an answer."""
        self.request_id = request_id
        self.details = details
        """By the code: field errors (`INVALID_REQUEST`), `firstSafeCursor` (`CURSOR_EXPIRED`) and so on; of an
        external service its diagnostics."""
        self.trace_id = trace_id
        """Trace of a call of an external service."""
        self.dispatch_id = dispatch_id
        """Dispatch of a command that is held for an approval, or has not ended yet (`status` 202)."""
        self.retry_after = retry_after
        """Value of `Retry-After`, if it was a number of seconds."""

    def __str__(self) -> str:
        origin = "" if self.request_id is None else f" ({self.request_id})"
        return f"[{self.code}] {self.message}{origin}"

    @property
    def is_temporary(self) -> bool:
        """True if the same request can succeed later: no answer, 408, 429 or 5xx."""
        return self.status in (0, 408, 429) or self.status >= 500

    @classmethod
    def of(cls, response: httpx.Response) -> BridgeError:
        """Reads an answer whose body is complete."""
        try:
            envelope = json.loads(response.content)
        except ValueError:
            envelope = None
        if not isinstance(envelope, dict) or "error" not in envelope or "code" not in envelope:
            # Page of an intermediary, not an error envelope.
            envelope = {
                "error": response.text[:200] or f"HTTP {response.status_code}",
                "code": f"HTTP_{response.status_code}",
            }
        wait = response.headers.get("retry-after", "")
        return cls(
            str(envelope["error"]),
            status=response.status_code,
            code=str(envelope["code"]),
            request_id=envelope.get("requestId"),
            details=envelope.get("details", envelope.get("diagnostics")),
            trace_id=envelope.get("traceId"),
            dispatch_id=envelope.get("dispatchId"),
            retry_after=float(wait) if wait.isascii() and wait.isdigit() else None,
        )

    @classmethod
    def unsendable(cls, reason: str) -> BridgeError:
        """Makes the error of a request that is refused before it is sent."""
        return cls(reason, status=400, code="INVALID_REQUEST")

    @classmethod
    def unanswered(cls, cause: Exception) -> BridgeError:
        """Makes the error of a request that was not answered, or not completely."""
        if isinstance(cause, (httpx.LocalProtocolError, httpx.UnsupportedProtocol, UnicodeEncodeError)):
            return cls.unsendable(f"the request cannot be sent: {cause}")
        if isinstance(cause, httpx.TimeoutException):
            return cls("the bridge did not answer in time", code="TIMEOUT")
        return cls(f"the bridge does not answer: {str(cause) or type(cause).__name__}")
