//! The settings of the grains of a node, and why they may not start.

use synod_core::grains::{
    ActivationConfig, ActivationConfigError, PidCacheConfig, PidCacheConfigError, RouterConfig,
    RouterConfigError,
};

use crate::remote::RegisterError;

/// Settings of the grains of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrainsConfig {
    /// How grains are placed and hosted.
    pub activation: ActivationConfig,
    /// How calls take their turn, end and try again.
    pub router: RouterConfig,
    /// How long and how many grains are remembered where they were found.
    pub cache: PidCacheConfig,
    /// Feeds the pauses between attempts. A fixed seed makes a run repeatable; `None`, the default, draws one.
    pub seed: Option<u64>,
}

impl GrainsConfig {
    /// Checks every part.
    ///
    /// # Errors
    /// The first setting out of its range, by name.
    pub fn validate(&self) -> Result<(), GrainsConfigError> {
        self.activation.validate()?;
        self.router.validate()?;
        Ok(self.cache.validate()?)
    }
}

/// A setting of the grains cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrainsConfigError {
    /// Of the hosting side.
    #[error(transparent)]
    Activation(#[from] ActivationConfigError),
    /// Of the calling side.
    #[error(transparent)]
    Router(#[from] RouterConfigError),
    /// Of the memory in between.
    #[error(transparent)]
    Cache(#[from] PidCacheConfigError),
}

/// The grains of a node did not start. Nothing runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrainsStartError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] GrainsConfigError),
    /// A name is taken.
    #[error(transparent)]
    Register(#[from] RegisterError),
}
