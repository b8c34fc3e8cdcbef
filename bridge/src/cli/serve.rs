//! `forge-bridge`: serves until it is told to stop; a hang-up reads the configuration again.

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Context, INTERRUPTED};
use crate::app;
use crate::config::{Config, Loaded, Sources};
use crate::telemetry;

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let sources = context.sources();
    let Loaded {
        config,
        file,
        warnings,
    } = sources.load()?;
    telemetry::install(&config.log)?;
    if let Some(file) = file {
        tracing::info!("settings from {}", file.display());
    }
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let options = app::Options::new(context.environment.clone());
    let runtime = runtime()?;
    let code = runtime.block_on(until_stopped(config, &sources, options));
    // What a second signal cut off is not waited for.
    runtime.shutdown_background();
    code
}

pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
}

async fn until_stopped(
    config: Config,
    sources: &Sources,
    options: app::Options,
) -> anyhow::Result<ExitCode> {
    let shutdown = CancellationToken::new();
    let mut signals = Signals::listen()?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let current = watch::Sender::new(config);
    let serving = app::serve(current.subscribe(), options, shutdown.clone());
    tokio::pin!(serving);
    loop {
        tokio::select! {
            served = &mut serving => {
                served?;
                return Ok(ExitCode::SUCCESS);
            }
            () = signals.next() => break shutdown.cancel(),
            _ = hang_up.recv() => match sources.load() {
                Ok(Loaded { config, .. }) => drop(current.send_replace(config)),
                Err(error) => tracing::error!("the configuration stays as it was: {error}"),
            },
        }
    }
    tokio::select! {
        served = &mut serving => {
            served?;
            Ok(ExitCode::SUCCESS)
        }
        () = signals.next() => Ok(ExitCode::from(INTERRUPTED)),
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
