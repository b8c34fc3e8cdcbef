//! Connecting: the hosts are tried one after another, each for a bounded time, until one answers that can be used.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Config;

use super::link::{Link, explain};
use super::target::Target;
use super::timeouts::OPEN_TIMEOUT;
use super::url::Sessions;
use crate::rows::statement::{Columns, Statement};

const STATE: &str = "SELECT pg_catalog.pg_is_in_recovery(),
   pg_catalog.current_setting('transaction_read_only') = 'on'::text";

impl Link {
    /// Connects for a command or a start, or returns the reason why not.
    pub(crate) async fn connect(target: &Target) -> Result<Self, String> {
        Self::connect_within(target, OPEN_TIMEOUT).await
    }

    /// Connects, or returns the reason why not. No message waits for longer than `limit`.
    pub(crate) async fn connect_within(target: &Target, limit: Duration) -> Result<Self, String> {
        let order = target.order();
        let is_one = order.len() == 1;
        let mut reasons = Vec::new();
        for place in order {
            match connect_host(target, place, limit).await {
                Ok(link) => {
                    target.set_last(place);
                    return Ok(link);
                }
                Err(reason) if is_one => return Err(reason),
                Err(reason) => reasons.push(format!("{}: {reason}", target.host_name(place))),
            }
        }
        Err(reasons.join("; "))
    }
}

async fn connect_host(target: &Target, place: usize, limit: Duration) -> Result<Link, String> {
    let longest = target.connect_timeout();
    let late = |_| format!("no answer within {longest:?}");
    let found = timeout(longest, target.addresses(place)).await;
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
    if target.sessions == Sessions::Any {
        return Ok(link);
    }
    let answers = link.send(&[&Statement::new(STATE, Vec::new())]).await;
    let answers = answers.map_err(|error| error.to_string())?;
    let row = answers.first().and_then(|rows| rows.first());
    let mut columns = Columns::of(row.ok_or("its state is not known")?);
    let mut next = || columns.next::<bool>().map_err(|error| error.to_string());
    match (target.sessions, next()?, next()?) {
        (_, true, _) => Err("it is a standby".to_owned()),
        (Sessions::ReadWrite, false, true) => Err("it is read-only".to_owned()),
        (Sessions::Any | Sessions::ReadWrite | Sessions::Primary, false, _) => Ok(link),
    }
}
