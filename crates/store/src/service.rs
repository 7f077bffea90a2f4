//! The service of the peer listener: takes messages of other registries, and requests that they pass on.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Request as HttpRequest, Response as HttpResponse};
use synod_cluster::remote::{BearerToken, PeerService};
use synod_core::slots::ClusterId;
use synod_wire::slots as wire;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::codec::{self, CodecError};
use crate::register;
use crate::registry::RegistryHandle;

/// The slots service of one node. It refuses everything until its registry runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotsService {
    registry: Arc<OnceLock<(ClusterId, RegistryHandle)>>,
    token: BearerToken,
}

impl SlotsService {
    /// A service for peers that show this token.
    pub(crate) fn new(token: BearerToken) -> Self {
        Self { token, ..Self::default() }
    }

    /// Serves this registry from now on.
    pub(crate) fn open(&self, cluster: ClusterId, registry: RegistryHandle) {
        // A node has one registry; a second call would be the same one.
        drop(self.registry.set((cluster, registry)));
    }

    fn registry(&self) -> Result<&(ClusterId, RegistryHandle), Status> {
        self.registry
            .get()
            .ok_or_else(|| Status::unavailable("the registry of this node has not started yet"))
    }
}

impl PeerService for SlotsService {
    fn name(&self) -> &str {
        SERVICE_NAME
    }

    fn call(&self, request: HttpRequest<Body>) -> Pin<Box<dyn Future<Output = HttpResponse<Body>> + Send>> {
        let service = self.clone();
        Box::pin(async move {
            if let Err(refused) = service.token.check(request.headers()) {
                return refused.into_http();
            }
            match request.uri().path() {
                DELIVER_PATH => {
                    let codec = ProstCodec::<wire::SlotReceipt, wire::SlotBatch>::default();
                    let mut grpc = Grpc::new(codec)
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .accept_compressed(CompressionEncoding::Gzip);
                    grpc.unary(Deliver(service), request).await
                }
                REQUEST_PATH => {
                    let codec = ProstCodec::<wire::RegisterReply, wire::RegisterRequest>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    grpc.unary(PassOn(service), request).await
                }
                _ => Status::unimplemented("the slots service has no such method").into_http(),
            }
        })
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

struct Deliver(SlotsService);

impl UnaryService<wire::SlotBatch> for Deliver {
    type Response = wire::SlotReceipt;
    type Future = Answer<wire::SlotReceipt>;

    fn call(&mut self, request: Request<wire::SlotBatch>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (cluster, registry) = service.registry()?;
            let (from, messages) = codec::read_batch(*cluster, request.into_inner()).map_err(status)?;
            registry.deliver(from, messages).await.map_err(|error| Status::unavailable(error.to_string()))?;
            Ok(Response::new(wire::SlotReceipt {}))
        })
    }
}

struct PassOn(SlotsService);

impl UnaryService<wire::RegisterRequest> for PassOn {
    type Response = wire::RegisterReply;
    type Future = Answer<wire::RegisterReply>;

    fn call(&mut self, request: Request<wire::RegisterRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let (cluster, registry) = service.registry()?;
            let request = request.into_inner();
            codec::check_cluster(*cluster, &request.cluster).map_err(status)?;
            let patience = Duration::from_millis(request.patience_ms).min(register::PATIENCE_MAX);
            let (slot, operation) = register::read_request(request).map_err(status)?;
            let answer = registry.request(slot, operation, patience).await;
            Ok(Response::new(register::write_reply(&answer)))
        })
    }
}

#[allow(clippy::needless_pass_by_value)]
fn status(error: CodecError) -> Status {
    match &error {
        CodecError::Foreign(_) => Status::failed_precondition(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}

/// The full name of the service.
const SERVICE_NAME: &str = "synod.slots.v1.Slots";
/// Where messages go.
pub(crate) const DELIVER_PATH: &str = "/synod.slots.v1.Slots/Deliver";
/// Where requests go.
pub(crate) const REQUEST_PATH: &str = "/synod.slots.v1.Slots/Request";
/// Longest message, in either direction. A whole map of slots fits.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;
