"""An ACP agent with rare behaviour, selected by its argument."""
import json
import os
import sys
import time

WHAT = sys.argv[1]
WORK = None
LOG = os.environ.get("AGENT_LOG")


def changed():
    return LOG is not None and os.path.exists(LOG + ".changed")


BEFORE = changed()


def log(what):
    if LOG:
        with open(LOG, "a") as file:
            file.write(f"{what} {os.getpid()}\n")


log("start")


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def receive():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def ask(method, params):
    """Sends a request and returns the client's answer."""
    send({"id": "mine", "method": method, "params": params})
    while True:
        message = receive()
        if message.get("id") == "mine":
            return message


def update(**update):
    send({"method": "session/update", "params": {"sessionId": "s", "update": update}})


def say(text):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def media_type(block):
    return " " + block.get("resource", block)["mimeType"]


def prompt(request):
    blocks = request["params"]["prompt"]
    text = "".join(block.get("text") or media_type(block) for block in blocks)
    if WHAT == "plain" and "SLOW" in text:
        say("tick")
        while receive().get("method") != "session/cancel":
            pass
        return {"stopReason": "cancelled"}
    elif WHAT == "plain" and "FAIL" in text:
        say("HTTP 500: not a failure of ours")
        return {"stopReason": "refusal"}
    elif WHAT in ("plain", "forgot", "forgetful") or WHAT.endswith("_when_changed"):
        say(WORK + ": " + text)
        return {"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}
    elif WHAT == "greet":
        print("a greeting\n\n[1]\n{}", flush=True)
        send({"id": 999, "result": {}})
        send({"id": "1", "error": {}})
        send({"method": "session/update", "params": {"sessionId": "another", "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "not mine"}}}})
        send({"method": "_of/later", "params": 7})
        say("fine")
    elif WHAT == "half":
        say("so far")
        print('{"jsonrpc": "2.0", "method": "session/upd', flush=True)
        time.sleep(300)
    elif WHAT == "cut":
        say("so far")
        sys.stdout.write('{"jsonrpc": "2.0", "id"')
        sys.stdout.flush()
        print("it broke", file=sys.stderr)
        sys.exit(3)
    elif WHAT == "long":
        say("x" * (17 << 20))
        time.sleep(300)
    elif WHAT == "deep":
        print("[" * 100_000 + "]" * 100_000)
        print('{"a":' * 100_000, flush=True)
        time.sleep(300)
    elif WHAT == "flood":
        while True:
            send({"id": "mine", "method": "_ask/this", "params": {}})
    elif WHAT == "asks":
        codes = [ask(method, params).get("error", {}).get("code") for method, params in [
            ("terminal/create", {"command": "ls"}),
            ("_of/later", None),
            ("fs/read_text_file", {"path": "/etc/passwd"}),
            ("fs/write_text_file", {"path": WORK + "/new/a.txt", "content": "through us"}),
        ]]
        read = ask("fs/read_text_file", {"path": WORK + "/new/a.txt"})
        chosen = ask("session/request_permission", {"toolCall": {"kind": "execute"}, "options": []})
        say(json.dumps([codes, read.get("result"), chosen["result"]]))
    elif WHAT == "deaf_to_cancel":
        say("so far")
        time.sleep(300)
    elif WHAT == "asks_when_cancelled":
        say("so far")
        while receive().get("method") != "session/cancel":
            pass
        say(json.dumps(ask("session/request_permission", {"toolCall": {}, "options": [
            {"optionId": "yes", "kind": "allow_once"}]})["result"]))
        return {"stopReason": "cancelled"}
    elif WHAT == "loosens":
        say("so far")
        update(sessionUpdate="current_mode_update", currentModeId="yolo")
        time.sleep(300)
    elif WHAT == "late":
        say("do")
        send({"id": request["id"], "result": {"stopReason": "end_turn"}})
        time.sleep(0.01)
        say("n")
        time.sleep(0.01)
        say("e")
        return None
    elif WHAT == "counts":
        update(sessionUpdate="usage_update", used=1, size=2, cost={"amount": 0.5, "currency": "USD"})
        return {"stopReason": "end_turn", "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}
    else:
        return {"stopReason": WHAT}
    return {"stopReason": "end_turn"}


while True:
    request = receive()
    method = request.get("method")
    if method == "initialize":
        if WHAT == "mute":
            time.sleep(300)
        FILES = request["params"]["clientCapabilities"]["fs"]["readTextFile"]
        result = {"protocolVersion": 2 if WHAT == "other_version" else 1,
                  "agentCapabilities": {"loadSession": WHAT != "forgetful",
                                        "promptCapabilities": {"image": True, "embeddedContext": True}},
                  "authMethods": [{"id": "l", "name": "log in with `agent login`"}]}
    elif method == "session/new" and WHAT == "dies_when_changed" and changed() and not BEFORE:
        sys.exit("it changed")
    elif method == "session/new" and (WHAT == "login" or WHAT == "login_when_changed" and changed() and not BEFORE):
        send({"id": request["id"], "error": {"code": -32000, "message": "Authentication required"}})
        continue
    elif method == "session/new" and WHAT == "nameless":
        result = {}
    elif method in ("session/new", "session/load"):
        WORK = request["params"]["cwd"]
        log("files" if FILES else "bare")
        result = {"sessionId": "s"}
        if WHAT in ("grants", "loosens"):
            modes = ["yolo"] + ["default"] * (WHAT == "loosens")
            result["modes"] = {"currentModeId": "yolo", "availableModes": [{"id": mode, "name": mode} for mode in modes]}
        if method == "session/load" and WHAT == "forgot":
            result = None
        elif method == "session/load":
            say("of an earlier turn")
    elif method == "session/set_mode":
        result = {}
    elif method == "session/prompt":
        result = prompt(request)
        if WHAT == "late":
            continue
    elif "id" in request:
        send({"id": request["id"], "error": {"code": -32601, "message": "no " + method}})
        continue
    else:
        continue
    send({"id": request["id"], "result": result})
