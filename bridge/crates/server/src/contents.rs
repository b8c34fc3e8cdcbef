//! Routes that stream the bytes of a finished dispatch: its whole output, and its output files.

use std::sync::Arc;

use axum::body::Body as Answer;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::auth::Reader;
use super::error::{Code, Failure};
use super::query::NoQuery;
use super::record::find;
use forge_base::id::DispatchId;
use forge_store::Store;
use forge_store::record::{Content, DispatchRecord, DispatchState as Stage};

/// Size of the chunks in which a content is read and sent.
const PIECE_BYTES: usize = 256 * 1024;

/// Keeps a page of a run from acting as a page of the bridge in a browser.
const NO_ACTIVE_CONTENT: &str = "sandbox; default-src 'none'";

pub(super) async fn output(
    Reader(caller): Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    #[derive(Deserialize)]
    struct Result {
        output: Option<String>,
    }
    let dispatch = find(store.as_ref(), caller, &id).await?;
    let streamed = stream_content(store, dispatch.id, Content::Output).await?;
    let (length, body) = match streamed {
        Some(streamed) => streamed,
        None => {
            let result: Option<Result> = result_of(&dispatch)?;
            let none = || Failure::new(Code::NotFound, "this dispatch ended without output");
            let output = result.and_then(|result| result.output).ok_or_else(none)?;
            (output.len() as u64, Answer::from(output))
        }
    };
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    Ok(answer(length, text, body).into_response())
}

/// One file of the result, always as a download.
pub(super) async fn file(
    Reader(caller): Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path((id, name)): Path<(String, String)>,
) -> Result<Response, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Result {
        #[serde(default)]
        output_files: Vec<OutputFile>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct OutputFile {
        name: String,
        media_type: String,
        href: Option<String>,
    }
    let dispatch = find(store.as_ref(), caller, &id).await?;
    let result: Option<Result> = result_of(&dispatch)?;
    let files = result.map(|result| result.output_files).unwrap_or_default();
    let none = || {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let text = match names.as_slice() {
            [] => format!("this dispatch has no output file {name:?}, and no other one"),
            names => format!(
                "this dispatch has no output file {name:?}; its files: {}",
                names.join(", ")
            ),
        };
        Failure::new(Code::NotFound, text)
    };
    // Files that were too large have no address and no content.
    let is = |file: &OutputFile| file.name == name && file.href.is_some();
    let position = files.iter().position(is).ok_or_else(none)?;
    let content = Content::OutputFile(position);
    let streamed = stream_content(store, dispatch.id, content).await?;
    let (length, body) = streamed.unwrap_or((0, Answer::empty()));
    let unknown = || HeaderValue::from_static("application/octet-stream");
    let media_type = HeaderValue::from_str(&files[position].media_type);
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, NO_ACTIVE_CONTENT),
    ];
    let media_type = media_type.unwrap_or_else(|_| unknown());
    Ok((headers, answer(length, media_type, body)).into_response())
}

fn answer(length: u64, media_type: HeaderValue, body: Answer) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    (headers, body)
}

/// Members of the result of a finished dispatch; `None` if it ended without one, an error if it has not ended.
fn result_of<T: DeserializeOwned>(dispatch: &DispatchRecord) -> Result<Option<T>, Failure> {
    match &dispatch.state {
        Stage::Finished { .. } => {
            let result = dispatch.result.as_ref();
            let read = result.map(|result| serde_json::from_str(result.get()));
            read.transpose().map_err(Failure::internal)
        }
        Stage::Queued | Stage::Running { .. } => {
            let message = "this dispatch is not finished; wait for it with GET …?wait=30";
            Err(Failure::new(Code::InvalidState, message))
        }
    }
}

/// Length and stream of a content; `None` if nothing of it is stored.
async fn stream_content(
    store: Arc<dyn Store>,
    id: DispatchId,
    content: Content,
) -> Result<Option<(u64, Answer)>, Failure> {
    let first = store.content(id, content, 0, PIECE_BYTES).await?;
    Ok(first.map(|first| {
        let total = first.total;
        let pieces = pieces(store, id, content, first.bytes, total);
        (total, Answer::from_stream(pieces))
    }))
}

/// Chunks of a content, each read after the previous one was sent.
fn pieces(
    store: Arc<dyn Store>,
    id: DispatchId,
    content: Content,
    first: Vec<u8>,
    total: u64,
) -> impl stream::Stream<Item = Result<Bytes, Gone>> + Send + 'static {
    let ready = Some(first);
    stream::unfold(
        (store, ready, 0_u64),
        move |(store, ready, offset)| async move {
            let piece = match ready {
                Some(piece) => piece,
                None if offset >= total => return None,
                None => match store.content(id, content, offset, PIECE_BYTES).await {
                    Ok(Some(piece)) if !piece.bytes.is_empty() => piece.bytes,
                    Ok(_) => return Some((Err(Gone), (store, None, total))),
                    Err(error) => {
                        tracing::warn!(dispatch.id = %id, "a download was cut off: {error}");
                        return Some((Err(Gone), (store, None, total)));
                    }
                },
            };
            let next = offset + piece.len() as u64;
            Some((Ok(Bytes::from(piece)), (store, None, next)))
        },
    )
}

/// Read error inside a content; aborts the connection, so that a part is never taken for the whole.
#[derive(Debug, thiserror::Error)]
#[error("the content could not be read to its end")]
struct Gone;

#[cfg(test)]
mod tests {
    use super::super::testing::Edge;
    use super::*;

    #[tokio::test]
    async fn an_output_is_streamed_whole() {
        let edge = Edge::new().await;
        let id = edge.accept("task").await;
        let path = format!("/api/v2/dispatch/{id}/output");
        assert_eq!(edge.get(&path).await.status, 409);
        let lease = edge.begin(id).await;
        let long = "äöü".repeat(PIECE_BYTES / 2);
        edge.finish(lease, Some(&long)).await;
        let answer = edge.get(&path).await;
        assert_eq!(answer.header("content-length"), long.len().to_string());
        assert!(answer.body == long.as_bytes());
        edge.done("short").await;
        assert_eq!(
            edge.get("/api/v2/dispatch/short/output").await.body,
            "short"
        );
    }
}
