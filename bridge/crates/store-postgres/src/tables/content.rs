//! Contents stored apart from a dispatch's request and result. A content is cut into parts, so that a piece of it can be
//! read without the rest.

use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::record::{Content, Piece};

use super::rows::ContentRow;
use crate::Postgres;
use crate::batch::Rows;
use crate::rows::statement::params;

const PART_BYTES: usize = 256 << 10;

/// The column `number`.
fn number(content: Content) -> i64 {
    let number = |position: usize| i64::try_from(position).unwrap_or(i64::MAX - 1);
    match content {
        Content::Output => 0,
        Content::OutputFile(position) => number(position) + 1,
        Content::Attachment(position) => -1 - number(position),
    }
}

impl Rows {
    pub(super) fn add_content(&mut self, id: DispatchId, content: Content, bytes: &[u8]) {
        let parts = bytes.chunks(PART_BYTES).enumerate();
        self.contents.extend(parts.map(|(part, bytes)| ContentRow {
            id,
            number: number(content),
            part,
            bytes: bytes.to_vec(),
        }));
    }
}

impl Postgres {
    /// At most `limit` bytes from `offset`; `None` if nothing is stored.
    pub(super) async fn piece(
        &self,
        id: DispatchId,
        content: Content,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Piece>> {
        let total =
            "SELECT part * $3 + pg_catalog.length(bytes) FROM content WHERE id = $1 AND number = $2
                     ORDER BY part DESC LIMIT 1";
        let number = number(content);
        let params = params![id, number, PART_BYTES];
        let Some(total) = self.one(total, params, |row| row.next::<u64>()).await? else {
            return Ok(None);
        };
        let end = offset.saturating_add(limit as u64).min(total);
        let parts = "SELECT pg_catalog.substr(bytes, (1 + greatest($3 - part * $5, 0))::int,
                       greatest(least($4 - part * $5, $5) - greatest($3 - part * $5, 0), 0)::int)
                     FROM content WHERE id = $1 AND number = $2 AND part BETWEEN $3 / $5 AND $4 / $5
                     ORDER BY part";
        let offset = offset.min(end);
        let params = params![id, number, offset, end, PART_BYTES];
        let parts = self.all(parts, params, |row| row.next::<Vec<u8>>()).await?;
        let bytes = parts.concat();
        Ok(Some(Piece { bytes, total }))
    }
}
