//! Encoding of metrics: OpenMetrics if the client accepts it, otherwise the older Prometheus text format.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use forge_base::metrics::Distribution;

use super::families::Scrape;
use super::process::Process;

/// Prefix of the bridge's own metric names.
const PREFIX: &str = "forge_bridge";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// Format for an `Accept` header.
    pub(super) fn wanted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            Some(_) | None => Self::Text,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Encodes all metrics in this format.
pub(super) fn write(scrape: Scrape, format: Format) -> String {
    let mut registry = Registry::default();
    let ours = registry.sub_registry_with_prefix(PREFIX);
    ours.register_collector(Box::new(scrape));
    registry.register_collector(Box::new(Process));
    let mut page = String::with_capacity(64 * 1024);
    text::encode(&mut page, &registry).expect("writing to a string does not fail");
    match format {
        Format::OpenMetrics => page,
        Format::Text => older(&page),
    }
}

/// Converts OpenMetrics to the older text format, in which a family has the name of its samples and there are no
/// `UNIT` lines.
fn older(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            let about = help.split_once(' ').map_or("", |(_, about)| about);
            text.push_str(&format!(
                "# HELP {name}{suffix} {about}\n# TYPE {name}{suffix} {kind}\n"
            ));
        } else if !line.starts_with("# ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Page being encoded.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

/// Labels of one sample.
type Labels<'l> = &'l [(&'l str, &'l str)];

impl Page<'_> {
    /// Adds a family of metrics, whose samples `write` adds.
    fn family(
        &mut self,
        (name, help): (&str, &str),
        unit: Option<&Unit>,
        kind: MetricType,
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit, kind)?;
        write(&mut Samples(encoder))
    }

    pub(super) fn counter(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, None, MetricType::Counter, write)
    }

    pub(super) fn gauge(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, None, MetricType::Gauge, write)
    }

    /// Gauge in bytes; the unit is appended to the name.
    pub(super) fn bytes(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, Some(&Unit::Bytes), MetricType::Gauge, write)
    }

    /// Gauge in seconds; the unit is appended to the name.
    pub(super) fn seconds(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, Some(&Unit::Seconds), MetricType::Gauge, write)
    }

    /// Histogram in seconds; the unit is appended to the name.
    pub(super) fn times(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, Some(&Unit::Seconds), MetricType::Histogram, write)
    }

    pub(super) fn numbers(
        &mut self,
        about: (&str, &str),
        write: impl FnOnce(&mut Samples<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.family(about, None, MetricType::Histogram, write)
    }
}

/// Samples of one family.
pub(super) struct Samples<'a>(MetricEncoder<'a>);

impl Samples<'_> {
    pub(super) fn count(
        &mut self,
        labels: Labels<'_>,
        value: impl EncodeCounterValue + Copy,
    ) -> fmt::Result {
        match labels {
            [] => self.0.encode_counter::<NoLabelSet, _, f64>(&value, None),
            labels => self
                .0
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&value, None),
        }
    }

    pub(super) fn level(
        &mut self,
        labels: Labels<'_>,
        value: impl EncodeGaugeValue + Copy,
    ) -> fmt::Result {
        match labels {
            [] => self.0.encode_gauge(&value),
            labels => self.0.encode_family(&labels)?.encode_gauge(&value),
        }
    }

    pub(super) fn spread(&mut self, labels: Labels<'_>, value: &Distribution) -> fmt::Result {
        let Distribution {
            sum,
            count,
            buckets,
        } = value;
        match labels {
            [] => self
                .0
                .encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
            labels => self
                .0
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.write(&mut Page(encoder))
    }
}

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.write(&mut Page(encoder))
    }
}
