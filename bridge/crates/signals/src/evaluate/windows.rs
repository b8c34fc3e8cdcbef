//! Windows by scope and value. One that is not in memory is counted from the stored records before it is used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use jiff::Timestamp;

use forge_store::record::{OtherSignal, SignalGroup, SignalTotals};

use super::{Origin, Subject, Teams};
use crate::rule::{Rule, Scope};
use crate::window::{Span, Window};

/// Maximum number of values in memory. An eighth of them, the longest unused, goes when there are more.
const MOST_VALUES: usize = 65_536;

/// Value of a scope, such as one user.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Key {
    pub scope: Scope,
    pub value: String,
}

#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Spans of each scope that some rule looks at. A session's own totals need no window.
    watched: BTreeMap<Scope, BTreeSet<Span>>,
    values: HashMap<Scope, HashMap<String, Counted>>,
    /// Number of records so far.
    clock: u64,
}

#[derive(Debug)]
enum Counted {
    /// The stored records are being read.
    Partly {
        /// Identity of the count.
        count: u64,
        /// Records since its beginning.
        since: Vec<(Timestamp, SignalTotals)>,
        /// Records of other bridges that were learnt of since then, by their positions.
        others: Vec<(u64, Timestamp, SignalTotals)>,
    },
    Wholly {
        windows: Vec<(Span, Window)>,
        /// Position of the last record that was counted.
        last: u64,
        used: u64,
    },
}

/// Stored records that a count has found.
#[derive(Debug, Default)]
pub struct Stored {
    /// Amounts up to the beginning of the count, by their time.
    pub amounts: Vec<(Timestamp, SignalTotals)>,
    /// Records of other bridges after that.
    pub others: Vec<OtherSignal>,
    /// Position of the last one.
    pub last: u64,
}

fn origin_of(other: &OtherSignal) -> Origin<'_> {
    Origin {
        user: other.user_id.as_deref(),
        project: other.project_id.as_deref(),
        session: &other.session,
    }
}

/// Totals of the windows of one value.
pub(super) struct Sums<'a> {
    scope: Scope,
    value: &'a str,
    spans: Vec<(Span, SignalTotals)>,
}

impl Counted {
    fn is_partly(&self, wanted: u64) -> bool {
        matches!(self, Counted::Partly { count, .. } if *count == wanted)
    }
}

impl Windows {
    pub(super) fn new(rules: &[Arc<Rule>]) -> Self {
        let mut watched = BTreeMap::<_, BTreeSet<_>>::new();
        for rule in rules.iter().filter(|rule| rule.window != Span::Session) {
            watched.entry(rule.scope).or_default().insert(rule.window);
        }
        Self {
            watched,
            ..Self::default()
        }
    }

    /// Takes over what was counted if the same spans are watched.
    pub(super) fn adopt(&mut self, former: Windows) {
        if self.watched == former.watched {
            *self = former;
        }
    }

    /// Values that a record counts for and that are not counted yet.
    pub(super) fn missing(&self, subject: &Subject<'_>, teams: &Teams) -> Vec<Key> {
        let mut missing = Vec::new();
        for scope in self.watched.keys() {
            for value in subject.values(*scope, teams) {
                if !matches!(self.get(*scope, value), Some(Counted::Wholly { .. })) {
                    missing.push(Key {
                        scope: *scope,
                        value: value.to_owned(),
                    });
                }
            }
        }
        missing
    }

    /// True if some value of the scope is being counted.
    pub(super) fn is_counting(&self, scope: Scope) -> bool {
        let values = self.values.get(&scope).into_iter().flatten();
        values
            .map(|(_, counted)| counted)
            .any(|counted| matches!(counted, Counted::Partly { .. }))
    }

    /// Records of a value, and the earliest time that one of its spans reaches back to.
    pub(super) fn stored(
        &self,
        key: &Key,
        teams: &Teams,
        at: Timestamp,
    ) -> (SignalGroup, Timestamp) {
        let value = key.value.clone();
        let group = match key.scope {
            Scope::Org => SignalGroup::All,
            Scope::Project => SignalGroup::Project(value),
            Scope::User => SignalGroup::Users(vec![value]),
            Scope::Session => SignalGroup::Session(value),
            Scope::Team => {
                let members = teams.iter().filter(|(_, teams)| teams.contains(&value));
                SignalGroup::Users(members.map(|(user, _)| user.clone()).collect())
            }
        };
        let spans = self.watched.get(&key.scope).into_iter().flatten();
        (group, spans.map(|span| span.since(at)).min().unwrap_or(at))
    }

    /// From now on records are kept for the value, which is about to be counted.
    pub(super) fn begin(&mut self, key: &Key, count: u64) {
        let values = self.values.entry(key.scope).or_default();
        let partly = Counted::Partly {
            count,
            since: Vec::new(),
            others: Vec::new(),
        };
        values.insert(key.value.clone(), partly);
    }

    /// Ends a count without a result.
    pub(super) fn abandon(&mut self, key: &Key, count: u64) {
        if let Some(values) = self.values.get_mut(&key.scope)
            && values
                .get(&key.value)
                .is_some_and(|counted| counted.is_partly(count))
        {
            values.remove(&key.value);
        }
    }

    /// Ends a count.
    pub(super) fn complete(&mut self, key: &Key, count: u64, stored: &Stored, teams: &Teams) {
        let Some(spans) = self.watched.get(&key.scope) else {
            return;
        };
        let Some(values) = self.values.get_mut(&key.scope) else {
            return;
        };
        let partly = values
            .get_mut(&key.value)
            .filter(|counted| counted.is_partly(count));
        let Some(Counted::Partly { since, others, .. }) = partly else {
            return;
        };
        let (since, others) = (mem::take(since), mem::take(others));
        let last = stored.last;
        let learnt = others.iter().filter(|(position, ..)| *position > last);
        let learnt = learnt.map(|(_, at, amounts)| (at, amounts));
        let own = since.iter().map(|(at, amounts)| (at, amounts));
        let missed = stored.others.iter().filter(|other| {
            let values = origin_of(other).values(key.scope, teams);
            values.contains(&key.value.as_str())
        });
        let missed = missed.map(|other| (&other.at, &other.amounts));
        let counted = stored.amounts.iter().map(|(at, amounts)| (at, amounts));
        let all: Vec<_> = counted.chain(missed).chain(learnt).chain(own).collect();
        let windows = spans.iter().map(|span| {
            let mut window = Window::new(*span);
            for (at, amounts) in &all {
                window.add(**at, amounts);
            }
            (*span, window)
        });
        let windows = windows.collect();
        let used = self.clock;
        values.insert(
            key.value.clone(),
            Counted::Wholly {
                windows,
                last,
                used,
            },
        );
        if self.values.values().map(HashMap::len).sum::<usize>() > MOST_VALUES {
            self.forget_unused();
        }
    }

    fn forget_unused(&mut self) {
        let used = |counted: &Counted| match counted {
            Counted::Partly { .. } => None,
            Counted::Wholly { used, .. } => Some(*used),
        };
        let all = self.values.values().flat_map(HashMap::values);
        let mut times: Vec<u64> = all.filter_map(used).collect();
        let eighth = times.len() / 8;
        if times.is_empty() {
            return;
        }
        let (_, limit, _) = times.select_nth_unstable(eighth);
        let limit = *limit;
        for values in self.values.values_mut() {
            values.retain(|_, counted| used(counted).is_none_or(|used| used >= limit));
        }
    }

    /// Adds a record to the windows of its values, and returns their totals.
    pub(super) fn add<'a>(
        &mut self,
        subject: &Subject<'a>,
        teams: &'a Teams,
        at: Timestamp,
        amounts: &SignalTotals,
    ) -> Vec<Sums<'a>> {
        self.clock += 1;
        let mut sums = Vec::new();
        for scope in self.watched.keys() {
            for value in subject.values(*scope, teams) {
                let values = self.values.get_mut(scope);
                match values.and_then(|values| values.get_mut(value)) {
                    None => {}
                    Some(Counted::Partly { since, .. }) => since.push((at, *amounts)),
                    Some(Counted::Wholly { windows, used, .. }) => {
                        *used = self.clock;
                        let spans = windows.iter_mut().map(|(span, window)| {
                            window.add(at, amounts);
                            (*span, window.totals(at))
                        });
                        sums.push(Sums {
                            scope: *scope,
                            value,
                            spans: spans.collect(),
                        });
                    }
                }
            }
        }
        sums
    }

    /// Adds a record of another bridge, unless it was counted.
    pub(super) fn add_other(&mut self, teams: &Teams, other: &OtherSignal) {
        let OtherSignal {
            position,
            at,
            amounts,
            ..
        } = other;
        for scope in self.watched.keys() {
            for value in origin_of(other).values(*scope, teams) {
                let values = self.values.get_mut(scope);
                match values.and_then(|values| values.get_mut(value)) {
                    None => {}
                    Some(Counted::Partly { others, .. }) => {
                        others.push((*position, *at, *amounts));
                    }
                    Some(Counted::Wholly { windows, last, .. }) if position > last => {
                        for (_, window) in windows {
                            window.add(*at, amounts);
                        }
                    }
                    Some(Counted::Wholly { .. }) => {}
                }
            }
        }
    }

    /// Takes back a record that was added.
    pub(super) fn subtract(&mut self, keys: &[Key], at: Timestamp, amounts: &SignalTotals) {
        for key in keys {
            let values = self.values.get_mut(&key.scope);
            match values.and_then(|values| values.get_mut(&key.value)) {
                None => {}
                Some(Counted::Partly { since, .. }) => {
                    if let Some(place) = since.iter().rposition(|one| *one == (at, *amounts)) {
                        since.remove(place);
                    }
                }
                Some(Counted::Wholly { windows, .. }) => {
                    for (_, window) in windows {
                        window.subtract(at, amounts);
                    }
                }
            }
        }
    }

    /// Values whose windows or counts a record reaches.
    pub(super) fn reached(&self, subject: &Subject<'_>, teams: &Teams) -> Vec<Key> {
        let mut reached = Vec::new();
        for scope in self.watched.keys() {
            let values = subject.values(*scope, teams).into_iter();
            let known = values.filter(|value| self.get(*scope, value).is_some());
            reached.extend(known.map(|value| Key {
                scope: *scope,
                value: value.to_owned(),
            }));
        }
        reached
    }

    /// Values of a scope with the totals of one of its spans.
    pub(super) fn totals(
        &self,
        scope: Scope,
        span: Span,
        at: Timestamp,
    ) -> Vec<(&str, SignalTotals)> {
        let values = self.values.get(&scope).into_iter().flatten();
        let counted = values.filter_map(|(value, counted)| match counted {
            Counted::Partly { .. } => None,
            Counted::Wholly { windows, .. } => {
                let mut windows = windows.iter();
                let (_, window) = windows.find(|(other, _)| *other == span)?;
                Some((value.as_str(), window.totals(at)))
            }
        });
        counted.collect()
    }

    /// Totals of the window of one value, if it is counted.
    pub(super) fn total(
        &self,
        scope: Scope,
        value: &str,
        span: Span,
        at: Timestamp,
    ) -> Option<SignalTotals> {
        let Counted::Wholly { windows, .. } = self.get(scope, value)? else {
            return None;
        };
        let mut windows = windows.iter();
        let (_, window) = windows.find(|(other, _)| *other == span)?;
        Some(window.totals(at))
    }

    fn get(&self, scope: Scope, value: &str) -> Option<&Counted> {
        self.values.get(&scope)?.get(value)
    }
}

/// Totals of one window among those of a record.
pub(super) fn find<'s>(
    sums: &'s [Sums<'_>],
    scope: Scope,
    value: &str,
    span: Span,
) -> Option<&'s SignalTotals> {
    let mut of_scope = sums.iter().filter(|sums| sums.scope == scope);
    let own = of_scope.find(|sums| sums.value == value)?;
    let mut spans = own.spans.iter();
    spans
        .find(|(other, _)| *other == span)
        .map(|(_, totals)| totals)
}
