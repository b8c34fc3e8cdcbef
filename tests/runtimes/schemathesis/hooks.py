"""What schemathesis must not do to a bridge in a test: have it call addresses that were made up."""

import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("callbackUrl"), str):
        return {**body, "callbackUrl": None}
    return body
