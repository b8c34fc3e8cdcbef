//! One row: a trouble under load, its figures, and the bounds that they must keep.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::load::{Load, Outcome};
use super::stage::{LEASE, Stage, Trouble, says_well, works};
use crate::harness::{Api, until};

/// From the beginning of a trouble until the health of the struck bridge says so.
const SAID: Duration = Duration::from_secs(12);
/// Until another bridge has done what it was asked for.
const DONE_BY_OTHERS: Duration = LEASE.saturating_add(Duration::from_secs(2));
/// From the end of a trouble until all bridges are well and work.
const WELL_AGAIN: Duration = Duration::from_secs(5);
/// After which a bridge that is not well again is not waited for.
const NOT_WELL: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Figures of one trouble.
#[derive(Debug)]
pub(super) struct Row {
    trouble: Trouble,
    bridges: usize,
    said: Option<Duration>,
    /// Longest dispatch of the bridges that were not struck; `None` if there were none.
    others: Option<Duration>,
    well: Option<Duration>,
    outcome: Outcome,
}

impl Row {
    /// Plays a trouble for at least this time, until health says so.
    pub(super) async fn play(stage: &Stage, trouble: Trouble, hold: Duration) -> Self {
        let bridges = stage.bridges();
        let name = uuid::Uuid::now_v7().to_string();
        let load = Load::start(&name, &bridges, &stage.sink);
        until("some of the load", async || {
            (load.accepted() >= 10).then_some(())
        })
        .await;
        stage.strike(trouble).await;
        let (begun, over) = (Instant::now(), CancellationToken::new());
        let watching = async {
            let said = match trouble.is_outage() {
                true => says_so(&bridges[0], begun).await,
                false => None,
            };
            sleep(hold.saturating_sub(begun.elapsed())).await;
            over.cancel();
            said
        };
        let others = match trouble.is_everywhere() {
            true => &[],
            false => &bridges[1..],
        };
        let (said, others) = tokio::join!(watching, longest(others, &over));
        stage.heal(trouble);
        let ended = Instant::now();
        let well = async {
            while !stage.is_well().await {
                sleep(POLL).await;
            }
            ended.elapsed()
        };
        let well = timeout(NOT_WELL, well).await.ok();
        Self {
            trouble,
            bridges: bridges.len(),
            said,
            others,
            well,
            outcome: load.end(&bridges[bridges.len() - 1]).await,
        }
    }

    /// The bounds that were not kept.
    pub(super) fn faults(&self) -> Vec<String> {
        let Row { outcome, .. } = self;
        let late = |time: Option<Duration>, bound| time.is_none_or(|time| time > bound);
        let checks = [
            (
                self.trouble.is_outage() && late(self.said, SAID),
                "health is silent",
            ),
            (
                self.others.is_some_and(|time| time > DONE_BY_OTHERS),
                "others wait",
            ),
            (late(self.well, WELL_AGAIN), "not well again in time"),
            (outcome.slow > 0, "slow answers"),
            (outcome.unanswered > 0, "no answers"),
            (!outcome.lost.is_empty(), "lost"),
            (!outcome.doubled.is_empty(), "doubled"),
        ];
        let kept = checks.into_iter().filter(|(is_fault, _)| *is_fault);
        kept.map(|(_, fault)| format!("{self}: {fault}")).collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64()))
        };
        let name = format!("{:?}", self.trouble);
        let outcome = &self.outcome;
        write!(
            f,
            "{name:18} bridges {} said {:>4} others {:>4} well {:>4} longest {:>4.1} slow {} unanswered {} accepted {} refused {} \
             (done all the same {}) lost {} doubled {}",
            self.bridges,
            seconds(self.said),
            seconds(self.others),
            seconds(self.well),
            outcome.longest.as_secs_f64(),
            outcome.slow,
            outcome.unanswered,
            outcome.accepted,
            outcome.refused,
            outcome.done_after_refusal,
            outcome.lost.len(),
            outcome.doubled.len(),
        )
    }
}

/// Time until the bridge says that it is not well.
async fn says_so(bridge: &Api, begun: Instant) -> Option<Duration> {
    let saying = async {
        while says_well(bridge).await {
            sleep(POLL).await;
        }
        begun.elapsed()
    };
    timeout(SAID + Duration::from_secs(4), saying).await.ok()
}

/// Longest time that one of these bridges needs for a dispatch, until it is over.
async fn longest(bridges: &[Api], over: &CancellationToken) -> Option<Duration> {
    let mut longest = None;
    for bridge in bridges.iter().cycle() {
        if over.is_cancelled() {
            break;
        }
        let begun = Instant::now();
        while works(bridge, DONE_BY_OTHERS).await.is_none() && !over.is_cancelled() {
            sleep(POLL).await;
        }
        longest = longest.max(Some(begun.elapsed()));
        sleep(POLL).await;
    }
    longest
}
