//! A peer that a node connects to, and that answers as it likes.

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use prost::Message as _;
use synod_cluster::remote::Pid;
use synod_wire::remote::connect_request::ConnectionType;
use synod_wire::remote::{ConnectResponse, RemoteMessage, ServerConnection};
use synod_wire::{Dialect, Frame};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::node::in_time;

/// A listener whose streams are answered by the test.
pub(crate) struct RawServer {
    pub(crate) address: String,
    streams: mpsc::UnboundedReceiver<Incoming>,
    accepting: JoinHandle<()>,
}

/// A message as it came over the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Received {
    pub(crate) target: Pid,
    pub(crate) type_name: String,
    pub(crate) sender: Option<Pid>,
    pub(crate) payload: Bytes,
}

impl RawServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (sender, streams) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept(listener, sender));
        Self { address, streams, accepting }
    }

    pub(crate) fn pid(&self, id: &str) -> Pid {
        Pid::new(self.address.as_str(), id)
    }

    /// Takes no more connections. Those that stand remain.
    pub(crate) fn stop_listening(&self) {
        self.accepting.abort();
    }

    /// The next stream that a node opens, before anything was said.
    pub(crate) async fn incoming(&mut self) -> Incoming {
        in_time(self.streams.recv()).await.expect("the server runs")
    }

    /// The next connection of a node, after the handshakes of a Go node: its control stream and its user stream.
    pub(crate) async fn connection(&mut self) -> (RawCall, RawCall) {
        let control = self.incoming().await.shake_hands("").await;
        let user = self.incoming().await.shake_hands("").await;
        (control, user)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A stream that a node opened.
pub(crate) struct Incoming {
    request: RecvStream,
    respond: SendResponse<Bytes>,
    address: String,
}

impl Incoming {
    /// Reads the handshake and answers it, saying to run `runtime`.
    pub(crate) async fn shake_hands(self, runtime: &str) -> RawCall {
        let mut call = self.accept();
        let hello = call.frame().await.expect("a handshake");
        let Ok(Frame::Connect(ConnectionType::ServerConnection(connection))) = Frame::decode(hello) else {
            panic!("the first frame is no handshake of a server");
        };
        call.peer = Some(connection);
        let response = ConnectResponse {
            member_id: "raw#1".into(),
            blocked: false,
            runtime: runtime.to_owned(),
            call_schemas: Vec::new(),
        };
        call.send(&RemoteMessage::connected(response).expect("a name").encode_to_vec());
        call
    }

    /// Answers with headers only.
    pub(crate) fn accept(mut self) -> RawCall {
        let response = Response::builder().header("content-type", "application/grpc").body(());
        let answers =
            self.respond.send_response(response.expect("a response"), false).expect("the stream stands");
        let (request, address) = (self.request, self.address);
        RawCall { request, answers, unread: BytesMut::new(), peer: None, largest: 0, address }
    }
}

/// A stream that a node opened and that was accepted.
pub(crate) struct RawCall {
    request: RecvStream,
    answers: SendStream<Bytes>,
    unread: BytesMut,
    address: String,
    /// The largest frame so far, in bytes.
    pub(crate) largest: usize,
    /// What the node said in its handshake.
    pub(crate) peer: Option<ServerConnection>,
}

impl RawCall {
    /// The next frame, or nothing when the node has ended the stream.
    pub(crate) async fn frame(&mut self) -> Option<Bytes> {
        in_time(self.read_frame()).await
    }

    /// The messages of the next frame, and the dialect they were written in.
    pub(crate) async fn batch(&mut self) -> Option<(Vec<Received>, Option<Dialect>)> {
        let frame = self.frame().await?;
        let Ok(Frame::Batch(batch)) = Frame::decode(frame) else { panic!("no batch") };
        let messages = batch.envelopes(&self.address).map(|envelope| {
            let envelope = envelope.expect("a node writes good envelopes");
            Received {
                target: Pid::from(envelope.target),
                type_name: envelope.type_name.to_owned(),
                sender: envelope.sender.map(Pid::from),
                payload: envelope.payload.clone(),
            }
        });
        Some((messages.collect(), batch.dialect()))
    }

    /// The next `count` messages.
    pub(crate) async fn messages(&mut self, count: usize) -> Vec<Received> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.batch().await.expect("the node sends on").0);
        }
        all
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        let bytes = [&[0][..], &(frame.len() as u32).to_be_bytes(), frame].concat();
        self.answers.send_data(bytes.into(), false).ok();
    }

    /// Ends the stream with a grpc-status.
    pub(crate) fn end(mut self, status: i32) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.into());
        self.answers.send_trailers(trailers).ok();
    }

    async fn read_frame(&mut self) -> Option<Bytes> {
        loop {
            if self.unread.len() >= 5 {
                let length = u32::from_be_bytes([1, 2, 3, 4].map(|at| self.unread[at])) as usize;
                if self.unread.len() >= 5 + length {
                    self.largest = self.largest.max(length);
                    return Some(self.unread.split_to(5 + length).split_off(5).freeze());
                }
            }
            let data = self.request.data().await?.ok()?;
            self.request.flow_control().release_capacity(data.len()).expect("what was received");
            self.unread.extend_from_slice(&data);
        }
    }
}

async fn accept(listener: TcpListener, streams: mpsc::UnboundedSender<Incoming>) {
    let address = listener.local_addr().expect("an address").to_string();
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let (streams, address) = (streams.clone(), address.clone());
        tokio::spawn(async move {
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                let address = address.clone();
                streams.send(Incoming { request: request.into_body(), respond, address }).ok();
            }
        });
    }
}
