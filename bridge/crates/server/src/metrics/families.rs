//! Metric definitions: help text, labels and source of each metric. Every label has a set of values that callers
//! cannot grow.

use std::fmt;

use forge_adapter_api::HealthStatus;

use crate::Phase;
use forge_base::metrics::Histogram;
use forge_delivery::State;
use forge_dispatch::meters::Provider;
use forge_plugin_host::Adapter;

use super::page::Page;
use super::{MetricSources, nodes, runs, signals};

/// Components and queue lengths read by one scrape.
pub(super) struct Scrape {
    parties: MetricSources,
    adapters: Vec<Adapter>,
    /// Queued dispatches by adapter, including adapters that are no longer loaded.
    queues: Vec<(String, u64)>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

/// Name, help text and value of a counter of a provider.
type Count = ((&'static str, &'static str), fn(&Provider) -> u64);

const COUNTS: [Count; 5] = [
    (
        ("dispatches_accepted", "Dispatches accepted and on disk"),
        |of| of.accepted.get(),
    ),
    (
        ("dispatches_requeued", "Attempts put back into the queue"),
        |of| of.requeued.get(),
    ),
    (("events", "Events emitted by executions"), |of| {
        of.events.get()
    }),
    (
        (
            "events_dropped",
            "Events dropped because an adapter ignored backpressure",
        ),
        |of| of.events_dropped.get(),
    ),
    (("tool_calls", "Tool calls reported by executions"), |of| {
        of.tool_calls.get()
    }),
];

/// Name, help text and value of a histogram of a provider.
type Times = ((&'static str, &'static str), fn(&Provider) -> &Histogram);

const TIMES: [Times; 3] = [
    (
        (
            "dispatch_queue_wait",
            "Time from acceptance, or from notBefore, to the first start",
        ),
        |provider| &provider.queue_wait,
    ),
    (
        (
            "dispatch_execution",
            "Time of one attempt, from its start to its end on disk",
        ),
        |provider| &provider.execution,
    ),
    (
        (
            "dispatch_first_event",
            "Time from acceptance to the first event of the adapter",
        ),
        |provider| &provider.first_event,
    ),
];

impl Scrape {
    pub(super) fn new(parties: MetricSources, queues: Vec<(String, u64)>) -> Self {
        Self {
            adapters: parties.registry.adapters(),
            parties,
            queues,
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        self.build(page)?;
        self.dispatches(page)?;
        self.usage(page)?;
        self.adapters(page)?;
        self.deliveries(page)?;
        self.external(page)?;
        signals::write(&self.parties.signals, page)?;
        runs::write(&self.parties.runs, page)?;
        self.store(page)?;
        nodes::write(&self.parties, page)?;
        self.children(page)?;
        self.buffers(page)?;
        self.http(page)
    }

    fn build(&self, page: &mut Page<'_>) -> fmt::Result {
        let about = ("build_info", "Version and instance of the bridge; always 1");
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("instance", &*self.parties.life.instance_id),
        ];
        page.gauge(about, |to| to.level(&labels, 1_u64))?;
        let draining = *self.parties.life.phase.borrow() == Phase::Draining;
        let about = ("draining", "1 while the bridge drains");
        page.gauge(about, |to| to.level(&[], u64::from(draining)))
    }

    fn dispatches(&self, page: &mut Page<'_>) -> fmt::Result {
        let providers = || self.parties.dispatcher.meters().providers.rows();
        for (about, read) in COUNTS {
            page.counter(about, |to| {
                providers().try_for_each(|(name, of)| to.count(&[("provider", name)], read(of)))
            })?;
        }
        let about = ("dispatches_finished", "Dispatches whose result is on disk");
        page.counter(about, |to| {
            for (provider, of) in providers() {
                for (code, count) in of.finished() {
                    let (status, code) = match code {
                        "" => ("ok", "none"),
                        code => ("error", code),
                    };
                    let labels = [
                        ("provider", provider),
                        ("status", status),
                        ("error_code", code),
                    ];
                    to.count(&labels, count)?;
                }
            }
            Ok(())
        })?;
        let about = (
            "model_retries",
            "Requests to a model that adapters repeated inside an attempt",
        );
        page.counter(about, |to| {
            for (name, of) in providers() {
                for (reason, count) in of.model_retries() {
                    to.count(&[("adapter", name), ("reason", reason)], count)?;
                }
            }
            Ok(())
        })?;
        for (about, read) in TIMES {
            page.times(about, |to| {
                providers()
                    .try_for_each(|(name, of)| to.spread(&[("provider", name)], &read(of).read()))
            })?;
        }
        let about = ("dispatches_queued", "Dispatches waiting to start");
        page.gauge(about, |to| {
            let known = self.adapters.iter().map(Adapter::provider);
            let counted = |name: &str| self.queues.iter().any(|(other, _)| other == name);
            let empty = known.filter(|name| !counted(name)).map(|name| (name, 0));
            let queues = self
                .queues
                .iter()
                .map(|(name, count)| (name.as_str(), *count));
            queues
                .chain(empty)
                .try_for_each(|(name, count)| to.level(&[("provider", name)], count))
        })
    }

    fn usage(&self, page: &mut Page<'_>) -> fmt::Result {
        let models = || {
            let providers = self.parties.dispatcher.meters().providers.rows();
            providers.flat_map(|(provider, of)| {
                let rows = of.models.rows();
                rows.map(move |(name, model)| (provider, name, model))
            })
        };
        page.counter(("tokens", "Tokens used by finished dispatches"), |to| {
            for (provider, name, model) in models() {
                for (kind, count) in model.tokens() {
                    let labels = [("provider", provider), ("model", name), ("kind", kind)];
                    to.count(&labels, count)?;
                }
            }
            Ok(())
        })?;
        let about = (
            "cost_usd",
            "Cost of finished dispatches, as reported by adapters",
        );
        page.counter(about, |to| {
            models().try_for_each(|(provider, name, model)| {
                let labels = [("provider", provider), ("model", name)];
                to.count(&labels, model.cost_usd())
            })
        })
    }

    fn adapters(&self, page: &mut Page<'_>) -> fmt::Result {
        let about = ("dispatches_running", "Executions in progress");
        page.gauge(about, |to| {
            let mut adapters = self.adapters.iter();
            adapters
                .try_for_each(|of| to.level(&[("provider", of.provider())], of.running() as u64))
        })?;
        let about = ("adapter_max_concurrent", "Maximum concurrent executions");
        page.gauge(about, |to| {
            let mut adapters = self.adapters.iter();
            adapters.try_for_each(|of| {
                to.level(&[("provider", of.provider())], of.max_concurrent() as u64)
            })
        })?;
        let about = ("adapter_health", "1 for the current state of an adapter");
        page.gauge(about, |to| {
            for adapter in &self.adapters {
                let now = adapter.health().status;
                for (state, name) in [
                    (HealthStatus::Healthy, "healthy"),
                    (HealthStatus::Degraded, "degraded"),
                    (HealthStatus::Offline, "offline"),
                ] {
                    let labels = [("provider", adapter.provider()), ("state", name)];
                    to.level(&labels, u64::from(now == state))?;
                }
            }
            Ok(())
        })?;
        let about = ("plugin_calls", "Completed calls into adapters");
        page.counter(about, |to| {
            for adapter in &self.adapters {
                let ops = adapter.meters().into_iter().flat_map(|of| of.calls.rows());
                for (op, meter) in ops {
                    for (outcome, count) in meter.outcomes() {
                        let labels = [
                            ("provider", adapter.provider()),
                            ("op", op),
                            ("outcome", outcome),
                        ];
                        to.count(&labels, count)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn external(&self, page: &mut Page<'_>) -> fmt::Result {
        let about = ("external_calls", "Calls of external services, by outcome");
        page.counter(about, |to| {
            let mut calls = self.parties.external.meters().calls();
            calls.try_for_each(|(service, kind, outcome, count)| {
                let labels = [("service", service), ("kind", kind), ("outcome", outcome)];
                to.count(&labels, count)
            })
        })
    }

    fn deliveries(&self, page: &mut Page<'_>) -> fmt::Result {
        let meters = self.parties.deliverer.meters();
        let about = (
            "delivery_attempts",
            "Delivery attempts by location of the receiver and answer",
        );
        page.counter(about, |to| {
            meters.attempts().try_for_each(|(place, answer, count)| {
                to.count(&[("destination", place), ("answer", answer)], count)
            })
        })?;
        let about = ("deliveries_ended", "Deliveries that ended, by outcome");
        page.counter(about, |to| {
            to.count(&[("outcome", "delivered")], meters.delivered.get())?;
            to.count(&[("outcome", "dead")], meters.dead.get())
        })?;
        let about = (
            "delivery_attempt",
            "Time of one delivery attempt, until its answer",
        );
        page.times(about, |to| to.spread(&[], &meters.attempt.read()))?;
        let about = (
            "delivery_delay",
            "Time from the finish, or the replay, to the delivery",
        );
        page.times(about, |to| to.spread(&[], &meters.delay.read()))?;
        let broken = self.parties.deliverer.snapshot();
        let about = (
            "delivery_breakers",
            "Receivers whose circuit breaker is open or half-open",
        );
        page.gauge(about, |to| {
            for (state, name) in [(State::Open, "open"), (State::HalfOpen, "half_open")] {
                let count = broken.iter().filter(|of| of.state == state).count();
                to.level(&[("state", name)], count as u64)?;
            }
            Ok(())
        })?;
        let counts = self.parties.store.counts();
        let about = ("deliveries_pending", "Deliveries pending");
        page.gauge(about, |to| to.level(&[], counts.deliveries_pending))?;
        let about = ("dead_letters", "Deliveries given up, which can be replayed");
        page.gauge(about, |to| to.level(&[], counts.deliveries_dead))?;
        let about = (
            "deliveries_in_hand",
            "Deliveries waiting, being sent or being settled",
        );
        let (in_hand, _) = self.parties.deliverer.in_hand();
        page.gauge(about, |to| to.level(&[], in_hand as u64))
    }

    fn store(&self, page: &mut Page<'_>) -> fmt::Result {
        let store = &self.parties.store;
        let meters = store.meters();
        let about = ("store_up", "1 while the store is writable");
        page.gauge(about, |to| to.level(&[], u64::from(store.status().is_ok())))?;
        let about = (
            "store_commit",
            "Time from the first change of a commit until it is on disk",
        );
        page.times(about, |to| to.spread(&[], &meters.commits.read()))?;
        let about = ("store_commit_changes", "Changes per commit");
        page.numbers(about, |to| to.spread(&[], &meters.batches.read()))?;
        let about = ("store_commit_failures", "Commits that failed");
        page.counter(about, |to| to.count(&[], meters.failures.get()))?;
        let ages = &meters.progress;
        for (name, help, age) in [
            (
                "store_oldest_change_age",
                "Age of the oldest change without an answer of the writer; 0 if there is none",
                &ages.oldest_change_ms,
            ),
            (
                "store_work_age",
                "Age of the statement, commit or checkpoint under way; 0 if there is none",
                &ages.work_ms,
            ),
            (
                "store_last_commit_age",
                "Time since the last commit",
                &ages.last_commit_ms,
            ),
        ] {
            page.seconds((name, help), |to| to.level(&[], age.get() as f64 / 1e3))?;
        }
        let about = ("store_wal", "Size of the write-ahead log");
        page.bytes(about, |to| to.level(&[], meters.wal_bytes.get()))?;
        let bounds = store.log_bounds();
        let about = (
            "event_log_appended",
            "Events recorded since the store was created",
        );
        page.counter(about, |to| to.count(&[], bounds.issued))?;
        let about = (
            "event_log_length",
            "Upper bound of the events in the log: positions after the last removed one",
        );
        let length = bounds.issued.saturating_sub(bounds.removed);
        page.gauge(about, |to| to.level(&[], length))?;
        let about = ("event_streams", "Open event streams");
        let streams = self.parties.stream_limit.taken() as u64;
        page.gauge(about, |to| to.level(&[], streams))
    }

    fn children(&self, page: &mut Page<'_>) -> fmt::Result {
        let children = &self.parties.life.children;
        let about = ("children_living", "Running programs that adapters started");
        page.gauge(about, |to| to.level(&[], children.living() as u64))?;
        let about = (
            "orphans_reaped",
            "Programs killed because their bridge or supervisor was gone",
        );
        page.counter(about, |to| to.count(&[], children.meters().reaped.get()))?;
        let about = (
            "orphans_escaped",
            "Programs still running after they were killed",
        );
        page.counter(about, |to| to.count(&[], children.meters().escaped.get()))
    }

    fn buffers(&self, page: &mut Page<'_>) -> fmt::Result {
        let (said, asked) = self
            .adapters
            .iter()
            .map(Adapter::buffered)
            .fold((0, 0), |(said, asked), (more_said, more_asked)| {
                (said + more_said, asked + more_asked)
            });
        let (_, deliveries) = self.parties.deliverer.in_hand();
        let spans = self.parties.dispatcher.spans().load();
        let store = self.parties.store.meters();
        page.bytes(("buffer", "Data waiting in memory"), |to| {
            for (buffer, bytes) in [
                ("store_queue", store.queue_bytes.get()),
                ("adapter_events", said as u64),
                ("adapter_requests", asked as u64),
                ("deliveries", deliveries as u64),
                ("spans", spans.map_or(0, |spans| spans.bytes() as u64)),
            ] {
                to.level(&[("buffer", buffer)], bytes)?;
            }
            Ok(())
        })?;
        let about = (
            "log_lines_dropped",
            "Log lines dropped because standard error did not take them",
        );
        let dropped = self.parties.life.dropped_log_lines.get();
        page.counter(about, |to| to.count(&[], dropped))?;
        let about = ("trace_spans", "Trace spans by outcome");
        page.counter(about, |to| {
            for (outcome, count) in [
                ("exported", spans.map_or(0, |spans| spans.sent.get())),
                ("dropped", spans.map_or(0, |spans| spans.dropped.get())),
                ("failed", spans.map_or(0, |spans| spans.failed.get())),
            ] {
                to.count(&[("outcome", outcome)], count)?;
            }
            Ok(())
        })
    }

    fn http(&self, page: &mut Page<'_>) -> fmt::Result {
        let routes = || self.parties.traffic.routes();
        page.counter(("http_requests", "Requests answered"), |to| {
            for (route, of) in routes() {
                for (method, status, count) in of.answers() {
                    let labels = [("method", method), ("route", route), ("status", status)];
                    to.count(&labels, count)?;
                }
            }
            Ok(())
        })?;
        let about = ("http_request", "Time until the response head");
        page.times(about, |to| {
            routes().try_for_each(|(route, of)| to.spread(&[("route", route)], &of.time.read()))
        })
    }
}
