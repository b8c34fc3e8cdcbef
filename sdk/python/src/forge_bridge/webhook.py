"""Verification of callbacks (Standard Webhooks)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import cast

from .wire import Result


class WebhookError(Exception):
    """Callback that failed the verification, with the reason. Answer it with 401."""


def verify_webhook(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance_seconds: float = 300,
    now: float | None = None,
) -> Result:
    """Verifies the signature (`v1`) of a callback and returns the result in it. Raises a `WebhookError`.

    `body` is the raw body, as it was received: parsed and written again it has another signature. `secret` is
    `whsec_…`, or several while it is rotated; `forge-bridge secrets` shows it. `tolerance_seconds` is the largest
    difference between `webhook-timestamp` and the clock, so that a recorded request cannot be sent again later.

    A callback can come more than once: process each `webhook-id` once.
    """
    given = {name.lower(): value for name, value in headers.items()}
    identifier, timestamp = given.get("webhook-id"), given.get("webhook-timestamp", "")
    if not identifier or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        raise WebhookError("webhook-id or webhook-timestamp is missing or malformed")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance_seconds:
        raise WebhookError("webhook-timestamp is too old or in the future")
    raw = body.encode() if isinstance(body, str) else body
    content = b".".join([identifier.encode(), timestamp.encode(), raw])
    versions = [one.partition(",") for one in given.get("webhook-signature", "").split(" ")]
    signatures = [_decode(text) for version, _, text in versions if version == "v1"]
    for text in [secret] if isinstance(secret, str) else secret:
        # A secret of a file or of Kubernetes often ends with its line.
        key = _decode(text.strip().removeprefix("whsec_"))
        if not key:
            raise ValueError("the secret is not `whsec_` and base64")
        expected = hmac.new(key, content, hashlib.sha256).digest()
        for signature in signatures:
            # In constant time, so that the time of the answer reveals nothing about the expected value.
            if signature is not None and hmac.compare_digest(signature, expected):
                return cast(Result, json.loads(raw))
    raise WebhookError("no signature fits")


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
