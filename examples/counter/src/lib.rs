//! Grains that count: the service of `proto/counter.proto`, and one way to host it.

use synod::cluster::grains::{GrainContext, GrainError};

/// What the build script made of `proto/counter.proto`.
pub mod generated {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/counter.rs"));
}

pub use generated::{AddRequest, Counter, CounterClient, CounterGrain, ErrorReason, Total};

/// A counter that forgets its total when it is unloaded.
#[derive(Debug)]
pub struct InMemory {
    total: i64,
    node: String,
}

impl InMemory {
    /// A counter at zero that lives on `node`.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self { total: 0, node: node.to_owned() }
    }
}

impl CounterGrain for InMemory {
    async fn add(&mut self, _: &mut GrainContext, request: AddRequest) -> Result<Total, GrainError> {
        let total = self.total.checked_add(request.amount);
        let total = total.ok_or_else(|| ErrorReason::TooMuch.error("the total would be too large"))?;
        if total < 0 {
            return Err(ErrorReason::Overdrawn.error(format!("the total would be {total}")));
        }
        self.total = total;
        Ok(Total { value: total, node: self.node.clone() })
    }

    async fn current(&mut self, _: &mut GrainContext) -> Result<Total, GrainError> {
        Ok(Total { value: self.total, node: self.node.clone() })
    }

    async fn reset(&mut self, _: &mut GrainContext) -> Result<(), GrainError> {
        self.total = 0;
        Ok(())
    }
}
