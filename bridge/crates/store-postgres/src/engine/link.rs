//! The connection of the writer. It is driven by the task that uses it: everything that the work sends before it waits
//! goes out in one piece. *Invariant: no answer is waited for without a limit.*

use std::error::Error as _;
use std::future::{pending, poll_fn};
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::probe::is_of_store;
use super::server_state::{Place, ServerState};
use super::tls::Stream;
use crate::rows::statement::Statement;

pub(crate) struct Link {
    client: Arc<Client>,
    connection: Connection<Socket, Stream>,
    /// Longest wait for the answer to one message.
    limit: Duration,
    /// An answer is waited for, or its wait was given up.
    is_waiting: bool,
    /// The server has warned since this was set to false.
    pub(crate) has_warned: bool,
    /// Statements that the store has failed to carry out.
    refused: Option<Vec<Statement<'static>>>,
    /// Last position of the log, once `lineage::look` has looked.
    pub(crate) log_end: u64,
    pub(crate) place: Place,
    /// Told when the connection is lost, and the mark of its last check there.
    watched: Option<(Arc<ServerState>, u64)>,
}

/// Reason why statements were not all carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The server refused a statement, or a parameter could not be sent; the connection is open.
    #[error("{}", explain(.0))]
    Statement(tokio_postgres::Error),
    #[error("the connection to the database was lost ({0})")]
    Lost(String),
}

/// Reason why an idle connection cannot be used as it is.
pub(super) enum Idle {
    Ended(LinkError),
    /// Another connection was lost.
    Suspected,
}

impl From<tokio_postgres::Error> for LinkError {
    fn from(error: tokio_postgres::Error) -> Self {
        let is_lost = match error.as_db_error() {
            Some(db) => db.parsed_severity() != Some(Severity::Error),
            None => error.is_closed(),
        };
        match is_lost {
            true => Self::Lost(explain(&error)),
            false => Self::Statement(error),
        }
    }
}

impl LinkError {
    /// True if the store failed, and not one change.
    pub(super) fn is_of_store(&self) -> bool {
        matches!(self, Self::Statement(error) if error.code().is_some_and(is_of_store))
    }

    /// True if another connection can be one to a server that takes changes: one that has become a standby stays one.
    pub(super) fn is_read_only(&self) -> bool {
        matches!(self, Self::Statement(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
    }
}

impl Link {
    pub(super) fn new(
        client: Client,
        connection: Connection<Socket, Stream>,
        limit: Duration,
    ) -> Self {
        Self {
            client: Arc::new(client),
            connection,
            limit,
            is_waiting: false,
            has_warned: false,
            refused: None,
            log_end: 0,
            place: Place::default(),
            watched: None,
        }
    }

    /// Reports the loss of this connection from now on.
    pub(super) fn watch(&mut self, server: Arc<ServerState>, mark: u64) {
        self.watched = Some((server, mark));
    }

    /// Checks a connection that is suspected: it answers within the limit, and its server is still that of the store.
    pub(super) async fn check(&mut self, limit: Duration) -> Result<(), LinkError> {
        let before = self.set_limit(limit);
        let answered = self.run("").await;
        self.set_limit(before);
        answered?;
        let place = self.place;
        if let Some((server, checked)) = &mut self.watched {
            // What was lost before this answer says nothing about it.
            *checked = server.mark();
            let current = server.check(place);
            current.map_err(|error| LinkError::Lost(error.to_string()))?;
        }
        Ok(())
    }

    fn lost(&self, reason: String) -> LinkError {
        if let Some((server, _)) = &self.watched {
            server.suspect_all();
        }
        LinkError::Lost(reason)
    }

    /// Sets the longest wait for the answer to one message, and returns the one before.
    pub(crate) fn set_limit(&mut self, limit: Duration) -> Duration {
        mem::replace(&mut self.limit, limit)
    }

    /// False after an answer was given up, and if the store has left the server.
    pub(super) fn is_usable(&self) -> bool {
        let is_current = |(server, _): &(Arc<ServerState>, u64)| server.check(self.place).is_ok();
        !self.is_waiting && self.watched.as_ref().is_none_or(is_current)
    }

    /// Parts for a caller that drives the connection apart and reports its loss, with the mark of its last check.
    pub(super) fn split(self) -> (Arc<Client>, Connection<Socket, Stream>, u64) {
        let mark = self.watched.map_or(0, |(_, mark)| mark);
        (self.client, self.connection, mark)
    }

    /// Sends statements without waiting between them, and returns the rows of each. None is sent after one that cannot be
    /// encoded; after one that fails the server carries out none, if all are in one transaction.
    pub(crate) async fn send(
        &mut self,
        statements: &[&Statement<'_>],
    ) -> Result<Vec<Vec<Row>>, LinkError> {
        let client = Arc::clone(&self.client);
        let mut waiting = Vec::with_capacity(statements.len());
        waiting.extend(statements.iter().map(|one| Box::pin(one.rows(&client))));
        let mut answers = Vec::new();
        answers.resize_with(waiting.len(), || None);
        let mut is_sent = false;
        let answered = poll_fn(|cx| {
            for (answer, statement) in answers.iter_mut().zip(&mut waiting) {
                if answer.is_none()
                    && let Poll::Ready(ready) = statement.as_mut().poll(cx)
                {
                    match ready {
                        Err(error) if !is_sent => return Poll::Ready(Err(error)),
                        ready => *answer = Some(ready),
                    }
                }
            }
            is_sent = true;
            match answers.iter().all(Option::is_some) {
                true => Poll::Ready(answers.drain(..).flatten().collect()),
                false => Poll::Pending,
            }
        });
        let sent = self.drive(answered).await?;
        if let Err(error) = &sent
            && error.code().is_some_and(is_of_store)
        {
            let copies = statements.iter().map(|statement| statement.to_static());
            self.refused = Some(copies.collect());
        }
        Ok(sent?)
    }

    /// Takes the statements that the store has failed to carry out last.
    pub(super) fn take_refused(&mut self) -> Option<Vec<Statement<'static>>> {
        self.refused.take()
    }

    /// Carries out a script in one message.
    pub(crate) async fn run(&mut self, script: &str) -> Result<(), LinkError> {
        let client = Arc::clone(&self.client);
        Ok(self.drive(client.batch_execute(script)).await??)
    }

    /// Returns once a connection on which nothing is sent has ended, or is to be checked.
    pub(super) async fn idle(&mut self) -> Idle {
        let watched = self.watched.clone();
        let suspected = async {
            match &watched {
                Some((server, mark)) => server.suspected(*mark).await,
                None => pending().await,
            }
        };
        let mut suspected = pin!(suspected);
        poll_fn(|cx| {
            if let Poll::Ready(error) = self.poll_connection(cx) {
                return Poll::Ready(Idle::Ended(error));
            }
            suspected.as_mut().poll(cx).map(|()| Idle::Suspected)
        })
        .await
    }

    /// Drives the connection until `work` is done, up to the limit. After an answer that was not waited for, it is not
    /// used again: what comes next would be that answer.
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> Result<T, LinkError> {
        if mem::replace(&mut self.is_waiting, true) {
            return Err(LinkError::Lost("an answer was given up".to_owned()));
        }
        let limit = self.limit;
        let mut work = pin!(work);
        let driven = poll_fn(|cx| {
            loop {
                // The work first, so that the connection finds all that it sends.
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                match self.poll_message(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        let Ok(driven) = timeout(limit, driven).await else {
            return Err(self.lost(format!("no answer within {limit:?}")));
        };
        let done = driven?;
        self.is_waiting = false;
        Ok(done)
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<LinkError> {
        loop {
            if let Err(error) = ready!(self.poll_message(cx)) {
                return Poll::Ready(error);
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        match ready!(self.connection.poll_message(cx)) {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                self.has_warned |= notice.parsed_severity() == Some(Severity::Warning);
                tracing::debug!(notice = notice.message(), "notice of the database");
                Poll::Ready(Ok(()))
            }
            Some(Ok(_)) => Poll::Ready(Ok(())),
            Some(Err(error)) => Poll::Ready(Err(self.lost(explain(&error)))),
            None => Poll::Ready(Err(self.lost("it was closed".to_owned()))),
        }
    }
}

/// One line about an error: the message of the server, or all causes.
pub(crate) fn explain(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => db.message().to_owned(),
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
