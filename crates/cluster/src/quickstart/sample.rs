//! The grain and the actor of the tour: the least that one can write.

use std::sync::Arc;

use bytes::Bytes;
use synod_core::grains::GrainSnapshot;

use crate::grains::{Grain, GrainContext, GrainError};
use crate::remote::{Actor, ActorContext, Message};

/// A grain that adds numbers up.
///
/// [`COUNTER_ADD`] takes a `u64` and answers the sum; [`COUNTER_WHERE`] answers the name of the node that hosts it.
#[derive(Debug)]
pub struct Counter {
    node: String,
    sum: u64,
}

impl Counter {
    /// A counter at zero, hosted by `node`.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned(), sum: 0 }
    }
}

impl Grain for Counter {
    async fn call(
        &mut self,
        _: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Result<Message, GrainError> {
        match method {
            COUNTER_ADD => {
                let number = <u64 as prost::Message>::decode(argument)
                    .map_err(|error| GrainError::invalid_argument(error.to_string()))?;
                self.sum = self.sum.saturating_add(number);
                Ok(Message::new(&self.sum))
            }
            COUNTER_WHERE => Ok(Message::new(&self.node)),
            other => Err(GrainError::unimplemented(other)),
        }
    }

    async fn activate(
        &mut self,
        _: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        self.sum = snapshot.map_or(0, |snapshot| snapshot.version);
        Ok(())
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.sum, bytes: Arc::from([]) })
    }
}

/// An actor that greets whoever tells it a name.
#[derive(Debug)]
pub struct Greeter {
    node: String,
}

impl Greeter {
    /// A greeter that lives on `node`.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { node: node.to_owned() }
    }

    /// What the greeter of `node` says to `name`.
    pub(super) fn greeting(node: &str, name: &str) -> String {
        format!("hello {name}, this is {node}")
    }
}

impl Actor for Greeter {
    async fn receive(&mut self, context: &mut ActorContext, message: Message) {
        match message.decode::<String>() {
            // Who asked may be gone; then nobody needs the answer.
            Ok(name) => drop(context.respond(Message::new(&Self::greeting(&self.node, &name)))),
            Err(error) => tracing::debug!(%error, "a greeter was told something that is no name"),
        }
    }
}

/// The kind of [`Counter`]s.
pub const COUNTER_KIND: &str = "Counter";
/// Adds a number.
pub const COUNTER_ADD: i32 = 0;
/// Says which node hosts the counter.
pub const COUNTER_WHERE: i32 = 1;
