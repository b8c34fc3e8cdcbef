//! Fields of a log line as text. Unseen characters in values are escaped, so that no value can begin another line, reach a
//! terminal as a command or be shown in another order.

use std::fmt::{self, Debug, Write as _};

use forge_base::text;
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

/// Writer that escapes unseen characters: a line feed as `\n`, others as `\u{1b}`.
pub(super) struct Escaped<W>(pub W);

impl<W: fmt::Write> fmt::Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text::write_escaped(&mut self.0, text, &[])
    }
}
