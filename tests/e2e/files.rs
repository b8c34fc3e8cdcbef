//! Attachments of a dispatch and output files of its result, from the request to the download.

use std::fs;
use std::path::Path;

use axum::Router;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_base::digest::{hex, sha256};
use reqwest::Method;
use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::process::Home;
use super::harness::{Bridge, CallbackSink, until};

/// A server with one picture; its address.
async fn pictures() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/picture.png", get(|| async { PICTURE }));
    #[expect(
        clippy::disallowed_methods,
        reason = "a test server ends with its test"
    )]
    tokio::spawn(async { axum::serve(listener, routes).await });
    format!("http://{address}")
}

const PICTURE: &[u8] = b"\x89PNG not really";

/// Folders of attachments below this one.
fn staged(temporary: &Path) -> usize {
    let entries = fs::read_dir(temporary).unwrap().flatten();
    let is_staged = |name: &str| name.starts_with("forge-attachments.");
    let staged = entries.filter(|entry| is_staged(&entry.file_name().to_string_lossy()));
    staged.count()
}

#[tokio::test]
async fn attachments_come_back_as_output_files() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let work = home.dir.path().join("work");
    fs::write(work.join("notes.txt"), "noted").unwrap();
    let bridge = home.start();
    let api = &bridge.api;
    let large = vec![7; 600_000];
    let attachments = json!([
        {"name": "large.bin", "mediaType": "application/x-large", "data": STANDARD.encode(&large)},
        {"name": "my notes.txt", "mediaType": "Text/Plain", "path": "notes.txt"},
        {"name": "picture.png", "mediaType": "image/png", "url": format!("{}/picture.png", pictures().await)},
    ]);
    let body = with(
        quiet("attached", "attachments"),
        &json!({"attachments": attachments, "workspace": {"dir": work}, "callbackUrl": sink.url("/done")}),
    );
    let id = api.dispatch(body.clone()).await;
    let result = api.finished(&id).await["result"].clone();
    let lines = "large.bin application/x-large 600000\nmy notes.txt text/plain 5\npicture.png image/png 15\n";
    assert_eq!(result["output"], lines, "{result}");
    let contents = [&large[..], b"noted", PICTURE];
    let files = result["outputFiles"].as_array().unwrap();
    assert_eq!(files.len(), contents.len());
    for (file, content) in files.iter().zip(contents) {
        assert_eq!(file["sha256"], hex(&sha256(content)));
        assert_eq!(file["bytes"], content.len());
        let href = file["href"].as_str().unwrap();
        let response = api.request(Method::GET, href).send().await.unwrap();
        assert_eq!(response.status(), 200, "{href}");
        let header = |name| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), file["mediaType"].as_str().unwrap());
        assert_eq!(header("content-length"), content.len().to_string());
        assert_eq!(header("content-disposition"), "attachment");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(response.bytes().await.unwrap() == content, "{href}");
    }
    let received: Value = serde_json::from_slice(&sink.until(1).await[0].body).unwrap();
    assert_eq!(received["outputFiles"], result["outputFiles"]);
    let path = format!("/api/v2/dispatch/{id}/files/absent");
    let (status, refusal) = api.get(&path).await;
    assert_eq!(status, 404);
    let text = refusal["error"].as_str().unwrap();
    assert!(text.contains("my notes.txt"), "it names the files: {text}");

    // The content decides whether a repeated request is the same one.
    let (status, again) = api.post("/api/v2/dispatch", &body).await;
    assert_eq!((status.as_u16(), &again["duplicate"]), (202, &json!(true)));
    let mut other = body;
    other["attachments"][0]["data"] = "YQ==".into();
    api.refused(&other, 409, "CONFLICT").await;

    until("the contents to be removed", async || {
        (staged(&home.dir.path().join("tmp")) == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_attachment_that_cannot_be_had_ends_the_attempt() {
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    let work = bridge.home.path().join("work");
    fs::write(bridge.home.path().join("secret"), "not yours").unwrap();
    fs::hard_link(bridge.home.path().join("secret"), work.join("linked")).unwrap();
    fs::write(work.join("large"), vec![0; (20 << 20) + 1]).unwrap();
    let server = pictures().await;
    for (number, (source, reason)) in [
        (json!({"path": "absent"}), "cannot be opened"),
        (json!({"path": "linked"}), "cannot be opened"),
        (json!({"path": "large"}), "is too large"),
        (
            json!({"url": format!("{server}/absent?token=hidden")}),
            "HTTP 404",
        ),
        (
            json!({"url": "http://127.0.0.1:1/?token=hidden"}),
            "cannot be fetched",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let attachment = with(source, &json!({"name": "a.png", "mediaType": "image/png"}));
        let body = with(
            quiet(&format!("unavailable-{number}"), "attachments"),
            &json!({"attachments": [attachment], "workspace": {"dir": work}}),
        );
        let result = api.run(body).await;
        assert_eq!(result["errorCode"], "attachment_unavailable", "{result}");
        let text = result["error"].as_str().unwrap();
        assert!(text.contains("a.png") && text.contains(reason), "{text}");
        assert!(
            !text.contains("hidden") && !text.contains("not yours"),
            "{text}"
        );
    }
    // No adapter without the capability is given one.
    let bridge = bridge
        .restarted("[adapters.echo]\ncapabilities = [\"streaming\"]\n", &[])
        .await;
    let attachment = json!({"name": "a", "mediaType": "text/plain", "data": "YQ=="});
    let body = with(
        quiet("incapable", "ok"),
        &json!({"attachments": [attachment]}),
    );
    bridge.api.refused(&body, 422, "NO_CAPABLE_ADAPTER").await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_written_file_is_an_output_file() {
    let bridge = Bridge::start().await;
    let work = bridge.home.path().join("work");
    let body = with(
        quiet("written", "file"),
        &json!({"workspace": {"dir": work}, "outputFile": "report.md", "outputStrategy": "stream"}),
    );
    let id = bridge.api.dispatch(body).await;
    let result = bridge.api.finished(&id).await["result"].clone();
    let href = result["outputFiles"][0]["href"].as_str().unwrap();
    // It was read when the run ended.
    fs::write(work.join("report.md"), "another text").unwrap();
    let response = bridge.api.request(Method::GET, href).send().await.unwrap();
    assert_eq!(response.bytes().await.unwrap(), "hello");
    bridge.stop().await;
}

#[tokio::test]
async fn after_a_kill_the_contents_are_there_again_and_nothing_is_left() {
    let home = Home::new(&[]);
    let temporary = home.dir.path().join("tmp");
    let bridge = home.start();
    let attachment = json!({"name": "a", "mediaType": "text/plain", "data": "YQ=="});
    let extra = json!({"attachments": [attachment], "recovery": "retry"});
    let id = bridge
        .api
        .dispatch(with(quiet("killed", "slow:3000"), &extra))
        .await;
    until("the contents to be there", async || {
        (staged(&temporary) == 1).then_some(())
    })
    .await;
    bridge.kill();
    assert_eq!(staged(&temporary), 1);
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    assert_eq!(record["attempt"], 2);
    until("the contents to be removed", async || {
        (staged(&temporary) == 0).then_some(())
    })
    .await;
}
