"""Runs the official client against the server at argv[1]; fails with an exception on what the client rejects."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="k-1", max_retries=0)


def ask(text, **more):
    messages = more.pop("messages", [{"role": "user", "content": text}])
    return client.chat.completions.create(model="fake-1", messages=messages, **more)


whole = ask("hello")
assert whole.choices[0].message.content == "pong: hello", whole
assert whole.choices[0].finish_reason == "stop"
assert (whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens) == (31, 5)

chunks = list(ask("hello there", stream=True, stream_options={"include_usage": True}))
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "pong: hello there"
assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 2

tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
prompt = 'CALL look {"at": 1} CALL look {"at": 2}'
message = ask(prompt, tools=tools).choices[0].message
assert [json.loads(c.function.arguments) for c in message.tool_calls] == [{"at": 1}, {"at": 2}]

# The client's own accumulator joins the pieces of parallel calls.
with client.chat.completions.stream(
    model="fake-1", messages=[{"role": "user", "content": prompt}], tools=tools
) as stream:
    for _ in stream:
        pass
    streamed = stream.get_final_completion().choices[0]
assert streamed.finish_reason == "tool_calls"
assert [c.function.arguments for c in streamed.message.tool_calls] == ['{"at":1}', '{"at":2}']

answers = [{"role": "tool", "tool_call_id": c.id, "content": "seven"} for c in message.tool_calls]
history = [{"role": "user", "content": prompt}, message.model_dump(exclude_none=True), *answers]
assert ask("", messages=history, tools=tools).choices[0].message.content == "tool said: seven"

schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
assert json.loads(ask("give", response_format=form).choices[0].message.content) == {"n": 42}

for status, kind in [
    (400, openai.BadRequestError),
    (401, openai.AuthenticationError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
]:
    try:
        ask(f"FAIL{status}", stream=True)
        raise AssertionError(f"{status} was accepted")
    except kind as error:
        assert f"fake failure {status}" in str(error), error

try:
    list(ask("CUTOFF in the middle", stream=True))
    raise AssertionError("half a stream was accepted")
except (openai.APIConnectionError, openai.APIError) as error:
    assert not isinstance(error, openai.APIStatusError), error
except Exception as error:
    assert "closed" in str(error), repr(error)

assert [model.id for model in client.models.list()] == ["fake-1"]
print("accepted")
