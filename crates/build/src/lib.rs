//! Grains from a `.proto` file, for build scripts: the same file from which `protoc-gen-go-grain` writes Go.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), synod_build::Error> {
//!     synod_build::compile(&["proto/counter.proto"], &["proto"])
//! }
//! ```
//!
//! ```text
//! // src/lib.rs, for a file of the package `shop`
//! include!(concat!(env!("OUT_DIR"), "/shop.rs"));
//! ```
//!
//! Messages are written by `prost-build`, so the crate that includes them depends on `prost` (and on `prost-types` if it
//! uses, say, timestamps). A service becomes a trait with `#[grain]` on it, which makes of `service Counter` the types
//! `Counter`, `CounterGrain` and `CounterClient`; the attribute says what they do. Neither `protoc` nor any plugin is
//! needed.
//!
//! ```text
//!   .proto ──protox──► descriptors ──check──► kinds, or an Error ──prost-build──► messages
//!                                                              └──write────────► #[grain] trait Counter { … }
//! ```
//!
//! # What is the same as in Go
//!
//! - The kind of the grains is the name of the service, without its package, spelt as `protoc-gen-go` spells it.
//! - A method is called by its position in the service, from 0.
//! - `google.protobuf.Empty` as an argument is no argument, and as a result `()`.
//! - An enum named `ErrorReason` lists reasons of errors: `ErrorReason::NotFound.error("…")` makes a `GrainError`, and
//!   `ErrorReason::NotFound.caused(&error)` says whether a call failed for it.
//! - `deprecated` is handed on to the compiler, and comments to the documentation.
//! - The method option `future` asks for a client method that does not wait. All of them are such here.
//!
//! # What is refused
//!
//! - Methods that stream. Go leaves them out without a word.
//! - A service without methods, and two services of one name in different packages: they would be one kind.
//! - The method option `reenterable`, as grains here handle one call at a time, unless
//!   [`Config::accept_reenterable`] says that this is well; and options of protoactor-go that are not known yet.
//!
//! Services of files that are only imported are left alone. A method whose name every grain or its client has already,
//! such as `Receive`, becomes `receive_`.

#![forbid(unsafe_code)]

mod check;
mod error;
mod write;

pub use error::{Error, MethodProblem, ServiceProblem};
pub use prost_build;

use std::path::{Path, PathBuf};

use protox::Compiler;

/// Writes Rust for `protos` into the directory that cargo gives build scripts, one file per package: `shop.rs` for the
/// package `shop`, `_.rs` for none. `includes` are the directories in which the files and their imports are found.
///
/// # Errors
/// Names the file, the service and the method that cannot be used, and why. Nothing was written.
pub fn compile(protos: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<(), Error> {
    Config::new().compile(protos, includes)
}

/// What [`compile`] does, with other settings.
#[derive(Debug)]
pub struct Config {
    prost: prost_build::Config,
    cluster: String,
    accepts_reenterable: bool,
}

impl Default for Config {
    fn default() -> Self {
        let mut prost = prost_build::Config::new();
        // The full name is what travels as an envelope's type name, and in the type URL of an `Any`.
        prost.enable_type_names().type_name_domain(["."], "type.googleapis.com");
        Self { prost, cluster: "::synod::cluster".to_owned(), accepts_reenterable: false }
    }
}

impl Config {
    /// Those of [`compile`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where to write. Default the `OUT_DIR` that cargo gives build scripts.
    #[must_use]
    pub fn out_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.prost.out_dir(directory);
        self
    }

    /// Where the written code finds `synod-cluster`, such as `::synod_cluster` in a crate that depends on that alone.
    /// Default `::synod::cluster`.
    #[must_use]
    pub fn cluster_path(mut self, path: impl Into<String>) -> Self {
        self.cluster = path.into();
        self
    }

    /// Takes methods with the option `reenterable` like all others. What travels is the same, so callers of Go grains
    /// want this. Those who host such a grain in Rust should know that it handles nothing else while such a method
    /// waits. Default refused.
    #[must_use]
    pub fn accept_reenterable(mut self) -> Self {
        self.accepts_reenterable = true;
        self
    }

    /// Anything else that `prost-build` can be told about messages and files. Its service generator is set later.
    #[must_use]
    pub fn with_prost(mut self, configure: impl FnOnce(&mut prost_build::Config)) -> Self {
        configure(&mut self.prost);
        self
    }

    /// Writes Rust for `protos`. See [`compile`].
    ///
    /// # Errors
    /// As those of [`compile`].
    pub fn compile(
        mut self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let mut compiler = Compiler::new(includes)?;
        compiler.include_source_info(true).include_imports(true).open_files(protos)?;
        let grains = check::check(&compiler, self.accepts_reenterable)?;
        let descriptors = compiler.file_descriptor_set();
        let writer = write::Writer::new(self.cluster, grains, &descriptors);
        self.prost.service_generator(Box::new(writer)).compile_fds(descriptors).map_err(Error::Write)?;
        rerun_if_changed(&compiler);
        Ok(())
    }
}

/// Tells cargo when to run the build script again. Without this it would do so for every file of the crate.
#[expect(clippy::print_stdout, reason = "the way to talk to cargo")]
fn rerun_if_changed(compiler: &Compiler) {
    // Files that come with the compiler have no path.
    for path in compiler.files().filter_map(|file| file.path()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
