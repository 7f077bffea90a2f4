//! Requests for entries: at the node that takes them, on the way, and at the primary that does them.
//!
//! A request goes to the primary of its slot, wherever that is. What was certainly not done is tried again, there or at the
//! next primary, as long as patience lasts. What may have been done is never tried again: a write that takes effect twice
//! could undo one that came between.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use synod_core::NodeId;
use synod_core::objects::{Condition, EntryAnswer, EntryError, EntryHead, EntryName, EntryOperation};
use synod_wire::objects as wire;
use tokio::sync::oneshot;
use tokio::time::Instant;
use wire::reply::Outcome;
use wire::request::Operation;

use super::codec::{
    malformed, read_condition, read_head, read_name, read_tag, write_condition, write_head, write_name,
    write_tag,
};
use super::contract::StoreError;
use super::list;
use super::plane::Plane;
use crate::codec::CodecError;

/// Does something with an entry, on whichever node is the primary of its slot.
pub(crate) async fn perform(
    plane: &Arc<Plane>,
    name: &EntryName,
    operation: EntryOperation,
    patience: Duration,
) -> Result<EntryAnswer, StoreError> {
    let deadline = Instant::now() + patience;
    let slot = plane.slot_of(name);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let primary = plane.registry().primary(slot);
        let attempt = match &primary {
            Some(node) if node == plane.own() => here(plane, name, operation.clone(), left).await,
            Some(node) => there(plane, node, name, &operation, left).await,
            None => Err(Failure::NotDone("the slot has no primary".into())),
        };
        match attempt {
            Ok(answer) => return Ok(answer),
            Err(Failure::MaybeDone) => return Err(StoreError::Indeterminate),
            Err(Failure::NotDone(reason)) => {
                if Instant::now() + RETRY_PAUSE >= deadline {
                    return Err(StoreError::Unavailable { reason: format!("slot {slot}: {reason}") });
                }
            }
        }
        // Nothing tells when a slot gets a primary that this node learns of by gossip.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Why an attempt gave no answer.
enum Failure {
    NotDone(String),
    MaybeDone,
}

async fn here(
    plane: &Arc<Plane>,
    name: &EntryName,
    operation: EntryOperation,
    patience: Duration,
) -> Result<EntryAnswer, Failure> {
    let (reply, answer) = oneshot::channel();
    plane.request(name.clone(), operation, patience, move |answered| drop(reply.send(answered)));
    match answer.await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(EntryError::Indeterminate)) | Err(_) => Err(Failure::MaybeDone),
        Ok(Err(error)) => Err(Failure::NotDone(error.to_string())),
    }
}

async fn there(
    plane: &Plane,
    node: &NodeId,
    name: &EntryName,
    operation: &EntryOperation,
    patience: Duration,
) -> Result<EntryAnswer, Failure> {
    let is_read = matches!(operation, EntryOperation::Read);
    let lost = |reason: &str| match is_read {
        true => Failure::NotDone(format!("{node} {reason}")),
        false => Failure::MaybeDone,
    };
    let Some((id, answer)) = plane.ask(node, write_operation(name, operation), patience) else {
        return Err(Failure::NotDone(format!("too much waits for {node}")));
    };
    // The primary answers by then, if only that time is up; a little later nothing will come.
    let reply = match tokio::time::timeout(patience + REPLY_GRACE, answer).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(_)) => return Err(lost("is out of reach")),
        Err(_) => {
            plane.give_up(id);
            return Err(lost("does not answer"));
        }
    };
    match read_outcome(reply) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failure)) => Err(failure),
        Err(error) => Err(lost(&format!("answers wrongly: {error}"))),
    }
}

/// Does what another node asks for a client of its own.
pub(crate) fn serve(plane: &Arc<Plane>, from: &NodeId, request: wire::Request) {
    let wire::Request { id, patience_ms, operation } = request;
    let patience = Duration::from_millis(patience_ms).min(PATIENCE_MAX);
    let (to, back) = (from.clone(), Arc::clone(plane));
    if let Some(Operation::List(query)) = operation {
        tokio::spawn(async move {
            let outcome = match list::list_here(&back, query, patience).await {
                Ok(page) => Outcome::Page(page),
                Err(reason) => failure(Reason::NotDone, &reason),
            };
            back.reply(&to, id, outcome);
        });
        return;
    }
    match operation.ok_or(CodecError::Missing("operation")).and_then(read_operation) {
        Ok((name, operation)) => plane.request(name, operation, patience, move |answer| {
            back.reply(&to, id, write_answer(answer));
        }),
        Err(error) => plane.reply(from, id, failure(Reason::NotDone, &error.to_string())),
    }
}

fn write_operation(name: &EntryName, operation: &EntryOperation) -> Operation {
    let write = |condition: &Condition, is_delete, etag: &str, content: &Bytes| {
        Operation::Write(wire::request::Write {
            name: write_name(name),
            condition: write_condition(condition),
            is_delete,
            etag: etag.to_owned(),
            content: content.clone(),
        })
    };
    match operation {
        EntryOperation::Read => Operation::Read(write_name(name)),
        EntryOperation::Write { condition, etag, content } => write(condition, false, etag, content),
        EntryOperation::Delete { condition, content } => write(condition, true, "", content),
    }
}

fn read_operation(operation: Operation) -> Result<(EntryName, EntryOperation), CodecError> {
    Ok(match operation {
        Operation::Read(name) => (read_name(&name)?, EntryOperation::Read),
        Operation::Write(write) => {
            let name = read_name(&write.name)?;
            let condition = read_condition(write.condition)?;
            let content = write.content;
            let operation = match write.is_delete {
                true => EntryOperation::Delete { condition, content },
                false => EntryOperation::Write { condition, etag: write.etag.into(), content },
            };
            (name, operation)
        }
        Operation::List(_) => return Err(malformed("operation", "a listing is for no entry".to_owned())),
    })
}

fn write_answer(answer: Result<EntryAnswer, EntryError>) -> Outcome {
    let found = |head: Option<EntryHead>| wire::reply::Found { head: head.map(write_head) };
    match answer {
        Ok(EntryAnswer::Found(head)) => Outcome::Found(found(head)),
        Ok(EntryAnswer::Written(tag)) => Outcome::Done(wire::reply::Done { tag: Some(write_tag(tag)) }),
        Ok(EntryAnswer::NothingDeleted | EntryAnswer::Settled) => {
            Outcome::Done(wire::reply::Done { tag: None })
        }
        Ok(EntryAnswer::Refused(head)) => Outcome::Refused(found(head)),
        Err(EntryError::Indeterminate) => failure(Reason::MaybeDone, ""),
        Err(error) => failure(Reason::NotDone, &error.to_string()),
    }
}

fn read_outcome(reply: wire::Reply) -> Result<Result<EntryAnswer, Failure>, CodecError> {
    let head = |found: wire::reply::Found| found.head.map(read_head).transpose();
    Ok(Ok(match reply.outcome.ok_or(CodecError::Missing("outcome"))? {
        Outcome::Found(found) => EntryAnswer::Found(head(found)?),
        Outcome::Refused(found) => EntryAnswer::Refused(head(found)?),
        Outcome::Done(wire::reply::Done { tag: None }) => EntryAnswer::NothingDeleted,
        Outcome::Done(wire::reply::Done { tag }) => EntryAnswer::Written(read_tag(tag)?),
        Outcome::Page(_) => return Err(malformed("outcome", "a page is for no entry".to_owned())),
        Outcome::Failure(failure) if failure.reason == Reason::MaybeDone as u32 => {
            return Ok(Err(Failure::MaybeDone));
        }
        Outcome::Failure(failure) => return Ok(Err(Failure::NotDone(failure.text))),
    }))
}

/// How a failure travels.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    NotDone = 1,
    MaybeDone = 2,
}

fn failure(reason: Reason, text: &str) -> Outcome {
    Outcome::Failure(wire::reply::Failure { reason: reason as u32, text: text.to_owned() })
}

/// How long a request may wait, at most.
pub(crate) const PATIENCE_MAX: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How much longer than its patience a request waits for a reply that is on its way.
const REPLY_GRACE: Duration = Duration::from_millis(500);
