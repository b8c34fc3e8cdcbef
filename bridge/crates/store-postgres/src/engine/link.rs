//! The connection of the writer. It is driven by the task that uses it: everything that the work sends before it waits
//! goes out in one piece.

use std::error::Error as _;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket};

use super::target::Target;
use super::tls::Stream;
use crate::rows::statement::Statement;

pub(crate) struct Link {
    client: Arc<Client>,
    connection: Connection<Socket, Stream>,
    /// The server has warned since this was set to false.
    pub(crate) has_warned: bool,
    /// Life of the server, once `lineage::look` has looked.
    pub(crate) life: Life,
}

/// Identity of a server as long as it gives no number of a transaction a second time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Life {
    pub(crate) timeline: i64,
    /// Start of the server, in microseconds since 1970.
    pub(crate) started: i64,
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
            // A server that has become a standby stays one; the next connection looks for the primary.
            Some(db) => {
                db.parsed_severity() != Some(Severity::Error)
                    || *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION
            }
            None => error.is_closed(),
        };
        match is_lost {
            true => Self::Lost(explain(&error)),
            false => Self::Statement(error),
        }
    }
}

impl Link {
    pub(crate) async fn connect(target: &Target) -> Result<Self, String> {
        let (client, connection) = target.connect().await?;
        Ok(Self {
            client: Arc::new(client),
            connection,
            has_warned: false,
            life: Life::default(),
        })
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
        Ok(self.drive(answered).await??)
    }

    /// Carries out a script in one message.
    pub(crate) async fn run(&mut self, script: &str) -> Result<(), LinkError> {
        let client = Arc::clone(&self.client);
        Ok(self.drive(client.batch_execute(script)).await??)
    }

    /// Returns after the connection has ended.
    pub(crate) async fn ended(&mut self) -> LinkError {
        match self.drive(pending()).await {
            Ok(never) => never,
            Err(error) => error,
        }
    }

    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> Result<T, LinkError> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            loop {
                // The work first, so that the connection finds all that it sends.
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                match self.connection.poll_message(cx) {
                    Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                        self.has_warned |= notice.parsed_severity() == Some(Severity::Warning);
                        tracing::debug!(notice = notice.message(), "notice of the database");
                    }
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Err(LinkError::Lost(explain(&error))));
                    }
                    Poll::Ready(None) => {
                        return Poll::Ready(Err(LinkError::Lost("it was closed".to_owned())));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
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
