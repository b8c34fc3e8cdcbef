//! Connecting: the hosts are tried one after another, each for a bounded time, until one answers that can be used.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use tokio_postgres::Config;

use super::link::{Link, explain};
use super::server_state::Place;
use super::target::Target;
use super::timeouts::OPEN_TIMEOUT;
use super::url::Sessions;
use crate::lineage;
use crate::rows::statement::{Columns, Statement};

impl Link {
    /// Connects for a command or a start, or returns the reason why not. Of several hosts that can be written, it is the one
    /// that was promoted last: another one can be a former primary that has come back.
    pub(crate) async fn connect(target: &Target) -> Result<Self, String> {
        let first = Self::connect_within(target, OPEN_TIMEOUT).await?;
        if target.host_count() == 1 {
            return Ok(first);
        }
        let first_place = first.place;
        let (system, mut newest) = (first_place.system, (target.server.last_host(), first));
        let others = (0..target.host_count()).filter(|host| *host != newest.0);
        let others = others.map(|host| async move {
            let connected = connect_host(target, host, OPEN_TIMEOUT).await;
            connected.map(|link| (host, link))
        });
        for (host, link) in join_all(others).await.into_iter().flatten() {
            if link.place.system == system && link.place.timeline > newest.1.place.timeline {
                newest = (host, link);
            }
        }
        let (host, link) = newest;
        if link.place != first_place {
            let (former, used) = (target.server.last_host(), target.host_name(host));
            tracing::warn!(
                former = target.host_name(former),
                used,
                "a host of the database is a former primary and is not used"
            );
        }
        target.server.set_last_host(host);
        Ok(link)
    }

    /// Connects, or returns the reason why not. No message waits for longer than `limit`.
    pub(crate) async fn connect_within(target: &Target, limit: Duration) -> Result<Self, String> {
        let order = target.order();
        let is_one = order.len() == 1;
        let mut reasons = Vec::new();
        for host in order {
            match connect_host(target, host, limit).await {
                Ok(link) => {
                    target.server.set_last_host(host);
                    return Ok(link);
                }
                Err(reason) if is_one => return Err(reason),
                Err(reason) => reasons.push(format!("{}: {reason}", target.host_name(host))),
            }
        }
        Err(reasons.join("; "))
    }
}

async fn connect_host(target: &Target, host: usize, limit: Duration) -> Result<Link, String> {
    let longest = target.connect_timeout();
    let late = |_| format!("no answer within {longest:?}");
    let found = timeout(longest, target.addresses(host)).await;
    let mut reason = "it has no address".to_owned();
    for config in found.map_err(late)?? {
        let attempt = timeout(longest, connect_once(target, &config, limit)).await;
        match attempt.map_err(late).flatten() {
            Ok(link) => return Ok(link),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

async fn connect_once(target: &Target, config: &Config, limit: Duration) -> Result<Link, String> {
    let connected = config.connect(target.tls.clone()).await;
    let (client, connection) = connected.map_err(|error| explain(&error))?;
    let mut link = Link::new(client, connection, limit);
    let answers = link
        .send(&[&Statement::new(lineage::STATE, Vec::new())])
        .await;
    let answers = answers.map_err(|error| error.to_string())?;
    let row = answers.first().and_then(|rows| rows.first());
    let mut columns = Columns::of(row.ok_or("its state is not known")?);
    let failed = |error: forge_store::Error| error.to_string();
    let is_standby = columns.next().map_err(failed)?;
    let is_read_only = columns.next().map_err(failed)?;
    link.place = Place {
        system: columns.next().map_err(failed)?,
        timeline: columns.next().map_err(failed)?,
    };
    let mark = target.server.mark();
    match (target.sessions, is_standby, is_read_only) {
        (Sessions::ReadWrite | Sessions::Primary, true, _) => {
            return Err("it is a standby".to_owned());
        }
        (Sessions::ReadWrite, false, true) => return Err("it is read-only".to_owned()),
        // Its timeline is known after its promotion.
        (Sessions::Any, true, _) => {}
        (Sessions::Any | Sessions::ReadWrite | Sessions::Primary, false, _) => {
            let checked = target.server.check(link.place);
            checked.map_err(|error| error.to_string())?;
        }
    }
    link.watch(Arc::clone(&target.server), mark);
    Ok(link)
}
