"""Drives the fake with OpenAI's own client, which the platform's documentation recommends."""

import json
import sys

from openai import APIStatusError, OpenAI

root, key = sys.argv[1:]


def chat(surface, message, **more):
    client = OpenAI(base_url=f"{root}/ai/v2/{surface}", api_key=key, max_retries=0)
    model = "gloo-anthropic-claude-sonnet-4.6"
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": message}], **more)


whole = chat("guarded", "hello", extra_body={"tradition": "mainline"})

chunks = list(chat("direct", "hello", stream=True, stream_options={"include_usage": True}))

tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
called = chat("guarded", 'CALL look {"at": "Romans 8"}', tools=[tool]).choices[0].message.tool_calls[0]

grounded = {"sources_limit": 2, "include_citations": True}
sourced = list(chat("grounded", "hello", stream=True, extra_body=grounded))

refused = {}
for message in ("FAIL429", "BLOCKED"):
    try:
        chat("guarded", message)
    except APIStatusError as error:
        refused[message] = [error.status_code, type(error).__name__]

print(json.dumps({
    "whole": [whole.choices[0].message.content, whole.usage.total_tokens, whole.model_extra["tradition"]],
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
    "usage": chunks[-1].usage.total_tokens,
    "call": [called.function.name, json.loads(called.function.arguments)],
    "citations": len(sourced[0].model_extra["citations"]),
    "sources": sourced[-1].model_extra["sources_returned"],
    "refused": refused,
}))
