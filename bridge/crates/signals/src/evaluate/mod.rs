//! Evaluation: a record is added to the windows of its scopes, and the most restrictive rule that holds then decides.

mod condition;
pub mod report;
mod subject;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use forge_store::record::{Intervention, OtherSignal, SignalGroup, SignalTotals};

use self::subject::Origin;
pub use self::subject::Subject;
use self::windows::Windows;
pub use self::windows::{Key, Stored};
use crate::rule::{Action, Entry, Rule, Rules, Scope};
use crate::window::Span;

/// Teams of each user.
pub type Teams = BTreeMap<String, Vec<String>>;

/// Teams of each user, from the users of each team.
pub fn teams_of_users<'a>(users: impl IntoIterator<Item = (&'a String, &'a Vec<String>)>) -> Teams {
    let mut teams = Teams::new();
    for (team, users) in users {
        for user in users {
            let own = teams.entry(user.clone()).or_default();
            if !own.contains(team) {
                own.push(team.clone());
            }
        }
    }
    teams
}

/// Values per rule for which it is remembered that the rule holds.
const MOST_HELD: usize = 65_536;

/// Rules with the windows that they look at.
#[derive(Debug)]
pub struct Evaluator {
    rules: Vec<Arc<Rule>>,
    entries: Vec<Entry>,
    teams: Teams,
    windows: Windows,
    /// For each rule the values that it holds for.
    held: Vec<HashMap<String, Holding>>,
    /// Increases with each change of the rules.
    generation: u64,
}

/// Rule that holds for a value.
#[derive(Clone, Debug)]
struct Holding {
    /// Period in which it began to hold.
    period: i64,
    since: Timestamp,
    /// `None` for a rule that allows.
    intervention: Option<Intervention>,
}

/// Judgement of one record.
#[derive(Debug)]
pub struct Verdict {
    /// The rule that decides; `None` if none holds.
    pub decided: Option<Held>,
    /// Rules that hold since this record, in the order of the file.
    pub begun: Vec<Held>,
    /// Ids of the interventions whose rule no longer holds.
    pub ended: Vec<String>,
    /// Effect on the evaluator.
    pub change: Change,
}

/// Rule that holds for one value of its scope.
#[derive(Clone, Debug)]
pub struct Held {
    pub rule: Arc<Rule>,
    pub scope_value: String,
    pub intervention: Option<Intervention>,
}

/// Effect of a judgement on the evaluator, which can be taken back.
#[derive(Debug)]
pub struct Change {
    generation: u64,
    at: Timestamp,
    amounts: SignalTotals,
    reached: Vec<Key>,
    /// Former holdings, by the index of the rule and the value.
    held: Vec<(usize, String, Option<Holding>)>,
}

impl Verdict {
    pub fn is_blocked(&self) -> bool {
        let decided = self.decided.as_ref();
        decided.is_some_and(|held| held.rule.action == Action::Block)
    }
}

impl Evaluator {
    pub fn new(file: Rules, teams: Teams) -> Self {
        let rules: Vec<_> = file.rules.into_iter().map(Arc::new).collect();
        Self {
            windows: Windows::new(&rules),
            held: rules.iter().map(|_| HashMap::new()).collect(),
            generation: 0,
            entries: file.entries,
            rules,
            teams,
        }
    }

    /// Replaces the rules. Windows are kept if the same ones are needed, and what a rule holds for if its id and action
    /// are the same.
    pub fn replace(&mut self, rules: Rules, teams: Teams) {
        let former = std::mem::replace(self, Self::new(rules, teams));
        self.generation = former.generation + 1;
        if self.teams == former.teams {
            self.windows.adopt(former.windows);
        }
        for (rule, held) in former.rules.iter().zip(former.held) {
            if let Some(index) = self.index(&rule.id, rule.action) {
                self.held[index] = held;
            }
        }
    }

    /// Restores the interventions that are open.
    pub fn restore(&mut self, open: Vec<Intervention>) {
        for intervention in open {
            let action = match intervention.blocks {
                true => Action::Block,
                false => Action::Notify,
            };
            if let Some(index) = self.index(&intervention.rule_id, action) {
                let holding = Holding {
                    period: intervention.period,
                    since: intervention.at,
                    intervention: Some(intervention.clone()),
                };
                self.held[index].insert(intervention.scope_value, holding);
            }
        }
    }

    fn index(&self, id: &str, action: Action) -> Option<usize> {
        let mut rules = self.rules.iter();
        rules.position(|rule| rule.id == id && rule.action == action)
    }

    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Values that a record counts for and that are not counted yet. Rules over them do not judge it.
    pub fn missing(&self, subject: &Subject<'_>) -> Vec<Key> {
        self.windows.missing(subject, &self.teams)
    }

    /// True if values that the rule looks at are being counted.
    pub fn is_counting(&self, rule: &Rule) -> bool {
        rule.window != Span::Session && self.windows.is_counting(rule.scope)
    }

    /// Stored records of a value, and the earliest time that counts.
    pub fn stored(&self, key: &Key, at: Timestamp) -> (SignalGroup, Timestamp) {
        self.windows.stored(key, &self.teams, at)
    }

    /// Begins to count a value: `complete` takes the stored records up to now. A count of the value that has begun before
    /// has no effect any more.
    pub fn begin(&mut self, key: &Key, count: u64) {
        self.windows.begin(key, count);
    }

    /// Ends a count.
    pub fn complete(&mut self, key: &Key, count: u64, stored: &Stored) {
        self.windows.complete(key, count, stored, &self.teams);
    }

    /// Adds records of other bridges to the totals. They judge nothing.
    pub fn add_others(&mut self, others: &[OtherSignal]) {
        for other in others {
            self.windows.add_other(&self.teams, other);
        }
    }

    /// Ends a count that failed.
    pub fn abandon(&mut self, key: &Key, count: u64) {
        self.windows.abandon(key, count);
    }

    /// Values of a rule's scope that are counted, with the totals of its window.
    pub fn totals(&self, rule: &Rule, at: Timestamp) -> Vec<(&str, SignalTotals)> {
        self.windows.totals(rule.scope, rule.window, at)
    }

    /// Adds a record that arrived at `at`, and judges it. The record is in the totals.
    pub fn judge(&mut self, subject: &Subject<'_>, at: Timestamp) -> Verdict {
        let amounts = SignalTotals::of(subject.record);
        let reached = self.windows.reached(subject, &self.teams);
        let sums = self.windows.add(subject, &self.teams, at, &amounts);
        let mut of_session = subject.former;
        of_session.add_all(&amounts);
        let mut verdict = Verdict {
            decided: None,
            begun: Vec::new(),
            ended: Vec::new(),
            change: Change {
                generation: self.generation,
                at,
                amounts,
                reached,
                held: Vec::new(),
            },
        };
        let values = Scope::ALL.map(|scope| subject.values(scope, &self.teams));
        for (index, rule) in self.rules.iter().enumerate() {
            for &value in &values[rule.scope as usize] {
                // A session's totals are separate for each session, whatever the scope.
                let (totals, value) = match rule.window {
                    Span::Session => (Some(&of_session), subject.session_id),
                    span => (windows::find(&sums, rule.scope, value, span), value),
                };
                let Some(totals) = totals else {
                    continue;
                };
                let holds = rule.tests.iter().all(|test| test.holds(subject, totals));
                let held = &mut self.held[index];
                if holds {
                    verdict.hold(index, rule, value, subject, held);
                } else if rule.window.is_rolling() && held.contains_key(value) {
                    verdict.release(index, value, held);
                }
            }
        }
        verdict
    }

    /// True if a record counts for this value of a scope.
    pub fn concerns(&self, subject: &Subject<'_>, scope: Scope, value: &str) -> bool {
        subject.values(scope, &self.teams).contains(&value)
    }

    /// Rule that blocks an execution which may still cost `own` micro-dollars, besides the cost that is reserved for
    /// others with the same value.
    pub fn refuses(
        &self,
        subject: &Subject<'_>,
        at: Timestamp,
        own: u64,
        reserved: impl Fn(Scope, &str) -> u64,
    ) -> Option<&Arc<Rule>> {
        let blocks = self
            .rules
            .iter()
            .filter(|rule| rule.action == Action::Block);
        let mut blocks = blocks.filter(|rule| {
            let values = subject.values(rule.scope, &self.teams).into_iter();
            let mut totals = values.filter_map(|value| {
                let mut totals = match rule.window {
                    Span::Session => subject.former,
                    span => self.windows.total(rule.scope, value, span, at)?,
                };
                totals.cost_micros = totals
                    .cost_micros
                    .saturating_add(reserved(rule.scope, value));
                Some(totals)
            });
            let refuses = |totals: &SignalTotals| {
                let mut tests = rule.tests.iter();
                tests.all(|test| test.holds_with(subject, totals, own))
            };
            totals.any(|totals| refuses(&totals))
        });
        blocks.next()
    }

    /// Takes back a judgement.
    pub fn take_back(&mut self, change: Change) {
        let Change { at, amounts, .. } = change;
        self.windows.subtract(&change.reached, at, &amounts);
        if change.generation != self.generation {
            return;
        }
        for (index, value, former) in change.held.into_iter().rev() {
            match former {
                Some(holding) => self.held[index].insert(value, holding),
                None => self.held[index].remove(&value),
            };
        }
    }
}

impl Verdict {
    /// Notes that a rule holds for a value.
    fn hold(
        &mut self,
        index: usize,
        rule: &Arc<Rule>,
        value: &str,
        subject: &Subject<'_>,
        held: &mut HashMap<String, Holding>,
    ) {
        let at = self.change.at;
        let period = rule.window.period(at);
        let former = held.get(value).filter(|former| former.period == period);
        let intervention = match former {
            Some(former) => former.intervention.clone(),
            None => rule.intervention(value, subject, period, at),
        };
        let now = Held {
            rule: Arc::clone(rule),
            scope_value: value.to_owned(),
            intervention,
        };
        if former.is_none() {
            if held.len() >= MOST_HELD {
                forget_old(held);
            }
            let holding = Holding {
                period,
                since: at,
                intervention: now.intervention.clone(),
            };
            let former = held.insert(value.to_owned(), holding);
            self.change.held.push((index, value.to_owned(), former));
            self.begun.push(now.clone());
        }
        let decided = self.decided.as_ref();
        if decided.is_none_or(|other| rule.action > other.rule.action) {
            self.decided = Some(now);
        }
    }

    /// Notes that a rule no longer holds for a value.
    fn release(&mut self, index: usize, value: &str, held: &mut HashMap<String, Holding>) {
        if let Some(former) = held.remove(value) {
            let intervention = former.intervention.as_ref();
            self.ended.extend(intervention.map(|one| one.id.clone()));
            self.change
                .held
                .push((index, value.to_owned(), Some(former)));
        }
    }
}

impl Rule {
    fn intervention(
        &self,
        value: &str,
        subject: &Subject<'_>,
        period: i64,
        at: Timestamp,
    ) -> Option<Intervention> {
        (self.action != Action::Allow).then(|| Intervention {
            id: format!("int_{}", Uuid::now_v7().simple()),
            rule_id: self.id.clone(),
            blocks: self.action == Action::Block,
            severity: self.severity,
            message: self.message.clone(),
            scope_value: value.to_owned(),
            period,
            session_id: subject.session_id.to_owned(),
            at,
            is_open: true,
            acknowledged: None,
        })
    }
}

/// Forgets the older half.
fn forget_old(held: &mut HashMap<String, Holding>) {
    let mut times: Vec<_> = held.values().map(|holding| holding.since).collect();
    let half = times.len() / 2;
    let (_, limit, _) = times.select_nth_unstable(half);
    let limit = *limit;
    held.retain(|_, holding| holding.since >= limit);
}
