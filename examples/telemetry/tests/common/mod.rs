//! Replaces the collector in tests: accepts spans by gRPC, as the collector does, and keeps them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A span, and the node that sent it.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) node: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) span: Span,
}

/// Keeps all spans that it receives.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<Received>>>);

impl Collector {
    /// Starts to listen. Returns the address for exporters.
    pub(crate) async fn start() -> std::io::Result<(Self, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let collector = Self::default();
        let service = TraceServiceServer::new(collector.clone());
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Ok((collector, endpoint))
    }

    /// Returns the spans with that name from that node, in the order in which they began.
    pub(crate) fn spans(&self, node: &str, name: &str) -> Vec<Received> {
        let received = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |r: &&Received| r.node == node && r.span.name == name;
        let mut spans: Vec<_> = received.iter().filter(wanted).cloned().collect();
        spans.sort_by_key(|received| received.span.start_time_unix_nano);
        spans
    }

    /// Returns the only span with that name from that node.
    pub(crate) fn span(&self, node: &str, name: &str) -> Received {
        let mut spans = self.spans(node, name);
        assert_eq!(spans.len(), 1, "{name} of {node}: {spans:?}");
        spans.remove(0)
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for of_resource in request.into_inner().resource_spans {
            let resource = texts(of_resource.resource.unwrap_or_default().attributes);
            let node = resource.get("service.instance.id").cloned();
            let node = node.unwrap_or_default();
            for span in of_resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans)
            {
                kept.push(Received {
                    node: node.clone(),
                    attributes: texts(span.attributes.clone()),
                    span,
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Returns each attribute as text.
fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| {
        let text = match attribute.value?.value? {
            Value::StringValue(text) => text,
            Value::IntValue(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        Some((attribute.key, text))
    };
    attributes.into_iter().filter_map(text).collect()
}
