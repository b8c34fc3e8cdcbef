//! Deferred answers of a server: addresses to poll and to cancel, and the parsing of a status.

use forge_adapter_api::ExecutionResult;
use forge_adapter_transport::wire::{self, Malformed};
use reqwest::Url;
use serde_json::Value;

/// Addresses of one execution on the server; all have the origin of the configured URL.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) status: Option<Url>,
    /// Receives a POST to cancel; if absent, `status` receives a DELETE.
    pub(crate) cancel: Option<Url>,
}

/// An address with another origin.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the server names an address of another origin; only {0} is called")]
pub(crate) struct OtherOrigin(String);

impl Links {
    /// Reads the addresses from the body of a 202 (`statusUrl`, `cancelUrl`, or `links.self` and
    /// `links.cancel` as returned by the bridge) and its `Location`.
    pub(crate) fn of(
        base: &Url,
        location: Option<&str>,
        body: &Value,
    ) -> Result<Self, OtherOrigin> {
        let text =
            |own: &str, link: &str| body[own].as_str().or_else(|| body["links"][link].as_str());
        let status = text("statusUrl", "self").or(location);
        let cancel = text("cancelUrl", "cancel");
        Ok(Self {
            status: status.map(|text| below(base, text)).transpose()?,
            cancel: cancel.map(|text| below(base, text)).transpose()?,
        })
    }
}

fn below(base: &Url, text: &str) -> Result<Url, OtherOrigin> {
    let elsewhere = || OtherOrigin(base.origin().ascii_serialization());
    let url = base.join(text).map_err(|_| elsewhere())?;
    if url.origin() != base.origin() || !url.username().is_empty() || url.password().is_some() {
        return Err(elsewhere());
    }
    Ok(url)
}

/// The result in a status; `None` if it is not available yet. Also accepts the record of a bridge.
pub(crate) fn settled(status: &Value) -> Result<Option<Box<ExecutionResult>>, Malformed> {
    match status["status"].as_str() {
        Some("ok" | "error") => wire::result(status).map(Some),
        Some("finished") => wire::result(&status["result"]).map(Some),
        Some(_) => Ok(None),
        None => Err(Malformed::Neither),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_configured_origin_is_called() {
        let base = Url::parse("https://a.example/run?x=1").unwrap();
        let links = |body: Value| Links::of(&base, None, &body);
        let found = links(
            json!({"links": {"self": "/runs/1", "cancel": "https://a.example/runs/1/cancel"}}),
        )
        .unwrap();
        assert_eq!(found.status.unwrap().as_str(), "https://a.example/runs/1");
        assert_eq!(found.cancel.unwrap().path(), "/runs/1/cancel");
        for elsewhere in [
            "https://b.example/",
            "http://a.example/",
            "//b.example/x",
            "https://a.example:8443/",
            "https://u@a.example/",
            "file:///etc/passwd",
        ] {
            assert!(
                links(json!({"statusUrl": elsewhere})).is_err(),
                "{elsewhere}"
            );
        }
        assert_eq!(
            Links::of(&base, Some("runs/2"), &Value::Null)
                .unwrap()
                .status
                .unwrap()
                .path(),
            "/runs/2"
        );
    }

    #[test]
    fn a_status_is_a_result_a_record_or_not_yet_one() {
        let done = |value: Value| settled(&value).unwrap().and_then(|result| result.output);
        assert_eq!(
            done(json!({"status": "ok", "output": "x"})).as_deref(),
            Some("x")
        );
        assert_eq!(
            done(json!({"status": "finished", "result": {"status": "ok", "output": "y"}}))
                .as_deref(),
            Some("y")
        );
        assert!(settled(&json!({"status": "running"})).unwrap().is_none());
        for bad in [json!({}), json!("ok"), json!({"status": "finished"})] {
            assert!(settled(&bad).is_err(), "{bad}");
        }
    }
}
