//! Frames between the bridge and its own child: a header of 16 bytes (call id, kind, length of the body;
//! little-endian), then the body. Pure.

use std::io::{self, Read, Write};

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
}

/// Kind of a frame. The numbers are those of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// To the child, first: an `Order` as JSON.
    Order = 1,
    /// To the child: start a call; the length of the op in two bytes, the op, the payload.
    Start = 2,
    /// To the child: drop this call.
    Drop = 3,
    /// To the child: end the instance and the process.
    End = 4,
    /// To the bridge: the instance is ready; its manifest.
    Ready = 16,
    /// To the bridge: there is no instance; the reason as a line of text.
    Refused = 17,
    /// To the bridge: an event of a call, or of the instance if the call id is 0.
    Event = 18,
    /// To the bridge: number of events lost at this point, in eight bytes.
    Dropped = 19,
    /// To the bridge: the answer of a call.
    Answer = 20,
    /// To the bridge: a call failed; the error as JSON.
    Error = 21,
    /// To the bridge: a record of the log; the level in four bytes, then the record.
    Log = 22,
    /// To the bridge: a breach of the contract by the adapter, as text.
    Breach = 23,
    /// To the bridge: the child cannot continue; the reason as text.
    Failed = 24,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Order,
        Self::Start,
        Self::Drop,
        Self::End,
        Self::Ready,
        Self::Refused,
        Self::Event,
        Self::Dropped,
        Self::Answer,
        Self::Error,
        Self::Log,
        Self::Breach,
        Self::Failed,
    ];
}

const HEADER: usize = 16;

impl Frame {
    pub(super) fn new(id: u64, kind: Kind, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { id, kind, body }
    }

    pub(super) fn start(id: u64, op: &str, payload: &[u8]) -> Self {
        let length = u16::try_from(op.len()).unwrap_or(u16::MAX);
        let op = &op.as_bytes()[..usize::from(length)];
        let mut body = Vec::with_capacity(2 + op.len() + payload.len());
        body.extend(length.to_le_bytes());
        body.extend(op);
        body.extend(payload);
        Self::new(id, Kind::Start, body)
    }

    /// The op and the payload of a `Start`.
    pub(super) fn call(&self) -> Option<(String, Vec<u8>)> {
        let (length, rest) = self.body.split_first_chunk()?;
        let (op, payload) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        Some((String::from_utf8_lossy(op).into_owned(), payload.to_vec()))
    }

    pub(super) fn log(level: i32, record: &[u8]) -> Self {
        let mut body = level.to_le_bytes().to_vec();
        body.extend(record);
        Self::new(0, Kind::Log, body)
    }

    /// The level and the record of a `Log`.
    pub(super) fn record(&self) -> Option<(i32, &[u8])> {
        let (level, record) = self.body.split_first_chunk()?;
        Some((i32::from_le_bytes(*level), record))
    }

    /// The number of a `Dropped`.
    pub(super) fn count(&self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.body.first_chunk()?))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let length = u32::try_from(self.body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend((self.kind as u32).to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(&self.body);
        to.write_all(&bytes)
    }

    /// The next frame; `None` at the end. A frame longer than `most` or of unknown kind is an error, after which the
    /// stream is unusable.
    pub(super) fn read(from: &mut impl Read, most: usize) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        let mut filled = 0;
        while filled < HEADER {
            match from.read(&mut header[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => filled += more,
            }
        }
        let number = |at: usize| {
            let bytes = header[at..].first_chunk().expect("inside the header");
            u32::from_le_bytes(*bytes)
        };
        let id = u64::from(number(4)) << 32 | u64::from(number(0));
        let length = number(12) as usize;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == number(8));
        let kind = kind.ok_or_else(|| wrong(format!("a frame of unknown kind {}", number(8))))?;
        if length > most {
            let text = format!("a frame of {length} bytes, at most {most} are accepted");
            return Err(wrong(text));
        }
        // Grows with the bytes received, since the announced length is not trusted.
        let mut body = Vec::new();
        from.take(length as u64).read_to_end(&mut body)?;
        if body.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Self { id, kind, body }))
    }
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_comes_as_it_went() {
        let frames = [
            Frame::start(u64::MAX, "execute", b"{}"),
            Frame::start(1, "", b""),
            Frame::log(-1, b"text"),
            Frame::new(7 << 32, Kind::Dropped, 12_u64.to_le_bytes()),
            Frame::new(0, Kind::End, ""),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut from = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut from, 100).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from, 100).unwrap(), None);
        assert_eq!(frames[0].call(), Some(("execute".into(), b"{}".to_vec())));
        assert_eq!(frames[2].record(), Some((-1, &b"text"[..])));
        assert_eq!(frames[3].count(), Some(12));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let header = |kind: u32, length: u32| {
            let mut bytes = vec![0; 8];
            bytes.extend(kind.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes
        };
        for (bytes, wanted) in [
            (header(2, 101), "101 bytes"),
            (header(2, u32::MAX), "at most 100"),
            (header(99, 0), "unknown kind 99"),
            (header(2, 1), "end of file"),
            (vec![0; 15], "end of file"),
        ] {
            let error = Frame::read(&mut bytes.as_slice(), 100)
                .unwrap_err()
                .to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut from = bytes.as_slice();
            while let Ok(Some(frame)) = Frame::read(&mut from, 100) {
                let _ = (frame.call(), frame.record().is_some(), frame.count(), frame.text());
            }
        }
    }
}
