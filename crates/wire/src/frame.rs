//! Frames: the unit in which a connection hands over bytes.
//!
//! A stream begins with a handshake, in which the opener says who it is and the other side answers once. After that the
//! opener sends batches, and the other side may say that it shuts down. [`Frame::decode`] is the only way in: it looks
//! at the size, then counts what is inside, and only then lets a decoder allocate.
//!
//! A transport must hand in the raw bytes. A gRPC codec that decodes [`RemoteMessage`] by itself has spent the memory
//! before any bound here is looked at.

use std::ops::Range;

use bytes::Bytes;
use prost::Message;

use crate::batch::ReceivedBatch;
use crate::dialect::DialectError;
use crate::limits::{
    BATCH_ENVELOPES_MAX, Counted, FRAME_BYTES_RECEIVED_MAX, FRAME_BYTES_SENT_MAX, Text, TextFault,
};
use crate::remote::connect_request::ConnectionType;
use crate::remote::remote_message::MessageType;
use crate::remote::{
    ConnectRequest, ConnectResponse, DisconnectRequest, MessageBatch, RemoteMessage, ServerConnection,
};
use crate::scan::{self, Fields, Inside, ScanError, Shape, Value};

/// A frame that a peer sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Messages for actors.
    Batch(ReceivedBatch),
    /// The peer opens a stream and says who it is.
    Connect(ConnectionType),
    /// The peer says who it is after this node opened a stream.
    Connected(ConnectResponse),
    /// The peer shuts down.
    Disconnect,
}

impl Frame {
    /// Reads a frame. Payloads of a batch remain slices of `bytes`, so keeping one keeps the whole frame in memory.
    ///
    /// # Errors
    /// [`FrameError`] says what the peer sent instead of a frame.
    pub fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        if bytes.len() > FRAME_BYTES_RECEIVED_MAX {
            return Err(FrameError::TooLarge { bytes: bytes.len(), max: FRAME_BYTES_RECEIVED_MAX });
        }
        let batch = only_batch(&bytes).and_then(|range| ReceivedBatch::read(&bytes, range));
        if let Some(batch) = batch {
            return Ok(Self::Batch(batch));
        }
        // It is no batch, or not one in its usual form; from here on care counts, not speed.
        scan::check(&bytes, &REMOTE_MESSAGE)?;
        match RemoteMessage::decode(bytes)?.message_type {
            Some(MessageType::MessageBatch(batch)) => {
                ReceivedBatch::from_decoded(&batch)?.map(Self::Batch).ok_or(FrameError::Malformed)
            }
            Some(MessageType::ConnectRequest(ConnectRequest { connection_type: Some(connection) })) => {
                check_connection(&connection)?;
                Ok(Self::Connect(connection))
            }
            Some(MessageType::ConnectRequest(_)) => Err(FrameError::Anonymous),
            Some(MessageType::ConnectResponse(response)) => {
                Text::MemberId.check(&response.member_id)?;
                Ok(Self::Connected(response))
            }
            Some(MessageType::DisconnectRequest(_)) => Ok(Self::Disconnect),
            None => Err(FrameError::Unknown),
        }
    }
}

impl RemoteMessage {
    /// The first frame on a stream that this node opens.
    ///
    /// # Errors
    /// [`FrameError`] when a name is empty or too long, or the block list is; the frame must not be sent.
    pub fn connect(connection: ServerConnection) -> Result<Self, FrameError> {
        let connection = ConnectionType::ServerConnection(connection);
        check_connection(&connection)?;
        Ok(Self::from(MessageType::ConnectRequest(ConnectRequest { connection_type: Some(connection) })))
    }

    /// The answer to the first frame on a stream that a peer opened.
    ///
    /// # Errors
    /// [`FrameError`] when the name is empty or too long; the frame must not be sent.
    pub fn connected(response: ConnectResponse) -> Result<Self, FrameError> {
        Text::MemberId.check(&response.member_id)?;
        Ok(Self::from(MessageType::ConnectResponse(response)))
    }

    /// The last frame on a stream that a peer opened.
    #[must_use]
    pub fn disconnect() -> Self {
        Self::from(MessageType::DisconnectRequest(DisconnectRequest {}))
    }
}

impl From<MessageType> for RemoteMessage {
    fn from(message: MessageType) -> Self {
        Self { message_type: Some(message) }
    }
}

impl From<MessageBatch> for RemoteMessage {
    fn from(batch: MessageBatch) -> Self {
        Self::from(MessageType::MessageBatch(batch))
    }
}

/// What was sent is no frame. It was ignored as a whole.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// More bytes than a frame may have.
    #[error("the peer sent a frame of {bytes} bytes, where at most {max} are allowed; the frame was ignored")]
    TooLarge {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// More elements than a frame may have.
    #[error("the peer sent a frame with more than {max} {what}; the frame was ignored")]
    TooMany {
        /// Of what.
        what: Counted,
        /// How many there may be.
        max: usize,
    },
    /// The bytes are not a protobuf message.
    #[error("the peer sent a frame that is not a protobuf message; the frame was ignored")]
    Malformed,
    /// The bytes are a protobuf message, but not of this type.
    #[error("the peer sent a frame that cannot be decoded; the frame was ignored")]
    Undecodable(#[from] prost::DecodeError),
    /// The frame is of a kind that this version does not know, or of none.
    #[error("the peer sent a frame of no known kind; the frame was ignored")]
    Unknown,
    /// The peer did not say what kind of peer it is.
    #[error("the peer opened a stream without saying who it is; the stream was not accepted")]
    Anonymous,
    /// A name in a handshake is no name.
    #[error("the handshake has {0}; the stream was not accepted")]
    Handshake(#[from] TextFault),
    /// The targets of a batch cannot be understood.
    #[error(transparent)]
    Dialect(#[from] DialectError),
}

impl From<ScanError> for FrameError {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::TooMany(what) => Self::TooMany { what, max: what.max() },
            ScanError::Malformed => Self::Malformed,
        }
    }
}

/// Where the batch of a frame is that has nothing else that is known, and has it in one piece.
fn only_batch(frame: &[u8]) -> Option<Range<usize>> {
    let mut batch = None;
    let mut fields = Fields(frame);
    while let Some(field) = fields.next() {
        match field? {
            (1, Value::Delimited(content)) if batch.is_none() => {
                let end = frame.len() - fields.0.len();
                batch = Some(end - content.len()..end);
            }
            (1..=4, _) => return None,
            _ => {}
        }
    }
    batch
}

fn check_connection(connection: &ConnectionType) -> Result<(), FrameError> {
    match connection {
        ConnectionType::ClientConnection(client) => Text::MemberId.check(&client.member_id)?,
        ConnectionType::ServerConnection(server) => {
            Text::MemberId.check(&server.member_id)?;
            Text::MemberAddress.check(&server.address)?;
            let blocked = Counted::BlockedMembers;
            if server.block_list.len() > blocked.max() {
                return Err(FrameError::TooMany { what: blocked, max: blocked.max() });
            }
            for member in &server.block_list {
                Text::MemberId.check(member)?;
            }
        }
    }
    Ok(())
}

const REMOTE_MESSAGE: Shape = Shape(&[Inside::one(1, &MESSAGE_BATCH), Inside::one(2, &CONNECT)]);
const MESSAGE_BATCH: Shape = Shape(&[
    Inside::list(1, Counted::TypeNames),
    Inside::list(2, Counted::Targets),
    Inside::list_of(3, Counted::Envelopes, &ENVELOPE),
    Inside::list(4, Counted::Senders),
]);
const ENVELOPE: Shape = Shape(&[Inside::one(6, &HEADER)]);
const HEADER: Shape = Shape(&[Inside::list(1, Counted::Headers)]);
const CONNECT: Shape = Shape(&[Inside::one(2, &SERVER)]);
const SERVER: Shape = Shape(&[Inside::list(3, Counted::BlockedMembers)]);

// Whatever is sent must be readable by the same rules.
const _: () = assert!(FRAME_BYTES_SENT_MAX <= FRAME_BYTES_RECEIVED_MAX);
const _: () = assert!(crate::limits::BATCH_MESSAGES_SENT_MAX <= BATCH_ENVELOPES_MAX);
