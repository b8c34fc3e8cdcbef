//! Messages over a channel in either of its two forms: frames to the bridge's own child, lines to a program.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};

use serde_json::json;

use super::frame::{Frame, Kind};
use super::lines::{self, Line};
use super::program::{Channel, Reader};

/// Limit of invalid lines, at which a program is stopped.
const MOST_BREACHES: u32 = 100;

/// A message of the child or program.
#[derive(Debug)]
pub(super) enum ChildMessage {
    /// The instance is ready; carries its manifest.
    Ready(Vec<u8>),
    /// There is no instance; carries the reason.
    Refused(String),
    Event {
        id: u64,
        event: Vec<u8>,
    },
    Dropped {
        id: u64,
        count: u64,
    },
    /// A call has ended, with an answer or an error.
    Done {
        id: u64,
        answer: Result<Vec<u8>, Vec<u8>>,
    },
    /// An answer that is too long to be read; carries its beginning and its length.
    TooLarge {
        id: u64,
        head: Vec<u8>,
        bytes: usize,
    },
    Log {
        level: i32,
        record: Vec<u8>,
    },
    /// A breach of the contract.
    Breach(String),
    /// The child or program cannot continue; carries the reason.
    Failed(String),
}

/// Writer of messages to the child or program.
pub(super) struct Writer {
    to: File,
    channel: Channel,
}

impl Writer {
    pub(super) fn new(to: File, channel: Channel) -> Self {
        Self { to, channel }
    }

    /// Sends the first message: an order to the child, the payload of `create` to a program.
    pub(super) fn open(&mut self, payload: &[u8]) -> io::Result<()> {
        match self.channel {
            Channel::Socket => Frame::new(0, Kind::Order, payload).write(&mut self.to),
            Channel::Pipes => self.to.write_all(&lines::create(payload)),
        }
    }

    pub(super) fn start(&mut self, id: u64, op: &str, payload: &[u8]) -> io::Result<()> {
        match self.channel {
            Channel::Socket => Frame::start(id, op, payload).write(&mut self.to),
            Channel::Pipes => self.to.write_all(&lines::start(id, op, payload)),
        }
    }

    pub(super) fn drop_call(&mut self, id: u64) -> io::Result<()> {
        match self.channel {
            Channel::Socket => Frame::new(id, Kind::Drop, "").write(&mut self.to),
            Channel::Pipes => self.to.write_all(&lines::drop(id)),
        }
    }

    /// Asks the child to end. A program is asked by closing its stdin, which the caller does.
    pub(super) fn end(&mut self) -> io::Result<()> {
        match self.channel {
            Channel::Socket => Frame::new(0, Kind::End, "").write(&mut self.to),
            Channel::Pipes => Ok(()),
        }
    }
}

/// Reader of messages from the child or program.
pub(super) struct MessageReader {
    from: BufReader<Reader>,
    channel: Channel,
    /// Limit of a frame's body or of a line.
    most: usize,
    breaches: u32,
    /// A line went on for too long to read its end.
    is_endless: bool,
}

impl MessageReader {
    pub(super) fn new(from: Reader, channel: Channel, payload_bytes: usize) -> Self {
        Self {
            from: BufReader::with_capacity(64 * 1024, from),
            channel,
            most: payload_bytes + lines::AROUND,
            breaches: 0,
            is_endless: false,
        }
    }

    pub(super) fn reader(&mut self) -> &mut Reader {
        self.from.get_mut()
    }

    /// The next message; `None` at the end. An error is the end, too.
    pub(super) fn next(&mut self) -> io::Result<Option<ChildMessage>> {
        match self.channel {
            Channel::Socket => {
                let frame = Frame::read(&mut self.from, self.most)?;
                Ok(frame.map(told))
            }
            Channel::Pipes => self.next_line(),
        }
    }

    fn next_line(&mut self) -> io::Result<Option<ChildMessage>> {
        if self.is_endless {
            return Ok(Some(ChildMessage::Failed(format!(
                "it wrote a line without end; at most {} bytes are accepted",
                self.most
            ))));
        }
        let mut line = Vec::new();
        let most = self.most as u64;
        if (&mut self.from).take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == most {
            return self.skip(line);
        }
        let line = line.trim_ascii();
        let told = lines::read(line).map_or_else(|why| self.breach(line, why), told_by);
        Ok(Some(told))
    }

    /// A call that an invalid line names is ended by it: its answer would not come.
    fn breach(&mut self, line: &[u8], why: String) -> ChildMessage {
        self.breaches += 1;
        if self.breaches == MOST_BREACHES {
            let message = format!("it wrote {MOST_BREACHES} lines that are not messages");
            return ChildMessage::Failed(message);
        }
        let Some(id) = lines::call_of(line) else {
            return ChildMessage::Breach(why);
        };
        let error = json!({"code": "protocol_violation", "message": why});
        ChildMessage::Done {
            id,
            answer: Err(error.to_string().into_bytes()),
        }
    }

    /// Skips the rest of a line that is too long, up to eight times the limit. The call that it answers ends in either
    /// case.
    fn skip(&mut self, mut line: Vec<u8>) -> io::Result<Option<ChildMessage>> {
        let mut bytes = line.len();
        loop {
            let there = self.from.fill_buf()?;
            let end = there.iter().position(|byte| *byte == b'\n');
            let (count, ended) = match end {
                Some(at) => (at + 1, true),
                None => (there.len(), there.is_empty()),
            };
            self.from.consume(count);
            bytes += count;
            if ended {
                break;
            }
            if bytes > 8 * self.most {
                self.is_endless = true;
                break;
            }
        }
        Ok(Some(match lines::id_of(&line) {
            Some(id) => {
                let start = line.iter().position(|byte| *byte == b':').unwrap_or(0);
                let answer = line[start + 1..].iter().position(|byte| *byte == b':');
                let start = answer.map_or(line.len(), |answer| start + 1 + answer + 1);
                line.drain(..start);
                ChildMessage::TooLarge {
                    id,
                    head: line,
                    bytes,
                }
            }
            None if self.is_endless => return self.next_line(),
            None => ChildMessage::Failed(format!(
                "it wrote a line of {bytes} bytes that does not begin with its \"id\"; at most {} are accepted",
                self.most
            )),
        }))
    }
}

fn told(frame: Frame) -> ChildMessage {
    let unreadable =
        || ChildMessage::Failed(format!("it sent an unreadable frame ({:?})", frame.kind));
    let id = frame.id;
    match frame.kind {
        Kind::Ready => ChildMessage::Ready(frame.body),
        Kind::Refused => ChildMessage::Refused(frame.text()),
        Kind::Event => ChildMessage::Event {
            id,
            event: frame.body,
        },
        Kind::Dropped => match frame.count() {
            Some(count) => ChildMessage::Dropped { id, count },
            None => unreadable(),
        },
        Kind::Answer => ChildMessage::Done {
            id,
            answer: Ok(frame.body),
        },
        Kind::Error => ChildMessage::Done {
            id,
            answer: Err(frame.body),
        },
        Kind::Log => match frame.record() {
            Some((level, record)) => ChildMessage::Log {
                level,
                record: record.to_vec(),
            },
            None => unreadable(),
        },
        Kind::Breach => ChildMessage::Breach(frame.text()),
        Kind::Failed => ChildMessage::Failed(frame.text()),
        Kind::Order | Kind::Start | Kind::Drop | Kind::End => unreadable(),
    }
}

fn told_by(line: Line) -> ChildMessage {
    match line {
        Line::Manifest(manifest) => ChildMessage::Ready(manifest),
        Line::Event { id, event } => ChildMessage::Event { id, event },
        Line::Answer { id, answer } => ChildMessage::Done {
            id,
            answer: Ok(answer),
        },
        Line::Error { id, error } => ChildMessage::Done {
            id,
            answer: Err(error),
        },
        Line::Log { level, record } => ChildMessage::Log { level, record },
    }
}
