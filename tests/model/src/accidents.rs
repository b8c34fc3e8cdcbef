//! Accidents of a model's answer, the same for all protocols, with the outcome that every adapter has to give.

use serde_json::{Value, json};

use crate::script::Answer;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Messages,
    Responses,
    Chat,
    Gemini,
}

/// Answers of the server, and the end of the execution.
pub struct Accident {
    pub name: &'static str,
    /// Answers to the first requests; later ones are answered with `pong: …`.
    pub answers: Vec<Answer>,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The text `an answer`.
    Answer,
    /// The second try succeeds, after a `model.retrying` with this reason.
    Retried(&'static str),
    /// An error with this code and text, without a second try; with the text `an answer` if it was sent.
    Failed(&'static str, &'static str),
}

use Outcome::{Failed, Retried};

/// All accidents in this protocol.
pub fn all(wire: Wire) -> Vec<Accident> {
    let (head, text, end) = (wire.head(), wire.text(), wire.end(9));
    let whole: Vec<Value> = [head.clone(), text.clone(), end.clone()].concat();
    let stream = |parts: &[&[Value]]| Answer::events(&parts.concat());
    let noisy = frames(&whole).replace(
        "\n\n",
        "\n\n: keep-alive\n\nevent: ping\ndata:\n\ndata: \n\nid: 7\n\n",
    );
    let refusal = |status, message: &str| {
        Answer::json(status, &json!({"error": {"message": message, "type": "t"}}))
            .with("retry-after-ms", "5")
    };
    let overloaded = [wire.error("overloaded_error", "Overloaded")];
    let accident = |name, answer, outcome| Accident {
        name,
        answers: vec![answer],
        outcome,
    };
    vec![
        accident(
            "comments and events without data",
            Answer::stream(noisy),
            Outcome::Answer,
        ),
        accident(
            "gzip that was not asked for",
            stream(&[&whole]).gzip(),
            Outcome::Answer,
        ),
        accident("408", refusal(408, "slow"), Retried("timeout")),
        accident("409", refusal(409, "locked"), Retried("conflict")),
        accident("429", refusal(429, "too fast"), Retried("rate_limited")),
        accident("500", refusal(500, "sorry"), Retried("server_error")),
        accident("502 in HTML", html(502), Retried("server_error")),
        accident("503 in HTML", html(503), Retried("overloaded")),
        accident("504 in HTML", html(504), Retried("server_error")),
        accident("529", refusal(529, "Overloaded"), Retried("overloaded")),
        accident(
            "overloaded in the stream",
            stream(&[&head, &overloaded]),
            Retried("overloaded"),
        ),
        accident(
            "overloaded in place of the stream",
            Answer::json(200, &overloaded[0]),
            Retried("overloaded"),
        ),
        accident(
            "cut off before any text",
            stream(&[&head]).cut(),
            Retried("broken"),
        ),
        accident(
            "an answer without events",
            Answer::stream(""),
            Retried("broken"),
        ),
        accident(
            "overloaded after a text",
            stream(&[&head, &text, &overloaded]),
            Failed("upstream_error", "Overloaded"),
        ),
        accident(
            "cut off after a text",
            stream(&[&head, &text]).cut(),
            Failed("upstream_error", "broke off"),
        ),
        accident(
            "ended after a text",
            stream(&[&head, &text]),
            Failed("upstream_error", "ended before"),
        ),
        accident(
            "done without a reason after a text",
            Answer::stream(frames(&[&*head, &*text].concat()) + "data: [DONE]\n\n"),
            Failed("upstream_error", "ended before"),
        ),
        accident(
            "an empty reason after a text",
            stream(&[&head, &text, &wire.no_end("")]).cut(),
            Failed("upstream_error", "broke off"),
        ),
        accident(
            "the reason null after a text",
            stream(&[&head, &text, &wire.no_end("null")]),
            Failed("upstream_error", "ended before"),
        ),
        accident(
            "tokens without an answer",
            stream(&[&head, &end]),
            Failed("upstream_error", "no text, thought or tool call"),
        ),
        accident("400", refusal(400, "bad"), Failed("invalid_request", "bad")),
        accident(
            "404",
            refusal(404, "no such model"),
            Failed("invalid_request", "no such model"),
        ),
        accident(
            "401",
            refusal(401, "wrong key"),
            Failed("unauthenticated", "wrong key"),
        ),
        accident(
            "403",
            refusal(403, "not yours"),
            Failed("unauthenticated", "not yours"),
        ),
        accident(
            "401 of a proxy",
            Answer::json(
                500,
                &json!({"error": {"message": "wrong key", "code": "401"}}),
            ),
            Failed("unauthenticated", "wrong key"),
        ),
        accident(
            "429 of a service that wants no retry",
            refusal(429, "no credit").with("x-should-retry", "false"),
            Failed("rate_limited", "no credit"),
        ),
        accident(
            "a redirect",
            Answer::json(302, &json!({})).with("location", "http://127.0.0.1:1/"),
            Failed("upstream_error", "302"),
        ),
    ]
}

/// A whole answer in a stream that goes on with comments.
pub fn never_closed(wire: Wire) -> Answer {
    Answer::events(&[wire.head(), wire.text(), wire.end(9)].concat()).open()
}

fn html(status: u16) -> Answer {
    Answer::stream("<html>oh no</html>")
        .status(status)
        .with("content-type", "text/html")
}

fn frames(events: &[Value]) -> String {
    let frames = events.iter().map(|event| format!("data: {event}\n\n"));
    frames.collect()
}

impl Wire {
    fn head(self) -> Vec<Value> {
        match self {
            Self::Messages => vec![json!({"type": "message_start", "message": {
                "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
                "usage": {"input_tokens": 7, "output_tokens": 1},
            }})],
            Self::Responses => {
                vec![
                    json!({"type": "response.created", "response": {"id": "resp_1", "model": "m"}}),
                ]
            }
            Self::Chat => vec![json!({"id": "c", "model": "m", "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null},
            ]})],
            Self::Gemini => vec![json!({"responseId": "g", "modelVersion": "m"})],
        }
    }

    fn text(self) -> Vec<Value> {
        match self {
            Self::Messages => vec![
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "an answer"}}),
            ],
            Self::Responses => {
                vec![
                    json!({"type": "response.output_text.delta", "output_index": 0, "delta": "an answer"}),
                ]
            }
            Self::Chat => {
                vec![json!({"choices": [{"index": 0, "delta": {"content": "an answer"}}]})]
            }
            Self::Gemini => {
                vec![
                    json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "an answer"}]}}]}),
                ]
            }
        }
    }

    fn end(self, output_tokens: u64) -> Vec<Value> {
        match self {
            Self::Messages => vec![
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": output_tokens}}),
                json!({"type": "message_stop"}),
            ],
            Self::Responses => vec![json!({"type": "response.completed", "response": {
                "id": "resp_1", "output": [], "usage": {"input_tokens": 7, "output_tokens": output_tokens},
            }})],
            Self::Chat => vec![
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": output_tokens}}),
            ],
            Self::Gemini => vec![json!({
                "candidates": [{"finishReason": "STOP"}],
                "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": output_tokens},
            })],
        }
    }

    /// A piece of an answer that goes on, with this text as its reason to end.
    fn no_end(self, reason: &str) -> Vec<Value> {
        match self {
            Self::Messages => vec![
                json!({"type": "message_delta", "delta": {"stop_reason": reason},
                "usage": {"output_tokens": 1}}),
            ],
            // Events of this protocol have no reason.
            Self::Responses => Vec::new(),
            Self::Chat => {
                vec![json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})]
            }
            Self::Gemini => vec![json!({"candidates": [{"finishReason": reason}]})],
        }
    }

    /// An error within the stream.
    fn error(self, kind: &str, message: &str) -> Value {
        match self {
            Self::Gemini => {
                json!({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})
            }
            _ => json!({"type": "error", "error": {"type": kind, "message": message}}),
        }
    }
}
