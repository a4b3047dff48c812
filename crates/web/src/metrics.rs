//! `/metrics`: families of samples, as OpenMetrics 1.0 for clients that ask for it, else as the text format 0.0.4 of
//! Prometheus, which tools such as `promtool check metrics` read.
//!
//! A text is made at most every [`FRESH`]; requests in between get the same one, so a flood of requests costs sending
//! only.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder,
    NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::Pages;

/// Time for which a text is served again.
const FRESH: Duration = Duration::from_millis(100);

/// A source of metrics.
pub trait Metrics: Send + Sync + 'static {
    /// Writes all families, each name once. Called from the server's thread; must not wait for others.
    ///
    /// # Errors
    /// Those of `families`.
    fn write(&self, families: &mut Families<'_>) -> fmt::Result;
}

/// A sample of a histogram.
pub struct Histogram {
    /// The sum of all observations.
    pub sum: f64,
    /// The highest value of each bucket, ascending, and the observations above the bucket before.
    pub buckets: Vec<(f64, u64)>,
}

/// Takes families of samples. A family without samples is left out.
pub struct Families<'e>(DescriptorEncoder<'e>);

impl Families<'_> {
    /// Writes a family of counters; `_total` is appended to its name.
    ///
    /// # Errors
    /// The text's.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Counter), samples, |sample, value| {
            sample.encode_counter::<NoLabelSet, V, u64>(&value, None)
        })
    }

    /// Writes a family of histograms.
    ///
    /// # Errors
    /// The text's.
    pub fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, Histogram)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Histogram), samples, |sample, of| {
            let Histogram { sum, mut buckets } = of;
            // The format's last one, which holds all.
            buckets.push((f64::INFINITY, 0));
            let count = buckets.iter().map(|(_, count)| count).sum();
            sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    /// Writes a family of gauges.
    ///
    /// # Errors
    /// The text's.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.family((name, help, MetricType::Gauge), samples, |sample, value| {
            sample.encode_gauge(&value)
        })
    }

    /// Writes a family of any type; leaves out one without samples.
    fn family<L: EncodeLabelSet, V>(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        samples: impl IntoIterator<Item = (L, V)>,
        encode: impl Fn(&mut MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        samples.try_for_each(|(labels, value)| encode(&mut family.encode_family(&labels)?, value))
    }

    /// Writes a counter without labels.
    ///
    /// # Errors
    /// The text's.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        self.counters(name, help, [(NONE, value)])
    }

    /// Writes a gauge without labels.
    ///
    /// # Errors
    /// The text's.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.gauges(name, help, [(NONE, value)])
    }
}

/// No labels.
const NONE: [(&str, &str); 0] = [];

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// The form that a client asks for.
    fn wanted(headers: &HeaderMap) -> Self {
        let all = headers.get_all(header::ACCEPT).iter();
        let mut texts = all.filter_map(|accept| accept.to_str().ok());
        match texts.any(|accept| accept.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    fn encode(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut out = String::new();
        match self {
            Self::OpenMetrics => text::encode(&mut out, registry)?,
            Self::Text => prometheus_text::encode(&mut out, registry)?,
        }
        Ok(out)
    }
}

/// The source, and the last text of each form.
struct Page {
    metrics: Arc<dyn Metrics>,
    last: [Mutex<Option<(Instant, Bytes)>>; 2],
}

impl Page {
    fn text(&self, format: Format) -> Result<Bytes, fmt::Error> {
        let mut last = self.last[format as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, text)) = &*last
            && made.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Source(self.metrics.clone())));
        let text = Bytes::from(format.encode(&registry)?);
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

struct Source(Arc<dyn Metrics>);

impl Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Collector for Source {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.write(&mut Families(encoder))
    }
}

/// Serves these metrics at `/metrics`.
pub fn pages(metrics: Arc<dyn Metrics>) -> Pages {
    let page = Arc::new(Page { metrics, last: Default::default() });
    axum::Router::new().route("/metrics", get(respond)).with_state(page)
}

async fn respond(State(page): State<Arc<Page>>, headers: HeaderMap) -> Response {
    let format = Format::wanted(&headers);
    match page.text(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Some(AtomicU64);

    impl Metrics for Some {
        fn write(&self, families: &mut Families<'_>) -> fmt::Result {
            let count = self.0.fetch_add(1, Ordering::Relaxed);
            families.counters("drops", "Drops", [([("reason", "a \"b\"\\\n")], count)])?;
            families.gauges("routes", "Routes", [([("vrf", "x")], 7_u64)])?;
            families.gauges("none", "None", Vec::<([(&str, &str); 1], u64)>::new())?;
            families.counter("cpu_seconds", "Time", 1.5)
        }
    }

    fn page() -> Page {
        Page { metrics: Arc::new(Some(AtomicU64::new(3))), last: Default::default() }
    }

    #[test]
    fn both_forms() {
        let page = page();
        let text = page.text(Format::Text).unwrap();
        let expected = "# HELP drops_total Drops\n# TYPE drops_total counter\n\
                        drops_total{reason=\"a \\\"b\\\"\\\\\\n\"} 3\n\
                        # HELP routes Routes\n# TYPE routes gauge\nroutes{vrf=\"x\"} 7\n\
                        # HELP cpu_seconds_total Time\n# TYPE cpu_seconds_total counter\n\
                        cpu_seconds_total 1.5\n";
        assert_eq!(text, expected);
        let text = page.text(Format::OpenMetrics).unwrap();
        let expected = "# HELP drops Drops\n# TYPE drops counter\n\
                        drops_total{reason=\"a \\\"b\\\"\\\\\\n\"} 4\n\
                        # HELP routes Routes\n# TYPE routes gauge\nroutes{vrf=\"x\"} 7\n\
                        # HELP cpu_seconds Time\n# TYPE cpu_seconds counter\n\
                        cpu_seconds_total 1.5\n# EOF\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_text_is_served_again_while_it_is_fresh() {
        let page = page();
        let first = page.text(Format::Text).unwrap();
        let again = page.text(Format::Text).unwrap();
        let is_fresh = |page: &Page| {
            page.last[Format::Text as usize].lock().unwrap().as_ref().unwrap().0.elapsed() < FRESH
        };
        // On a machine that stood still in between it is made anew.
        assert!(first == again || !is_fresh(&page));
        page.last[Format::Text as usize].lock().unwrap().as_mut().unwrap().0 -= FRESH;
        assert_ne!(page.text(Format::Text).unwrap(), first);
    }

    #[test]
    fn clients_choose_by_the_accept_header() {
        let wanted = |accept: &str| {
            Format::wanted(&HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]))
        };
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(wanted(prometheus), Format::OpenMetrics);
        assert_eq!(wanted("*/*"), Format::Text);
        assert_eq!(Format::wanted(&HeaderMap::new()), Format::Text);
    }
}
