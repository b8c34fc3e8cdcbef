//! Trouble with the store under load, on a relay and on a disk: a bridge says that it cannot work, the others work, and
//! each dispatch that was answered with 202 ends once. The short form takes about a minute; `FORGE_TROUBLE_SECONDS` plays all
//! rows, each for this time, and `FORGE_TROUBLE` those whose name begins with it.

mod load;
mod relay;
mod row;
mod stage;

use std::time::Duration;

use relay::Network;
use row::Row;
use stage::{Stage, Trouble};

/// Time that each trouble of the short form lasts, at least.
const SHORT: Duration = Duration::from_secs(4);

const OF_NETWORK: [Trouble; 7] = [
    Trouble::Network(Network::Mute),
    Trouble::Network(Network::Unheard),
    Trouble::Network(Network::Unsaid),
    Trouble::Network(Network::Delayed),
    Trouble::CutInCommit,
    Trouble::HalfOpen,
    Trouble::SilentWriter,
];
const OF_SERVER: [Trouble; 6] = [
    Trouble::FrozenServer,
    Trouble::Restart,
    Trouble::Promotion,
    Trouble::FullServer,
    Trouble::FullTablespace,
    Trouble::FormerPrimary,
];
/// Troubles of the short form: a disk that is full says more than the error of one.
const SHORT_OF_SERVER: [Trouble; 5] = [
    Trouble::FrozenServer,
    Trouble::Restart,
    Trouble::Promotion,
    Trouble::FullTablespace,
    Trouble::FormerPrimary,
];
const OF_DISK: [Trouble; 3] = [Trouble::SlowSync, Trouble::HungSync, Trouble::FullDisk];

/// Time that each trouble of the long form lasts, if that is asked for.
fn seconds() -> Option<Duration> {
    let text = std::env::var("FORGE_TROUBLE_SECONDS").ok()?;
    Some(Duration::from_secs(text.parse().unwrap()))
}

/// Troubles whose name begins with `FORGE_TROUBLE`; without it, all of them.
fn selected(troubles: &[Trouble]) -> Vec<Trouble> {
    let begin = std::env::var("FORGE_TROUBLE").unwrap_or_default();
    let is_selected = |trouble: &&Trouble| format!("{trouble:?}").starts_with(&begin);
    troubles.iter().filter(is_selected).copied().collect()
}

/// Plays troubles, one after the other, and fails with all bounds that were not kept.
#[expect(clippy::print_stdout, reason = "the figures of a run are its result")]
async fn play(stage: impl Future<Output = Stage>, troubles: &[Trouble]) {
    let troubles = selected(troubles);
    if troubles.is_empty() {
        return;
    }
    let (stage, mut faults) = (stage.await, Vec::new());
    for trouble in troubles {
        if !stage.can_play(trouble) {
            println!("{trouble:?} is not played: a disk cannot be mounted here");
            continue;
        }
        let row = Row::play(&stage, trouble, seconds().unwrap_or(SHORT)).await;
        println!("{row}");
        faults.extend(row.faults());
    }
    assert!(faults.is_empty(), "{}\n{}", faults.join("\n"), stage.log());
}

/// Plays the troubles of the short form, or all of the long one.
async fn play_on_database(bridges: usize, short: &[Trouble]) {
    let all = [&OF_NETWORK[..], &OF_SERVER[..]].concat();
    let troubles = if seconds().is_some() { &all } else { short };
    play(Stage::on_database(bridges), troubles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_on_a_disk_in_trouble() {
    play(Stage::on_disk(), &OF_DISK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bridge_on_a_server_in_trouble() {
    play_on_database(1, &SHORT_OF_SERVER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_on_a_server_in_trouble() {
    play_on_database(2, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_bridges_on_a_server_in_trouble() {
    play_on_database(3, &OF_NETWORK).await;
}
