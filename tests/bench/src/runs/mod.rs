//! Runs: the cost of a run against the commands of git and the dispatches that it consists of, the delay of its events
//! against those of a dispatch, reading a run with many events, a start with many ended runs, and joined text.

mod bare;
mod latency;
mod origin;
mod reader;
mod run;
mod start;

use std::path::Path;
use std::time::Duration;

use super::report::{median, say};
use super::target::{Kind, Target};
use origin::Origin;

#[derive(clap::Args)]
pub(crate) struct Plan {
    /// Number of measurements of each figure.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Independent tasks of a run, each writing one file.
    #[arg(long, default_value_t = 200)]
    tasks: usize,
    /// Tasks at once.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Events of the long run that is read.
    #[arg(long, default_value_t = 100_000)]
    events: usize,
    /// Text deltas of one task.
    #[arg(long, default_value_t = 10_000)]
    deltas: usize,
    /// Ended runs in the store that is started.
    #[arg(long, default_value_t = 10_000)]
    ended: usize,
    /// Only these figures.
    #[arg(long, value_enum)]
    only: Vec<Figure>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// A run against its parts.
    Work,
    /// A run against a shell script.
    Script,
    /// Delay of an event.
    Delay,
    /// Reading a run with many events.
    Read,
    /// Start with ended runs.
    Start,
    /// Run events of text deltas.
    Text,
}

/// Programs and folders of the measurement.
struct Bench<'a> {
    plan: &'a Plan,
    here: &'a Path,
    bridge: &'a Path,
    folder: &'a Path,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    // The bridge and the programs under it have another working directory.
    let (bridge, folder) = (bridge.canonicalize()?, folder.canonicalize()?);
    let bench = Bench {
        plan,
        here,
        bridge: &bridge,
        folder: &folder,
    };
    let wants = |figure| plan.only.is_empty() || plan.only.contains(&figure);
    let mut rows = Vec::new();
    if wants(Figure::Work) {
        rows.push(bench.work()?);
    }
    if wants(Figure::Script) {
        rows.push(bench.script()?);
    }
    if wants(Figure::Delay) {
        rows.push(bench.delay()?);
    }
    if wants(Figure::Read) {
        rows.push(bench.read()?);
    }
    if wants(Figure::Start) {
        rows.push(bench.start()?);
    }
    if wants(Figure::Text) {
        bench.text()?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut lines =
        String::from("\n| figure (median) | without | with | ratio |\n|---|---|---|---|\n");
    for Row {
        name,
        without,
        with,
    } in rows
    {
        let ratio = with / without;
        lines += &format!("| {name} | {without:.1} | {with:.1} | {ratio:.3} |\n");
    }
    say(&lines);
    Ok(())
}

/// One line of the report.
struct Row {
    name: String,
    without: f64,
    with: f64,
}

impl Bench<'_> {
    /// A bridge that runs echo on the repositories of this folder.
    fn bridge(&self, origin: &Origin) -> anyhow::Result<Target> {
        let root = origin.root().display().to_string();
        let settings = [
            ("BRIDGE_RUNS_LOCAL_ROOTS", root.clone()),
            ("BRIDGE_RUNS_GREETING", "none".into()),
            ("BRIDGE_RUNS_PROVIDER", "echo".to_owned()),
            ("BRIDGE_RUNS_MODEL", "run".to_owned()),
            ("BRIDGE_RUNS_MAX_PARALLEL", self.plan.at_once.to_string()),
            ("BRIDGE_DISPATCH_WORKSPACE_ROOTS", root),
        ];
        Target::start_with(Kind::Bridge, self.here, self.bridge, self.folder, &settings)
    }

    /// Measures two things in turn, and reverses their order in every second round.
    fn rounds(
        &self,
        name: String,
        mut without: impl FnMut() -> anyhow::Result<f64>,
        mut with: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Row> {
        let mut samples = (Vec::new(), Vec::new());
        for round in 0..self.plan.rounds {
            if round % 2 == 0 {
                samples.0.push(without()?);
                samples.1.push(with()?);
            } else {
                samples.1.push(with()?);
                samples.0.push(without()?);
            }
            let (without, with) = (samples.0[round], samples.1[round]);
            say(&format!(
                "round {round}: {name} {without:.1} and {with:.1} ({:.3})",
                with / without
            ));
        }
        Ok(Row {
            name,
            without: median(samples.0.into_iter()),
            with: median(samples.1.into_iter()),
        })
    }

    fn work(&self) -> anyhow::Result<Row> {
        self.tasks("git and dispatches alone", bare::work)
    }

    fn script(&self) -> anyhow::Result<Row> {
        let script =
            |_: &Target, origin: &Origin, tasks, at_once| bare::script(origin, tasks, at_once);
        self.tasks("a shell script", script)
    }

    /// Measures runs against something else that does their work.
    fn tasks(
        &self,
        other: &str,
        work: impl Fn(&Target, &Origin, usize, usize) -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Row> {
        let Plan { tasks, at_once, .. } = *self.plan;
        let origin = Origin::create(self.folder)?;
        let target = self.bridge(&origin)?;
        self.rounds(
            format!("{tasks} tasks, {at_once} at once, against {other}, ms"),
            || Ok(millis(work(&target, &origin, tasks, at_once)?)),
            || Ok(millis(run::independent_tasks(&target, &origin, tasks)?)),
        )
    }

    fn delay(&self) -> anyhow::Result<Row> {
        let origin = Origin::create(self.folder)?;
        let target = self.bridge(&origin)?;
        let run = run::begin(&target, &origin)?;
        self.rounds(
            "request to event at a reader, of a dispatch and of a run, p50 µs".to_owned(),
            || latency::of_dispatches(&target),
            || latency::of_run(&target, &run),
        )
    }

    fn read(&self) -> anyhow::Result<Row> {
        let origin = Origin::create(self.folder)?;
        let target = self.bridge(&origin)?;
        let (short, long) = (run::begin(&target, &origin)?, run::begin(&target, &origin)?);
        run::pause_and_resume(&target, &short, 100)?;
        run::pause_and_resume(&target, &long, self.plan.events)?;
        self.rounds(
            format!(
                "GET of a run with 100 events and with {}, p50 µs",
                self.plan.events
            ),
            || latency::of_get(&target, &short),
            || latency::of_get(&target, &long),
        )
    }

    fn start(&self) -> anyhow::Result<Row> {
        let origin = Origin::create(self.folder)?;
        let (mut empty, mut full) = (self.bridge(&origin)?, self.bridge(&origin)?);
        start::fill(&full, &origin, self.plan.ended)?;
        self.rounds(
            format!(
                "start until it listens, empty and with {} ended runs, ms",
                self.plan.ended
            ),
            || Ok(millis(start::again(&mut empty)?)),
            || Ok(millis(start::again(&mut full)?)),
        )
    }

    fn text(&self) -> anyhow::Result<()> {
        let origin = Origin::create(self.folder)?;
        let target = self.bridge(&origin)?;
        for _ in 0..self.plan.rounds {
            let joined = run::text(&target, &origin, self.plan.deltas)?;
            let bound = joined.bytes as f64 / 4096.0 + joined.took.as_secs_f64() / 0.05 + 1.0;
            say(&format!(
                "{} text deltas, {} bytes in {:.0} ms: {} run events, bound {bound:.0}",
                self.plan.deltas,
                joined.bytes,
                millis(joined.took),
                joined.events,
            ));
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
