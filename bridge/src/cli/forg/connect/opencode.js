// Connects OpenCode to the signals agent of this machine. Written by `forg connect opencode`, removed by its --remove.
// Whatever is wrong with `forg` or the agent, tools run.
import { execFile } from "node:child_process"

const LIMIT_MS = 5000

export const Forg = async () => {
  // Usage of answers of the model that no hook has reported yet, by session.
  const unreported = new Map()

  const hook = (event, session, tool) =>
    new Promise((resolve) => {
      const messages = [...(unreported.get(session)?.values() ?? [])]
      unreported.delete(session)
      const input = JSON.stringify({ session_id: session, tool_name: tool, messages })
      const options = { timeout: LIMIT_MS, killSignal: "SIGKILL" }
      const done = (error, answer) => {
        try {
          resolve(error || !answer ? null : JSON.parse(answer))
        } catch {
          resolve(null)
        }
      }
      try {
        const child = execFile("forg", ["emit", "--adapter", "opencode-forg", "--event", event], options, done)
        child.stdin.on("error", () => {})
        child.stdin.end(input)
      } catch {
        resolve(null)
      }
    })

  const noteUsage = ({ id, role, sessionID, modelID, tokens, cost, time }) => {
    if (role !== "assistant" || !time?.completed || !tokens) return
    const usage = {
      input_tokens: tokens.input,
      output_tokens: tokens.output + (tokens.reasoning ?? 0),
      cache_read_input_tokens: tokens.cache?.read ?? 0,
      cache_creation_input_tokens: tokens.cache?.write ?? 0,
    }
    // A model without a price costs 0 here, which is not known to be true.
    const message = { id, model: modelID, usage, cost_usd: cost > 0 ? cost : null }
    if (!unreported.has(sessionID)) unreported.set(sessionID, new Map())
    unreported.get(sessionID).set(id, message)
  }

  return {
    event: async ({ event }) => {
      const properties = event.properties ?? {}
      const session = properties.sessionID ?? properties.info?.id
      if (event.type === "message.updated") noteUsage(properties.info ?? {})
      if (event.type === "session.created") await hook("SessionStart", session)
      if (event.type === "session.idle") await hook("Stop", session)
      if (event.type === "session.deleted") await hook("SessionEnd", session)
    },
    "chat.message": async ({ sessionID }) => {
      const answer = await hook("UserPromptSubmit", sessionID)
      if (answer?.decision === "block") throw new Error(answer.reason)
    },
    "tool.execute.before": async ({ tool, sessionID }) => {
      const answer = await hook("PreToolUse", sessionID, tool)
      if (answer?.continue === false) throw new Error(answer.stopReason)
    },
    "tool.execute.after": async ({ tool, sessionID }) => {
      await hook("PostToolUse", sessionID, tool)
    },
  }
}
