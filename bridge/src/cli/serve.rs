//! `forge-bridge`: serves until it is told to stop.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Context, INTERRUPTED};
use crate::app::{Bridge, Options};
use crate::config::{Config, Loaded, Sources};
use crate::telemetry::{self, Logs};
use forge_base::tasks;

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let sources = context.sources();
    let Loaded {
        config,
        file,
        warnings,
    } = sources.load()?;
    let settings = Settings {
        sources,
        logs: telemetry::install(&config.log)?,
    };
    if let Some(file) = file {
        tracing::info!("settings from {}", file.display());
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let options = Options::new(context.environment.clone());
    let runtime = tasks::half_runtime()?;
    let code = runtime.block_on(until_stopped(&settings, config, options));
    // What a second signal cut off is not waited for.
    runtime.shutdown_background();
    code
}

async fn until_stopped(
    settings: &Settings,
    config: Config,
    options: Options,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut bridge = tokio::select! {
        started = Box::pin(Bridge::start(config, options)) => started?,
        // A start that is given up, perhaps because an adapter hangs, ends as a crash does: nothing
        // was answered yet.
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => settings.reload(&mut bridge).await,
        }
    }
    tokio::select! {
        () = bridge.stop() => Ok(ExitCode::SUCCESS),
        () = signals.next() => Ok(ExitCode::from(INTERRUPTED)),
    }
}

/// Where settings come from and what of them is the process's own.
struct Settings {
    sources: Sources,
    logs: Logs,
}

impl Settings {
    /// Whatever is wrong, the bridge goes on as it is.
    async fn reload(&self, bridge: &mut Bridge) {
        let Loaded {
            config,
            file,
            warnings,
        } = match self.sources.load() {
            Ok(loaded) => loaded,
            Err(error) => return tracing::error!("nothing is changed: {error}"),
        };
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let level = config.log.level.clone();
        let restart = match bridge.reload(config).await {
            Ok(restart) => restart,
            Err(error) => return tracing::error!("nothing is changed: {error:#}"),
        };
        match file {
            Some(file) => tracing::info!("settings read again from {}", file.display()),
            None => tracing::info!("there is no file to read settings from"),
        }
        if !restart.is_empty() {
            tracing::warn!(
                "changed, but in force only after a restart: {}",
                restart.join(", ")
            );
        }
        if let Err(error) = self.logs.set_level(&level) {
            tracing::error!("the level of the logs is as before: {error}");
        }
    }
}

/// SIGTERM and SIGINT mean the same to us.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
