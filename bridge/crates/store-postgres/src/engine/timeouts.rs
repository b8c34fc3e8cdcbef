//! Longest waits for the answer to one message. A connection on which one has passed is dropped, because its answer can
//! still come.

use std::time::Duration;

/// Start of a bridge, and its questions before.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// A read, from the wait for a connection to its last row.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A read without an answer, after which it is asked on another connection, too.
pub(crate) const READ_RETRY: Duration = Duration::from_secs(2);
/// Work on all rows of a table, such as building an index or comparing a copy, and the wait for another node that does it.
pub(crate) const TABLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Creating or removing a database, for which the server writes a checkpoint.
pub(crate) const DATABASE_TIMEOUT: Duration = Duration::from_secs(120);

/// The end of the connections at a close: giving the lease back, and reads under way.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(4);

const LONGEST_WRITE: Duration = Duration::from_secs(10);
const LONGEST_CHECK: Duration = Duration::from_secs(2);
const SHORTEST_POLL: Duration = Duration::from_secs(1);

/// A message of the writer: while it waits, the lease has the other two thirds left.
pub(crate) fn write_timeout(lease: Option<Duration>) -> Duration {
    lease.map_or(LONGEST_WRITE, |lease| (lease / 3).min(LONGEST_WRITE))
}

/// The check of an idle connection after another one was lost: none is a message of a batch.
pub(crate) fn check_timeout(lease: Option<Duration>) -> Duration {
    write_timeout(lease).min(LONGEST_CHECK)
}

/// A poll or renewal: after one, another connection can renew the lease before the node gives it up.
pub(crate) fn poll_timeout(lease: Duration) -> Duration {
    (lease / 6).max(SHORTEST_POLL)
}
