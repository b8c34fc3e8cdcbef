//! The connection of the writer. It is driven by the task that uses it: everything that the work sends before it waits
//! goes out in one piece. *Invariant: no answer is waited for without a limit.*

use std::error::Error as _;
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::probe::is_of_store;
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
        }
    }

    /// Sets the longest wait for the answer to one message, and returns the one before.
    pub(crate) fn set_limit(&mut self, limit: Duration) -> Duration {
        mem::replace(&mut self.limit, limit)
    }

    /// False after an answer was given up.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_waiting
    }

    /// Parts for a caller that drives the connection apart.
    pub(super) fn split(self) -> (Arc<Client>, Connection<Socket, Stream>) {
        (self.client, self.connection)
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

    /// Returns after the connection has ended.
    pub(crate) async fn ended(&mut self) -> LinkError {
        poll_fn(|cx| self.poll_connection(cx)).await
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
        let late = |_| LinkError::Lost(format!("no answer within {limit:?}"));
        let done = timeout(limit, driven).await.map_err(late)??;
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
        let lost = |reason| Poll::Ready(Err(LinkError::Lost(reason)));
        match ready!(self.connection.poll_message(cx)) {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                self.has_warned |= notice.parsed_severity() == Some(Severity::Warning);
                tracing::debug!(notice = notice.message(), "notice of the database");
                Poll::Ready(Ok(()))
            }
            Some(Ok(_)) => Poll::Ready(Ok(())),
            Some(Err(error)) => lost(explain(&error)),
            None => lost("it was closed".to_owned()),
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
