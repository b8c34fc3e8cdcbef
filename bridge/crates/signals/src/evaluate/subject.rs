//! A record, and the values of the scopes that it counts for.

use forge_store::record::{SignalRecord, SignalSession, SignalSource, SignalTotals};

use super::Teams;
use crate::rule::Scope;

/// Record with what is known of its session.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub source: SignalSource,
    pub adapter: &'a str,
    pub session_id: &'a str,
    /// Totals of the session before the record.
    pub former: SignalTotals,
    pub record: &'a SignalRecord,
}

impl<'a> Subject<'a> {
    pub fn new(session: &'a SignalSession, record: &'a SignalRecord) -> Self {
        Self {
            source: session.source,
            adapter: &session.adapter,
            session_id: &session.id,
            former: session.totals,
            record,
        }
    }

    /// Values of a scope that the record counts for.
    pub(super) fn values<'t>(&self, scope: Scope, teams: &'t Teams) -> Vec<&'t str>
    where
        'a: 't,
    {
        let origin = Origin {
            user: self.record.user_id.as_deref(),
            project: self.record.project_id.as_deref(),
            session: self.session_id,
        };
        origin.values(scope, teams)
    }
}

/// User, project and session of a record, by which it counts for the values of scopes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) project: Option<&'a str>,
    pub(super) session: &'a str,
}

impl<'a> Origin<'a> {
    /// Values of a scope that the record counts for.
    pub(super) fn values<'t>(self, scope: Scope, teams: &'t Teams) -> Vec<&'t str>
    where
        'a: 't,
    {
        match scope {
            Scope::Org => vec![""],
            Scope::Team => {
                let teams = self.user.and_then(|user| teams.get(user));
                teams.into_iter().flatten().map(String::as_str).collect()
            }
            Scope::Project => self.project.into_iter().collect(),
            Scope::User => self.user.into_iter().collect(),
            Scope::Session => vec![self.session],
        }
    }
}
