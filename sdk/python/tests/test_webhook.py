"""Verification of callbacks."""

from __future__ import annotations

from typing import Any

import pytest

from forge_bridge import WebhookError, verify_webhook

# The example of the reference libraries of Standard Webhooks: known id, time, body and signature.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
BODY = '{"test": 2432232314}'
ID, SIGNATURE = "msg_p5jXN8AQM9LWM0D4loKWxJek", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
NOW = 1614265330
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(NOW), "webhook-signature": SIGNATURE}


@pytest.mark.parametrize(
    "body, headers, secret",
    [
        (BODY, HEADERS, SECRET),
        (BODY.encode(), HEADERS, SECRET),
        (BODY, {name.title(): value for name, value in HEADERS.items()}, SECRET),
        (BODY, {**HEADERS, "webhook-signature": f"v1,AAAA v1a,AAAA v1,é v2,x {SIGNATURE}"}, SECRET),
        (BODY, HEADERS, [OTHER, SECRET]),
        (BODY, HEADERS, SECRET.removeprefix("whsec_")),
        (BODY, HEADERS, SECRET + "\r\n"),
    ],
)
def test_a_signed_callback_is_accepted(body: Any, headers: Any, secret: Any) -> None:
    result: Any = verify_webhook(body, headers, secret, now=NOW)
    assert result == {"test": 2432232314}


@pytest.mark.parametrize(
    "body, headers, secret, now, reason",
    [
        (BODY + " ", {}, SECRET, NOW, "no signature fits"),
        (BODY, {}, OTHER, NOW, "no signature fits"),
        (BODY, {"webhook-id": "msg_2"}, SECRET, NOW, "no signature fits"),
        (BODY, {"webhook-timestamp": str(NOW + 1)}, SECRET, NOW, "no signature fits"),
        (BODY, {"webhook-signature": SIGNATURE.replace("v1", "v2")}, SECRET, NOW, "no signature fits"),
        (BODY, {"webhook-signature": ""}, SECRET, NOW, "no signature fits"),
        (BODY, {}, [], NOW, "no signature fits"),
        (BODY, {}, SECRET, NOW + 301, "too old or in the future"),
        (BODY, {}, SECRET, NOW - 301, "too old or in the future"),
        (BODY, {"webhook-timestamp": "now"}, SECRET, NOW, "missing or malformed"),
        (BODY, {"webhook-timestamp": "²"}, SECRET, NOW, "missing or malformed"),
        (BODY, {"webhook-id": ""}, SECRET, NOW, "missing or malformed"),
    ],
)
def test_a_callback_is_refused(body: str, headers: Any, secret: Any, now: int, reason: str) -> None:
    with pytest.raises(WebhookError, match=reason):
        verify_webhook(body, {**HEADERS, **headers}, secret, now=now)


def test_the_tolerance_can_be_chosen_and_a_secret_that_is_none_is_an_error_of_the_receiver() -> None:
    assert verify_webhook(BODY, HEADERS, SECRET, now=NOW + 3600, tolerance_seconds=3600)
    with pytest.raises(ValueError):
        verify_webhook(BODY, HEADERS, "whsec_?", now=NOW)
