//! Fields of a log line as text. Control characters in values are escaped, so that no value can begin another line or
//! reach a terminal as a command.

use std::fmt::{self, Debug, Write as _};

use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// Writes one field as the library does: the message alone, others as `name=value`.
pub(super) fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        "message" => {}
        name if writer.has_ansi_escapes() => {
            write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?;
        }
        name => write!(writer, "{name}=")?,
    }
    write!(Escaped(writer), "{value:?}")
}

/// Writer that escapes control characters: a line feed as `\n`, others as `\u{1b}`.
pub(super) struct Escaped<W>(pub W);

impl<W: fmt::Write> fmt::Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let end = piece.char_indices().next_back();
            match end.filter(|(_, last)| last.is_control()) {
                Some((at, control)) => {
                    write!(self.0, "{}{}", &piece[..at], control.escape_default())?;
                }
                None => self.0.write_str(piece)?,
            }
        }
        Ok(())
    }
}
