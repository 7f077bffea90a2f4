//! The service of the peer listener: hears what other object planes say, keeps their parts, and reads parts to them.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Request as HttpRequest, Response as HttpResponse};
use synod_cluster::remote::{BearerToken, PeerService};
use synod_core::NodeId;
use synod_wire::objects as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{ClientStreamingService, Grpc, ServerStreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::body::{self, Piece};
use super::codec::{read_frame, read_part_id};
use super::content::{PART_BYTES_MAX, PartRef, part_from_wire};
use super::plane::Plane;
use crate::codec::{CodecError, check_cluster, read_slot};

/// The objects service of one node. It refuses everything until its plane runs.
#[derive(Clone, Default)]
pub(crate) struct ObjectsService {
    plane: Arc<OnceLock<Arc<Plane>>>,
    token: BearerToken,
}

impl ObjectsService {
    /// A service for peers that show this token.
    pub(crate) fn new(token: BearerToken) -> Self {
        Self { token, ..Self::default() }
    }

    /// Serves this plane from now on.
    pub(crate) fn open(&self, plane: Arc<Plane>) {
        // A node has one plane; a second call would be the same one.
        drop(self.plane.set(plane));
    }

    fn plane(&self) -> Result<&Arc<Plane>, Status> {
        self.plane.get().ok_or_else(|| Status::unavailable("the objects of this node are not served yet"))
    }
}

impl PeerService for ObjectsService {
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
                    let codec = ProstCodec::<wire::ObjectReceipt, wire::ObjectBatch>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    grpc.client_streaming(Deliver(service), request).await
                }
                WRITE_PART_PATH => {
                    let codec = ProstCodec::<wire::PartSeal, wire::PartChunk>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    grpc.client_streaming(WritePart(service), request).await
                }
                READ_PART_PATH => {
                    let codec = ProstCodec::<wire::PartData, wire::PartRequest>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    grpc.server_streaming(ReadPart(service), request).await
                }
                _ => Status::unimplemented("the objects service has no such method").into_http(),
            }
        })
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

struct Deliver(ObjectsService);

impl ClientStreamingService<wire::ObjectBatch> for Deliver {
    type Response = wire::ObjectReceipt;
    type Future = Answer<wire::ObjectReceipt>;

    fn call(&mut self, request: Request<Streaming<wire::ObjectBatch>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let plane = service.plane()?;
            let mut batches = request.into_inner();
            while let Some(batch) = batches.message().await? {
                check_cluster(plane.cluster(), &batch.cluster).map_err(status)?;
                let from = NodeId::new(&batch.node)
                    .ok()
                    .filter(|node| plane.knows(node))
                    .ok_or_else(|| Status::invalid_argument("the sender is no node of the cluster"))?;
                for frame in batch.frames {
                    plane.hear(&from, read_frame(frame).map_err(status)?);
                }
            }
            Ok(Response::new(wire::ObjectReceipt {}))
        })
    }
}

struct WritePart(ObjectsService);

impl ClientStreamingService<wire::PartChunk> for WritePart {
    type Response = wire::PartSeal;
    type Future = Answer<wire::PartSeal>;

    fn call(&mut self, request: Request<Streaming<wire::PartChunk>>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let plane = service.plane()?;
            let mut chunks = request.into_inner();
            let first = chunks.message().await?.and_then(|chunk| chunk.body);
            let Some(wire::part_chunk::Body::Header(header)) = first else {
                return Err(Status::invalid_argument("a part begins with its header"));
            };
            check_cluster(plane.cluster(), &header.cluster).map_err(status)?;
            let id = read_part_id(&header.id).map_err(status)?;
            let slot = read_slot(header.slot).map_err(status)?;
            let disk = plane.own_disk(slot).ok_or_else(not_stored)?.clone();
            let (pieces, waiting) = mpsc::channel(PIECES_MAX);
            let kept = tokio::task::spawn_blocking(move || body::keep(&disk, id, waiting));
            let outcome = feed(chunks, pieces).await;
            let seal = kept.await.map_err(|error| Status::internal(error.to_string()))?;
            // A cut stream is the better reason, unless the disk had one of its own first.
            match (outcome, seal) {
                (Ok(()), Ok(seal)) => {
                    Ok(Response::new(wire::PartSeal { bytes: seal.bytes, root: seal.root }))
                }
                (Err(Some(status)), _) => Err(status),
                (_, Err(error)) => Err(Status::unavailable(body::describe(&error))),
                (Err(None), Ok(_)) => Err(Status::internal("a part was kept before its end")),
            }
        })
    }
}

/// Hands the chunks of a part on. `Err(None)` when nobody takes them any more.
async fn feed(
    mut chunks: Streaming<wire::PartChunk>,
    pieces: mpsc::Sender<Piece>,
) -> Result<(), Option<Status>> {
    let mut bytes = 0;
    loop {
        let next = tokio::time::timeout(CHUNK_PATIENCE, chunks.message()).await;
        let next = next.map_err(|_| Some(Status::deadline_exceeded("the part does not go on")))??;
        match next.and_then(|chunk| chunk.body) {
            Some(wire::part_chunk::Body::Data(data)) => {
                bytes += data.len() as u64;
                if bytes > PART_BYTES_MAX {
                    return Err(Some(Status::invalid_argument("the part is too large")));
                }
                pieces.send(Piece::Data(data)).await.map_err(|_| None)?;
            }
            Some(wire::part_chunk::Body::End(count)) if count == bytes => {
                return pieces.send(Piece::End).await.map_err(|_| None);
            }
            _ => return Err(Some(Status::invalid_argument("the part was cut"))),
        }
    }
}

struct ReadPart(ObjectsService);

impl ServerStreamingService<wire::PartRequest> for ReadPart {
    type Response = wire::PartData;
    type ResponseStream = ReceiverStream<Result<wire::PartData, Status>>;
    type Future = Answer<Self::ResponseStream>;

    fn call(&mut self, request: Request<wire::PartRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let plane = Arc::clone(service.plane()?);
            let request = request.into_inner();
            check_cluster(plane.cluster(), &request.cluster).map_err(status)?;
            let slot = read_slot(request.slot).map_err(status)?;
            let part = request.part.as_ref().and_then(|part| part_from_wire(part).ok());
            let part = part.ok_or_else(|| Status::invalid_argument("which part is not said"))?;
            let range = request.from..request.to.min(part.bytes);
            plane.own_disk(slot).ok_or_else(not_stored)?;
            let (pieces, stream) = mpsc::channel(PIECES_MAX);
            tokio::task::spawn_blocking(move || read(&plane, slot, part, range, &pieces));
            Ok(Response::new(ReceiverStream::new(stream)))
        })
    }
}

fn read(
    plane: &Arc<Plane>,
    slot: synod_core::slots::SlotId,
    part: PartRef,
    mut range: Range<u64>,
    pieces: &mpsc::Sender<Result<wire::PartData, Status>>,
) {
    let Some(disk) = plane.own_disk(slot) else { return };
    let take = |data| pieces.blocking_send(Ok(wire::PartData { data })).is_ok();
    if let Err(error) = body::stream_part(disk, part, &mut range, take) {
        plane.suspect_part(slot, part, &error);
        // Whoever asked may have gone.
        pieces.blocking_send(Err(Status::data_loss(error.to_string()))).ok();
    }
}

fn not_stored() -> Status {
    Status::failed_precondition("this node does not store that slot")
}

#[allow(clippy::needless_pass_by_value)]
fn status(error: CodecError) -> Status {
    match &error {
        CodecError::Foreign(_) => Status::failed_precondition(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}

/// The full name of the service.
const SERVICE_NAME: &str = "synod.objects.v1.Objects";
/// Where everything is said.
pub(crate) const DELIVER_PATH: &str = "/synod.objects.v1.Objects/Deliver";
/// Where parts go.
pub(crate) const WRITE_PART_PATH: &str = "/synod.objects.v1.Objects/WritePart";
/// Where parts come from.
pub(crate) const READ_PART_PATH: &str = "/synod.objects.v1.Objects/ReadPart";
/// Longest message. A batch with the largest head fits.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;
const PIECES_MAX: usize = 4;
/// How long a part may stand still before it is given up.
const CHUNK_PATIENCE: Duration = Duration::from_secs(60);
