//! Request to create a run, validated; stored, and never changed.

use forge_adapter_api::request::Budget;
use forge_dispatch::validate::fields::{Complaints, Fields};
use forge_dispatch::validate::read_budget;
use forge_store::record::{KeyOwner, RunRecord};
use forge_store::{self as store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use forge_dispatch::validate::FieldError;

use crate::git::Git;
use crate::greeting::Greeting;
use crate::state::State;

/// Request to create a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    pub repo_url: String,
    /// Branch, tag or commit; `None` means the default branch.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    pub model: Option<String>,
    /// Adapter of all steps.
    pub provider: Option<String>,
    pub plan_review: bool,
    /// Decision on change requests.
    #[serde(default)]
    pub approval: Approval,
    /// For all steps together.
    pub budget: Option<Budget>,
    /// First message to the Captain; an event once the run is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Beginning of the interview, as the settings were when the run was created.
    #[serde(default, skip_serializing_if = "Greeting::is_none")]
    pub greeting: Greeting,
    /// Caller that the run belongs to; everyone for a run of an earlier version.
    #[serde(default, skip_serializing_if = "is_of_everyone")]
    pub owner: KeyOwner,
}

fn is_of_everyone(owner: &KeyOwner) -> bool {
    *owner == KeyOwner::EVERYONE
}

/// Maximum bytes of a message to the Captain.
pub const MAX_MESSAGE: usize = 256 * 1024;

/// Reads a message to the Captain.
pub fn read_message<'a>(fields: &Fields<'a>, content: Option<&'a str>) -> Option<&'a str> {
    let is_message = |text: &&str| !text.trim().is_empty() && text.len() <= MAX_MESSAGE;
    let message = content.filter(is_message);
    if content.is_some() && message.is_none() {
        let text = format!("must be a text of 1 to {MAX_MESSAGE} bytes");
        fields.complain("message", text);
    }
    message
}

/// Decision on change requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// By the user.
    #[default]
    User,
    /// Approval at once.
    Auto,
}

impl RunRequest {
    /// State of the run before its first event.
    pub(crate) fn first_state(&self, created_at: jiff::Timestamp) -> State {
        State {
            budget: self.budget,
            greeting: self.greeting,
            ..State::new(created_at, self.plan_review, self.approval)
        }
    }

    /// Reads the body of the request; an error has all complaints.
    pub(crate) fn read(body: &Value, git: &Git) -> Result<Self, Vec<FieldError>> {
        let complaints = Complaints::default();
        let read = Fields::read(body, "", &complaints).and_then(|fields| {
            let repo_url = fields.required_text("repoUrl").and_then(|url| {
                let refused = git.check(url).err();
                refused.map_or(Some(url), |error| {
                    fields.complain("repoUrl", error.to_string());
                    None
                })
            });
            let request = Self {
                reference: fields.text("ref").map(str::to_owned),
                model: fields.id("model"),
                provider: fields.id("provider"),
                plan_review: fields.boolean("planReview").unwrap_or(false),
                approval: fields
                    .choice(
                        "approval",
                        &[("user", Approval::User), ("auto", Approval::Auto)],
                    )
                    .unwrap_or_default(),
                budget: read_budget(&fields),
                message: read_message(&fields, fields.text("message")).map(str::to_owned),
                greeting: Greeting::None,
                owner: KeyOwner::EVERYONE,
                repo_url: repo_url?.to_owned(),
            };
            if let Some(reference) = &request.reference
                && let Err(message) = check_reference(reference)
            {
                fields.complain("ref", message);
            }
            Some(request)
        });
        let (errors, _) = complaints.into_parts();
        match read {
            Some(request) if errors.is_empty() => Ok(request),
            Some(_) | None => Err(errors),
        }
    }

    /// Request of a stored run.
    pub(crate) fn stored(record: &RunRecord) -> store::Result<Self> {
        serde_json::from_str(record.request.get()).map_err(|error| {
            store::Error::Unreadable(format!("the request of {}: {error}", record.id))
        })
    }
}

/// Complaint about a text that cannot name a branch, a tag or a commit.
fn check_reference(text: &str) -> Result<(), &'static str> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+');
    let is_valid = (1..=200).contains(&text.len())
        && text.chars().all(is_plain)
        && !text.starts_with(['-', '.', '/'])
        && !text.ends_with(['.', '/'])
        && !["..", "//", "/.", ".lock"]
            .iter()
            .any(|part| text.contains(part));
    match is_valid {
        true => Ok(()),
        false => Err(
            "must be the name of a branch or a tag, of 1 to 200 bytes, or the whole id of a commit",
        ),
    }
}
