//! Frames as gRPC messages, without a detour through protobuf types.
//!
//! The usual codec would decode a frame before its lists were counted, and a hostile frame of a few megabytes would
//! cost gigabytes. So gRPC only carries bytes here, and [`Frame::decode`](synod_wire::Frame::decode) is the way in.

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameCodec;

impl Codec for FrameCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for FrameCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, frame: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(frame.len());
        buffer.put(frame);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

impl Decoder for FrameCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

/// What a stream reserves at a time.
const BUFFER_BYTES: usize = 64 * 1024;
/// So much is handed to the connection at once.
const YIELD_BYTES: usize = 256 * 1024;
