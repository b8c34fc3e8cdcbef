#!/bin/sh
# Submits a dispatch, follows its events to the end, and reads the result. Needs curl.
#
#   target/release/forge-bridge dev          # in another terminal
#   examples/callers/dispatch.sh "Hello"
#
# BRIDGE_URL (http://127.0.0.1:7420) and BRIDGE_TOKEN select another bridge.
set -eu
url=${BRIDGE_URL:-http://127.0.0.1:7420}
# The task id is the idempotency key: a repeated submission with the same body returns the same dispatch.
task=${TASK_ID:-curl-$(date +%s)-$$}
# A quote or backslash would have to be escaped for JSON; keep the message plain.
message=${1:-Hello}

call() {
  if [ -n "${BRIDGE_TOKEN:-}" ]; then
    curl -sS --fail-with-body -H "Authorization: Bearer $BRIDGE_TOKEN" "$@"
  else
    curl -sS --fail-with-body "$@"
  fi
}

# 202: the dispatch is on disk. `callbackUrl: null`: no callback, the result is read below.
call "$url/api/v2/dispatch" -H 'Content-Type: application/json' \
  -d "{\"taskId\": \"$task\", \"agentId\": \"example\", \"message\": \"$message\", \"model\": \"stream:3\", \"callbackUrl\": null}"
echo
# Server-sent events; the stream ends with the result.
call -N "$url/api/v2/dispatch/$task/events"
call "$url/api/v2/dispatch/$task"
echo
