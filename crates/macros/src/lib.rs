//! `#[grain]`: a service as a Rust trait, and everything around it written by the compiler.
//!
//! Users find the attribute as `synod_cluster::grain`, or as `synod::grain` in the facade. What it writes refers to the
//! crate through which it was found; whoever exports it under yet another name adds `crate = "path::to::synod_cluster"`.
//!
//! ```text
//!   trait Counter ──► parse: Service, or errors where they belong ──► write: Counter, CounterGrain, CounterClient
//! ```

#![forbid(unsafe_code)]

mod parse;
mod write;

use proc_macro::TokenStream;
use syn::{ItemTrait, parse_macro_input};

use parse::{Options, Service};

/// Makes grains of a trait whose methods are their calls.
///
/// The trait lists what callers say: `async` methods of `&mut self` with one argument or none, and a
/// `Result<_, GrainError>`. From `trait Counter` it makes
///
/// - `Counter`, a type that stands for the service. `cluster.grain::<Counter>("user:123")` is a client of one grain,
///   `Counter::kind(|identity| …)` is what a node needs to host them, `Counter::KIND` is their name in the cluster.
/// - `CounterGrain`, the trait to implement. A type and a trait cannot share a name, hence the suffix. Its methods are
///   those of `Counter` with a `&mut GrainContext` before the argument, and are implemented as plain `async fn`. The
///   methods `activate`, `deactivate`, `timer` and `receive` of `Grain` are there too, and do nothing unless written.
/// - `CounterClient`, with the same methods on `&self`, which end in a `CallError` when they fail, and with
///   `with_timeout`, `with_retry`, `identity` and `grain_ref`.
///
/// # What travels
///
/// A method is called by its position in the trait, from 0, as `protoc-gen-go-grain` does by the position in the
/// service. So methods are added at the end, and neither moved nor removed, while nodes of two versions run. Arguments
/// and results are protobuf messages (`prost::Message` and `prost::Name`), as they are; no argument is
/// `google.protobuf.Empty`, and `()` as a result too. Go nodes host and call such grains.
///
/// A position that the grain does not have is answered with `UNIMPLEMENTED`, an argument that cannot be decoded with
/// `INVALID_ARGUMENT` and the name of the expected type as the detail `argument`.
///
/// # Options
///
/// - `#[grain(kind = "Calculator")]`: the name in the cluster. Default the name of the trait.
/// - `#[grain(serde)]`: arguments and results are whatever serde can write as JSON. Only for grains between Rust nodes.
/// - `#[grain(crate = "path::to::synod_cluster")]`: where the written code finds `synod-cluster`.
#[proc_macro_attribute]
pub fn grain(options: TokenStream, service: TokenStream) -> TokenStream {
    expand(options, service, "::synod_cluster")
}

/// The same for users of the facade, which exports it as `synod::grain`.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn grain_of_facade(options: TokenStream, service: TokenStream) -> TokenStream {
    expand(options, service, "::synod::cluster")
}

fn expand(options: TokenStream, service: TokenStream, cluster: &str) -> TokenStream {
    let mut parsed = Options::default();
    let parser = syn::meta::parser(|meta| parsed.read(&meta));
    parse_macro_input!(options with parser);
    let item = parse_macro_input!(service as ItemTrait);
    let written = Service::new(item, parsed, cluster).map(|service| write::write(&service));
    written.unwrap_or_else(syn::Error::into_compile_error).into()
}
