//! Sends the spans of elections, and those of the work of a leader, to a collector of OpenTelemetry.

use std::time::Duration;

use anyhow::Result;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, layer::SubscriberExt};

/// Sends spans to the collector at `endpoint`, by gRPC and in batches. Call `shutdown` to send the last ones.
///
/// # Errors
///
/// The endpoint is not a URL.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn exporter(endpoint: &str, node: &str) -> Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(Duration::from_secs(3))
        .build()?;
    let resource = Resource::builder()
        .with_service_name("billing")
        .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build())
}

/// Exports the library's spans, renewals included, and this program's own. Writes log lines to the standard error.
pub fn subscriber(exporter: &SdkTracerProvider) -> impl Subscriber + Send + Sync + use<> {
    // `DEBUG` includes renewals and locks; `INFO` has campaigns and terms alone.
    let wanted = Targets::new()
        .with_target("eldest", LevelFilter::DEBUG)
        .with_target(env!("CARGO_CRATE_NAME"), LevelFilter::INFO);
    let spans = tracing_opentelemetry::layer().with_tracer(exporter.tracer("eldest"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(lines.with_filter(LevelFilter::INFO))
        .with(spans.with_filter(wanted))
}
