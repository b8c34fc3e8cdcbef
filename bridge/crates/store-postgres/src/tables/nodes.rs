//! The nodes that share the store, and what they share besides records: pauses and tickets.

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::digest::Digest;
use forge_base::id::DispatchId;
use forge_base::time;
use forge_store::Result;
use forge_store::node::{Node, NodeRecord};
use forge_store::record::Home;
use forge_store::roles::Nodes;
use forge_store::ticket::{MAX_LEFT, MOST, MOST_OF_ONE, Ticket};

use crate::Postgres;
use crate::rows::statement::{Columns, array, params};

pub(crate) const NODES: &str =
    "SELECT id, epoch, offer, NOT has_ended AND until > pg_catalog.clock_timestamp(),
   (extract(epoch FROM until) * 1000000::numeric)::int8 * 1000 FROM node ORDER BY id";

/// Reads a row of `NODES`.
pub(crate) fn record(columns: &mut Columns<'_>) -> Result<NodeRecord> {
    Ok(NodeRecord {
        id: columns.next()?,
        epoch: columns.next()?,
        offer: columns.next()?,
        is_live: columns.next()?,
        lease_until: columns.next()?,
    })
}

#[async_trait]
impl Nodes for Postgres {
    fn node(&self) -> &Node {
        &self.published.node
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.all(NODES, Vec::new(), record).await
    }

    async fn homes(&self, dispatches: &[DispatchId]) -> Result<Vec<(DispatchId, Home)>> {
        let sql = "SELECT id, home, is_bound FROM dispatch
                   WHERE id = ANY($1) AND home IS NOT NULL AND phase < 3";
        self.all(sql, vec![array(dispatches)], |row| {
            let (id, node, is_bound) = (row.next()?, row.next()?, row.next()?);
            Ok((id, Home { node, is_bound }))
        })
        .await
    }

    async fn note_pause(&self, provider: &str, is_paused: bool) -> Result<()> {
        let sql = match is_paused {
            true => "INSERT INTO paused (provider) VALUES ($1) ON CONFLICT DO NOTHING",
            false => "DELETE FROM paused WHERE provider = $1",
        };
        let provider = provider.to_owned();
        self.all(sql, params![provider], |_| Ok(())).await?;
        Ok(())
    }

    async fn keep_ticket(&self, ticket: Ticket, now: Timestamp) -> Result<bool> {
        let old = "DELETE FROM ticket WHERE until <= $1 OR until > $2";
        let latest = time::after(now, MAX_LEFT);
        self.all(old, params![now, latest], |_| Ok(())).await?;
        let keep = "INSERT INTO ticket (hash, owner, until) SELECT $1, $2, $3
             WHERE (SELECT pg_catalog.count(*) FROM ticket) < $4
               AND ($2 IS NULL OR (SELECT pg_catalog.count(*) FROM ticket WHERE owner = $2) < $5)
             RETURNING true";
        let Ticket { hash, owner, until } = ticket;
        let params = params![hash, owner, until, MOST, MOST_OF_ONE];
        Ok(self
            .one(keep, params, |row| row.next())
            .await?
            .unwrap_or(false))
    }

    async fn take_ticket(&self, hash: &Digest, now: Timestamp) -> Result<Option<Ticket>> {
        let sql = "DELETE FROM ticket WHERE hash = $1 RETURNING hash, owner, until";
        let taken = self.one(sql, params![*hash], |row| {
            Ok(Ticket {
                hash: row.next()?,
                owner: row.next()?,
                until: row.next()?,
            })
        });
        Ok(taken.await?.filter(|ticket| ticket.is_valid(now)))
    }
}
