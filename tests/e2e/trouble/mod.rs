//! Trouble with the store under load, on a relay and on a disk: a bridge says that it cannot work, the others work, and
//! each dispatch that was answered with 202 ends once. The short form takes about a minute; `FORGE_TROUBLE_SECONDS` plays all
//! rows, each for this time.

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
const OF_SERVER: [Trouble; 4] = [
    Trouble::FrozenServer,
    Trouble::Restart,
    Trouble::Promotion,
    Trouble::FullServer,
];
/// Number of troubles that the short form plays. Of the others, which are of the long form only, half-open connections of two and
/// three bridges do not keep the bounds: readers wait up to 30 s for a server that is lost.
const SHORT_OF_NETWORK: usize = 4;
const SHORT_OF_SERVER: usize = 3;
const OF_DISK: [Trouble; 3] = [Trouble::SlowSync, Trouble::HungSync, Trouble::FullDisk];

/// Time that each trouble of the long form lasts, if that is asked for.
fn seconds() -> Option<Duration> {
    let text = std::env::var("FORGE_TROUBLE_SECONDS").ok()?;
    Some(Duration::from_secs(text.parse().unwrap()))
}

/// Plays troubles, one after the other, and fails with all bounds that were not kept.
async fn play(stage: &Stage, troubles: impl IntoIterator<Item = Trouble>) {
    let mut faults = Vec::new();
    for trouble in troubles {
        let row = Row::play(stage, trouble, seconds().unwrap_or(SHORT)).await;
        #[expect(clippy::print_stdout, reason = "the figures of a run are its result")]
        {
            println!("{row}");
        }
        faults.extend(row.faults());
    }
    assert!(faults.is_empty(), "{}\n{}", faults.join("\n"), stage.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_on_a_disk_in_trouble() {
    play(&Stage::on_disk().await, OF_DISK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bridge_on_a_server_in_trouble() {
    let stage = Stage::on_database(1).await;
    match seconds() {
        Some(_) => play(&stage, OF_NETWORK.into_iter().chain(OF_SERVER)).await,
        None => play(&stage, OF_SERVER[..SHORT_OF_SERVER].iter().copied()).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_bridges_on_a_server_in_trouble() {
    if seconds().is_some() {
        let stage = Stage::on_database(2).await;
        play(&stage, OF_NETWORK.into_iter().chain(OF_SERVER)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_bridges_on_a_server_in_trouble() {
    let stage = Stage::on_database(3).await;
    match seconds() {
        Some(_) => play(&stage, OF_NETWORK.into_iter().chain(OF_SERVER)).await,
        None => play(&stage, OF_NETWORK[..SHORT_OF_NETWORK].iter().copied()).await,
    }
}
