//! A peer that opens streams to a node and says whatever it likes.

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message as _;
use synod_wire::Frame;
use synod_wire::remote::{ConnectResponse, RemoteMessage, ServerConnection};
use tokio::net::TcpStream;

use super::node::in_time;

pub(crate) const RECEIVE: &str = "/remote.Remoting/Receive";

/// One connection to a node.
pub(crate) struct RawClient {
    requests: SendRequest<Bytes>,
}

/// What came back on a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Frame(Bytes),
    /// The stream ended with this grpc-status.
    Status(i32),
    /// The stream or its connection broke without a status.
    Broken,
}

impl RawClient {
    pub(crate) async fn connect(address: &str) -> Self {
        let stream = in_time(TcpStream::connect(address)).await.expect("the node listens");
        let (requests, connection) = in_time(h2::client::handshake(stream)).await.expect("HTTP/2");
        tokio::spawn(async move { connection.await.ok() });
        Self { requests }
    }

    /// Opens a stream to the method that nodes serve.
    pub(crate) async fn open(&self) -> RawStream {
        self.call(RECEIVE, &[]).await
    }

    /// Opens a stream to any method, with headers beyond the usual.
    pub(crate) async fn call(&self, path: &str, headers: &[(&str, &str)]) -> RawStream {
        let mut request = Request::post(format!("http://node{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut requests = in_time(self.requests.clone().ready()).await.expect("the connection stands");
        let (response, frames) =
            requests.send_request(request.body(()).expect("a request"), false).expect("a stream");
        RawStream { frames, response: Some(response), answers: None, unread: BytesMut::new(), ended: None }
    }

    /// Opens a stream and says to be `member` at `address`, as a Go node would.
    pub(crate) async fn greeted(&self, member: &str, address: &str) -> RawStream {
        let mut stream = self.open().await;
        stream.send(&hello(member, address));
        stream.greeting().await;
        stream
    }
}

/// One stream to a node.
pub(crate) struct RawStream {
    frames: SendStream<Bytes>,
    response: Option<ResponseFuture>,
    answers: Option<RecvStream>,
    unread: BytesMut,
    ended: Option<i32>,
}

impl RawStream {
    /// Sends one whole gRPC message. It is queued without bound, whether the node reads or not.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.send_flagged(0, frame);
    }

    /// The same with any compression flag.
    pub(crate) fn send_flagged(&mut self, flag: u8, frame: &[u8]) {
        let mut bytes = vec![flag];
        bytes.extend((frame.len() as u32).to_be_bytes());
        bytes.extend(frame);
        self.send_bytes(bytes);
    }

    /// Announces a message of `length` bytes and sends none of them.
    pub(crate) fn announce(&mut self, length: u32) {
        self.send_bytes([&[0][..], &length.to_be_bytes()].concat());
    }

    /// Sends bytes as they are. A node that has ended the stream does not get them.
    pub(crate) fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.frames.send_data(bytes.into(), false).ok();
    }

    /// Says that nothing more will come.
    pub(crate) fn half_close(&mut self) {
        self.frames.send_data(Bytes::new(), true).ok();
    }

    /// The next thing that comes back.
    pub(crate) async fn answer(&mut self) -> Answer {
        in_time(self.read_answer()).await
    }

    /// The answer to the handshake.
    pub(crate) async fn greeting(&mut self) -> ConnectResponse {
        match self.answer().await {
            Answer::Frame(frame) => match Frame::decode(frame) {
                Ok(Frame::Connected(response)) => response,
                other => panic!("no ConnectResponse: {other:?}"),
            },
            other => panic!("no ConnectResponse: {other:?}"),
        }
    }

    async fn read_answer(&mut self) -> Answer {
        if let Some(response) = self.response.take() {
            let Ok(response) = response.await else { return Answer::Broken };
            self.ended = status(response.headers());
            self.answers = Some(response.into_body());
        }
        let Some(answers) = &mut self.answers else { return Answer::Broken };
        loop {
            if self.unread.len() >= 5 {
                let length = u32::from_be_bytes([1, 2, 3, 4].map(|at| self.unread[at])) as usize;
                if self.unread.len() >= 5 + length {
                    return Answer::Frame(self.unread.split_to(5 + length).split_off(5).freeze());
                }
            }
            match answers.data().await {
                Some(Ok(data)) => {
                    answers.flow_control().release_capacity(data.len()).expect("what was received");
                    self.unread.extend_from_slice(&data);
                }
                Some(Err(_)) => return Answer::Broken,
                None => {
                    let trailers = answers.trailers().await.ok().flatten();
                    let ended = self.ended.or_else(|| trailers.as_ref().and_then(status));
                    return ended.map_or(Answer::Broken, Answer::Status);
                }
            }
        }
    }
}

fn status(headers: &http::HeaderMap) -> Option<i32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// The handshake of a Go node.
pub(crate) fn hello(member: &str, address: &str) -> Vec<u8> {
    let connection = ServerConnection {
        member_id: member.to_owned(),
        address: address.to_owned(),
        ..ServerConnection::default()
    };
    RemoteMessage::connect(connection).expect("names").encode_to_vec()
}
