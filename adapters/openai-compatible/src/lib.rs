//! The adapter `openai-compatible`: any server with OpenAI's Chat Completions API, at an address that the
//! operator sets. `forge-adapter-openai-client` implements it.

use forge_adapter_openai_client::{Dialect, OpenAi};

/// Dialect of an unknown server.
pub struct AnyServer;

impl Dialect for AnyServer {
    const NAME: &'static str = "openai-compatible";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const URLS: &'static [&'static str] = &["OPENAI_COMPATIBLE_BASE_URL", "OPENAI_BASE_URL"];
    const KEYS: &'static [&'static str] = &["OPENAI_COMPATIBLE_API_KEY", "OPENAI_API_KEY"];
    const ENV: &'static [&'static str] = &["OPENAI_BASE_URL", "OPENAI_API_KEY"];
    const NEEDS_KEY: bool = false;
}

/// The adapter.
pub type OpenAiCompatible = OpenAi<AnyServer>;

forge_adapter_api::export_adapter!(OpenAiCompatible);
