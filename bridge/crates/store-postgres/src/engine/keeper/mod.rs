//! Keeper: renews the lease of this node and polls what the others have done, on a connection of its own, which no batch
//! delays. *Invariant: this node gives its lease up before the database does, and an ended lease is never renewed.*

mod poll;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counter::Counter;
use super::instant::Instant;
use super::link::{Link, LinkError};
use super::timeouts::poll_timeout;
use super::{Shared, TAKEN, lock};
use crate::lineage;
use crate::rows::statement::{Columns, Statement, params};
use forge_base::{failpoint, time};
use forge_store::node::Tenure;
use forge_store::progress::SLOW;
use forge_store::{Error, Result};

/// Pauses between polls while dispatches run or wait, and otherwise.
const BUSY: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(250);
/// Shortest time that is left of a lease for ending what runs under it, as a share of the lease: a third.
const RENEWALS: u32 = 3;
/// Longest time in which a lease is given back.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const NEWER: &str =
    "the tables of the store were changed by a newer forge-bridge; use that version";
const LAPSED: &str = "the lease of this node was not renewed in time";
/// Otherwise a dispatch that was started by that commit would be running for ever: this node does not know of it, and
/// others leave it to the lease.
const DOUBTED: &str = "the outcome of a commit stayed unknown";

const RENEW: &str =
    "UPDATE node SET until = pg_catalog.clock_timestamp() + $3 * interval '1 s', offer = $4,
     revision = revision + CASE WHEN offer = $4 THEN 0 ELSE 1 END
   WHERE id = $1 AND epoch = $2 AND NOT has_ended AND until > pg_catalog.clock_timestamp()
     AND (SELECT oldest_reader FROM schema) <= reads
   RETURNING (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000::numeric)::int8 * 1000";
/// A new epoch after the lease of the one before has ended.
const RETURN: &str = "UPDATE node SET epoch = pg_catalog.nextval('epoch'), revision = revision + 1,
     until = pg_catalog.clock_timestamp() + $3 * interval '1 s', has_ended = false
   WHERE id = $1 AND instance = $2 AND (SELECT oldest_reader FROM schema) <= reads RETURNING epoch";
const END: &str = "UPDATE node SET has_ended = true, until = least(until, pg_catalog.clock_timestamp()) WHERE id = $1 AND epoch = $2";

pub(super) struct Keeper {
    shared: Arc<Shared>,
    counter: Counter,
    link: Option<Link>,
    /// Values of the last poll.
    seen: Seen,
    /// Reason why the last renewal failed.
    failed: Option<String>,
}

#[derive(Default)]
struct Seen {
    nodes: Option<u64>,
    counted: u64,
    offer: Option<Box<RawValue>>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, tasks: TaskTracker, link: Link) -> Self {
        Self {
            counter: Counter::new(Arc::clone(&shared), tasks),
            shared,
            link: Some(link),
            seen: Seen::default(),
            failed: None,
        }
    }

    /// Keeps the lease until `end`, then gives it back.
    pub(super) async fn run(mut self, end: CancellationToken) {
        while let Some(pause) = end.run_until_cancelled(self.round()).await {
            let Some(pause) = pause else { return };
            end.run_until_cancelled(sleep(pause)).await;
        }
        // Otherwise the others wait for its end.
        if timeout(END_TIMEOUT, self.end()).await.is_err() {
            tracing::warn!("the lease of this node is not given back and ends by itself");
        }
    }

    async fn end(&mut self) {
        let published = Arc::clone(&self.shared.published);
        let (node, epoch) = (published.node.id.clone(), published.epoch());
        let end = Statement::new(END, params![node, epoch]);
        // The round that was under way can have left an answer.
        let link = match self.link.take().filter(Link::is_usable) {
            Some(link) => Ok(link),
            None => Link::connect_within(&self.shared.target, END_TIMEOUT).await,
        };
        if let Ok(mut link) = link {
            failpoint::point("lease.end.before");
            let _ended = link.send(&[&end]).await;
            failpoint::point("lease.end.after");
        }
    }

    fn lease(&self) -> Duration {
        self.shared.published.node.lease.unwrap_or(Duration::MAX)
    }

    fn renewed(&self) -> Instant {
        *lock(&self.shared.renewed)
    }

    fn set_renewed(&self, asked: Instant) {
        *lock(&self.shared.renewed) = asked;
    }

    fn is_held(&self) -> bool {
        matches!(
            *self.shared.published.node.tenure.borrow(),
            Tenure::Held { .. }
        )
    }

    /// Time until this node gives its lease up: two thirds of it, so that all that runs can end before it does.
    fn left(&self) -> Duration {
        self.renewed().left(self.lease() * 2 / RENEWALS)
    }

    /// One poll, with a renewal where it is time. Returns the pause until the next one; `None` if another process has
    /// started as this node.
    async fn round(&mut self) -> Option<Duration> {
        let doubted = self.shared.doubted_epoch.load(Ordering::Acquire);
        if self.is_held() && doubted == self.shared.published.epoch() {
            self.lose(DOUBTED);
        }
        let until = match self.is_held() {
            true => self.left(),
            false => self.lease() / RENEWALS,
        };
        let answer = timeout(until, self.ask()).await;
        // What failed before says more than the end of the time for the last attempt.
        let mut late = || self.failed.take().unwrap_or_else(|| "no answer".to_owned());
        let answer = answer.unwrap_or_else(|_| Err(Lapse::Failed(late())));
        let pause = match answer {
            Ok(pause) => pause,
            Err(Lapse::Over(reason)) => {
                self.lose(reason);
                return None;
            }
            Err(Lapse::Ended) => {
                self.lose(LAPSED);
                BUSY
            }
            Err(Lapse::Failed(reason)) => {
                if self.is_held() {
                    tracing::warn!(
                        reason,
                        "the lease of this node was not renewed and is tried again"
                    );
                }
                self.link = None;
                self.failed = Some(reason);
                REST
            }
        };
        if self.is_held() && self.left().is_zero() {
            let cause = self.failed.take();
            let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
            self.lose(&format!("{LAPSED}{cause}"));
        }
        Some(pause)
    }

    fn lose(&self, reason: &str) {
        let shared = &self.shared;
        let was_held = shared.published.node.tenure.send_replace(Tenure::Lost) != Tenure::Lost;
        if was_held {
            tracing::error!(
                reason,
                "this node stops what it runs, which others take over"
            );
        }
        shared.queue.set_lapsed(Some(reason));
    }

    async fn ask(&mut self) -> Result<Duration, Lapse> {
        self.link.take_if(|link| !link.is_usable());
        if self.link.is_none() {
            let shared = &self.shared;
            let limit = poll_timeout(self.lease());
            let link = lineage::connect(&shared.target, &shared.published, limit).await;
            self.link = Some(link.map_err(Lapse::Failed)?);
        }
        if !self.is_held() {
            return self.come_back().await;
        }
        let offer = self.shared.published.node.offer.borrow().clone();
        let is_told = self
            .seen
            .offer
            .as_ref()
            .is_some_and(|seen| seen.get() == offer.get());
        if !is_told || self.renewed().left(self.lease() / RENEWALS).is_zero() {
            if let Some(standstill) = self.standstill() {
                let seconds = standstill.as_secs();
                let reason = format!("the writer has made no progress for {seconds} s");
                self.failed = Some(reason);
                return self.poll().await;
            }
            self.renew(offer).await?;
            self.failed = None;
        }
        self.poll().await
    }

    /// Time for which the writer has made no progress, if it is so long that the lease is not renewed: otherwise this node
    /// would keep the work that it cannot do.
    fn standstill(&self) -> Option<Duration> {
        let shared = &self.shared;
        let busy = lock(&shared.busy_since).map_or(Duration::ZERO, Instant::elapsed);
        let standstill = busy.max(shared.progress.report().standstill());
        (standstill > SLOW.min(self.lease() / RENEWALS)).then_some(standstill)
    }

    fn link(&mut self) -> Result<&mut Link, Lapse> {
        let lost = || Lapse::Failed("it is not connected".to_owned());
        self.link.as_mut().ok_or_else(lost)
    }

    async fn renew(&mut self, offer: Box<RawValue>) -> Result<(), Lapse> {
        let published = Arc::clone(&self.shared.published);
        let (node, epoch, lease) = (
            published.node.id.clone(),
            published.epoch(),
            self.lease().as_secs_f64(),
        );
        let (asked, asked_at) = (Instant::now(), Timestamp::now());
        let renew = Statement::new(RENEW, params![node, epoch, lease, offer]);
        failpoint::point("lease.renew.before");
        let answers = self.link()?.send(&[&renew]).await?;
        failpoint::point("lease.renew.after");
        drop(renew);
        let Some(row) = answers.first().and_then(|rows| rows.first()) else {
            return Err(self.reason().await?);
        };
        self.set_renewed(asked);
        self.seen.offer = Some(offer);
        let now: Timestamp = Columns::of(row).next()?;
        // The database looked at its clock about half way between question and answer.
        let half = asked.elapsed() / 2;
        published
            .node
            .offset
            .measure(time::after(asked_at, half), now);
        Ok(())
    }

    /// Reason why the lease could not be renewed.
    async fn reason(&mut self) -> Result<Lapse, Lapse> {
        let (node, instance) = self.names();
        let sql = "SELECT (SELECT oldest_reader FROM schema) <= reads FROM node WHERE id = $1 AND instance = $2";
        let own = Statement::new(sql, params![node, instance]);
        let answers = self.link()?.send(&[&own]).await?;
        Ok(match answers.first().and_then(|rows| rows.first()) {
            None => Lapse::Over(TAKEN),
            Some(row) if Columns::of(row).next()? => Lapse::Ended,
            Some(_) => Lapse::Over(NEWER),
        })
    }

    fn names(&self) -> (String, uuid::Uuid) {
        let published = &self.shared.published;
        (published.node.id.clone(), published.identity.instance)
    }

    /// Begins a new epoch, after the lease of the last one has ended: what it ran can still be ending before.
    async fn come_back(&mut self) -> Result<Duration, Lapse> {
        let left = self.renewed().left(self.lease());
        if !left.is_zero() {
            return Ok(left.min(REST));
        }
        if self.standstill().is_some() {
            return Ok(REST);
        }
        let ((node, instance), lease) = (self.names(), self.lease().as_secs_f64());
        let asked = Instant::now();
        let back = Statement::new(RETURN, params![node, instance, lease]);
        let answers = self.link()?.send(&[&back]).await?;
        let row = answers.first().and_then(|rows| rows.first());
        let Some(row) = row else {
            return Err(self.reason().await?);
        };
        let epoch = Columns::of(row).next()?;
        let shared = &self.shared;
        shared.published.begin_epoch(epoch);
        shared.queue.set_lapsed(None);
        self.set_renewed(asked);
        tracing::warn!(epoch, "this node works again, under a new lease");
        // Others have changed what it counted.
        self.counter.count(false);
        shared
            .published
            .node
            .tenure
            .send_replace(Tenure::Held { epoch });
        Ok(Duration::ZERO)
    }
}

/// Reason why a round has failed.
enum Lapse {
    Failed(String),
    /// The lease of this node has ended.
    Ended,
    /// This process is a node no more: another one has started as it, or the tables have become unreadable to it.
    Over(&'static str),
}

impl From<LinkError> for Lapse {
    fn from(error: LinkError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for Lapse {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}
