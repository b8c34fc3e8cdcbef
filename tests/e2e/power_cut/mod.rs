//! Power cuts: a bridge works while everything it does to the files of its store is recorded. Files that a power cut
//! could have left at any moment are then made from the records, and each such state is opened and compared with what
//! clients had observed before the cut. `FORGE_POWER_CUT_STATES` sets the number of states for each scenario,
//! `FORGE_POWER_CUT_SEED` the seed of the random choices.

mod disk;
mod load;
mod recording;
mod verdict;
mod witness;

use std::fs;
use std::path::Path;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use disk::{Disk, Mode};
use load::Site;
use recording::{Files, Operation, Record};
use verdict::{Tally, Verdict};
use witness::Observation;

/// States for each scenario of a short run.
const STATES: u64 = 36;
/// Every such state is checked as a whole, which reads all of its file.
const THOROUGH: usize = 10;
/// Broken promises that a failure shows.
const SHOWN: usize = 10;

/// A cut after this number of records.
type Cut = usize;

#[tokio::test]
async fn a_first_start_can_be_cut_anywhere() {
    let mut site = Site::new().await;
    load::first_start(&mut site).await;
    Trial::of("first start", &site).await.assert_clean();
}

#[tokio::test]
async fn one_dispatch_after_another_survives() {
    let mut site = Site::new().await;
    load::one_in_flight(&mut site).await;
    Trial::of("one in flight", &site).await.assert_clean();
}

#[tokio::test]
async fn a_crowd_survives() {
    let mut site = Site::new().await;
    load::crowd(&mut site).await;
    Trial::of("crowd", &site).await.assert_clean();
}

#[tokio::test]
async fn checkpoints_under_load_can_be_cut_anywhere() {
    let mut site = Site::new().await;
    load::checkpoints(&mut site).await;
    Trial::of("checkpoints", &site).await.assert_clean();
}

#[tokio::test]
async fn mixed_work_survives() {
    let mut site = Site::new().await;
    load::mixed(&mut site).await;
    Trial::of("mixed work", &site).await.assert_clean();
}

#[tokio::test]
async fn starts_that_recover_can_be_cut_anywhere() {
    let mut site = Site::new().await;
    load::recovery(&mut site).await;
    Trial::of("recovery", &site).await.assert_clean();
}

#[tokio::test]
async fn starts_after_a_power_cut_can_be_cut_again() {
    let mut site = Site::new().await;
    let mut random = StdRng::seed_from_u64(site.seed);
    load::repeated_cuts(&mut site, &mut random).await;
    Trial::of("repeated cuts", &site).await.assert_clean();
}

/// Shows that the replay finds a missing sync of each kind: something is lost, or, if pages of the database are missing
/// below a WAL that is there, the store is damaged.
#[tokio::test]
async fn without_syncs_promises_are_broken() {
    let mut site = Site::new().await;
    load::mixed(&mut site).await;
    for (control, name) in [
        ("no WAL syncs", "bridge.db-wal"),
        ("no database syncs", "bridge.db"),
        ("no folder syncs", disk::FOLDER),
    ] {
        let disk = Disk::ignoring_syncs_of(name);
        let Trial { tally, .. } = Trial::with(control, &site, disk, STATES).await;
        assert!(tally.lost + tally.refused > 0, "{control}: {tally}");
    }
}

/// Cuts of one scenario.
#[derive(Default)]
struct Trial {
    tally: Tally,
    /// One line for each broken promise.
    broken: Vec<String>,
    /// Files of the first state that breaks one.
    first: Option<Files>,
}

impl Trial {
    async fn of(scenario: &str, site: &Site) -> Self {
        let states = number("FORGE_POWER_CUT_STATES").unwrap_or(STATES);
        Self::with(scenario, site, Disk::default(), states).await
    }

    /// Replays the records on this disk and cuts the power at random moments.
    #[expect(clippy::print_stdout, reason = "the numbers of a run are its result")]
    async fn with(scenario: &str, site: &Site, disk: Disk<'static>, states: u64) -> Self {
        let begun = Instant::now();
        site.witness.recorder.assert_complete();
        let seed = site.seed;
        let mut random = StdRng::seed_from_u64(seed);
        let log = site.witness.recorder.read();
        let records = recording::parse(&log);
        let seen = site.witness.observations();
        let (mut disk, mut replayed) = (disk, 0);
        let mut trial = Self::default();
        let first = records.partition_point(|record| record.end <= site.begin);
        let cuts = cuts(&records, first, states, &mut random);
        for (number, (cut, mode)) in cuts.into_iter().enumerate() {
            for record in &records[replayed..cut] {
                disk.replay(record.operation);
            }
            replayed = cut;
            let files = disk.cut(mode, &mut random);
            let length = cut.checked_sub(1).map_or(0, |last| records[last].end);
            let folder = write(&files);
            let seen = before(&seen, length);
            let verdict = Verdict::of(folder.path(), seen, number % THOROUGH == 0).await;
            trial.tally.add(&verdict.tally);
            if !verdict.broken.is_empty() {
                trial.first.get_or_insert(files);
                let place = format!("{scenario}, seed {seed}, cut {cut} ({mode})");
                let lines = verdict.broken.iter().take(SHOWN);
                let lines = lines.map(|what| format!("{place}: {what}"));
                trial.broken.extend(lines);
            }
        }
        println!(
            "power cuts, {scenario}: {} in {:.1} s ({}, seed {seed})",
            trial.tally,
            begun.elapsed().as_secs_f64(),
            recording::summary(&records),
        );
        trial
    }

    /// Fails the test if a promise is broken, and keeps the first state that breaks one.
    fn assert_clean(self) {
        let Self {
            tally,
            broken,
            first,
        } = self;
        if let Some(files) = first {
            let folder = write(&files).keep();
            let lines = broken[..SHOWN.min(broken.len())].join("\n");
            panic!(
                "{tally}\n{lines}\nthe first state is in {}",
                folder.display()
            );
        }
    }
}

/// The seed of all random choices.
fn seed() -> u64 {
    number("FORGE_POWER_CUT_SEED").unwrap_or_else(rand::random)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap())
}

/// Cuts in order, with a mode each: anywhere behind the first records, around syncs, and at the end.
fn cuts(records: &[Record<'_>], first: Cut, states: u64, random: &mut StdRng) -> Vec<(Cut, Mode)> {
    let is_sync = |operation| {
        matches!(
            operation,
            Operation::SyncBegin { .. } | Operation::SyncEnd { .. }
        )
    };
    let syncs: Vec<Cut> = (first..records.len())
        .filter(|at| is_sync(records[*at].operation))
        .collect();
    let mut cuts: Vec<(Cut, Mode)> = (0..usize::try_from(states).unwrap())
        .map(|number| {
            let cut = match number / Mode::ALL.len() % 3 {
                _ if number < Mode::ALL.len() => records.len(),
                0 => syncs[random.random_range(0..syncs.len())] + 1,
                _ => random.random_range(first..=records.len()),
            };
            (cut, Mode::ALL[number % Mode::ALL.len()])
        })
        .collect();
    cuts.sort_by_key(|(cut, _)| *cut);
    cuts
}

/// Observations that were made before the log had this length.
fn before(seen: &[Observation], log_length: u64) -> &[Observation] {
    let end = seen.partition_point(|observation| observation.log_length <= log_length);
    &seen[..end]
}

/// The files in a folder of their own, in memory if the system has a place for that.
fn write(files: &Files) -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    };
    let folder = tempfile::Builder::new()
        .prefix("power-cut-")
        .tempdir_in(folder)
        .unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}
