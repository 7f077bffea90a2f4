//! Services: grains whose calls have names and types.
//!
//! A service is a trait with `#[grain]` on it. The attribute writes a [`GrainService`], which says how a grain by its name
//! becomes a client with methods, and the way from the position of a call to the method that answers it.

use super::GrainRef;

/// A service of grains. `#[grain]` implements it; there is no need to do so by hand.
pub trait GrainService {
    /// The kind of its grains, the same on all nodes.
    const KIND: &'static str;

    /// What calls one of them.
    type Client;

    /// A client for `grain`, which is of this kind.
    fn client(grain: GrainRef) -> Self::Client;
}

/// What the code written by `#[grain]` is made of. Not for use by hand: it changes with the attribute.
#[doc(hidden)]
pub mod generated {
    pub use bytes::Bytes;

    /// Messages as they are: whoever has the same `.proto` file understands them, in any language.
    pub mod protobuf {
        use bytes::Bytes;
        use prost::Name;

        use crate::grains::{CallError, GrainError, GrainRef};
        use crate::remote::Message;

        /// What a call of such a service carries.
        #[diagnostic::on_unimplemented(
            message = "`{Self}` is no protobuf message with a name, so no grain can be sent it",
            label = "not a `prost::Message` with a `prost::Name`",
            note = "prost-build writes both with `enable_type_names`; `#[grain(serde)]` takes what serde takes"
        )]
        pub trait Carried: prost::Message + Name + Default + 'static {}

        impl<M: prost::Message + Name + Default + 'static> Carried for M {}

        pub async fn call<A: Carried, R: Carried>(
            grain: &GrainRef,
            method: i32,
            argument: &A,
        ) -> Result<R, CallError> {
            grain.call(method, argument).await
        }

        pub fn argument<A: Carried>(bytes: Bytes) -> Result<A, GrainError> {
            A::decode(bytes).map_err(|error| {
                GrainError::invalid_argument(error.to_string()).with("argument", A::full_name())
            })
        }

        pub fn reply<R: Carried>(reply: &R) -> Result<Message, GrainError> {
            Ok(Message::new(reply))
        }
    }

    /// Anything that serde can write as JSON, in an envelope that only nodes like this one have.
    pub mod json {
        use bytes::Bytes;
        use prost::{Message as _, Name};
        use serde::Serialize;
        use serde::de::DeserializeOwned;

        use crate::grains::{CallError, GrainError, GrainRef};
        use crate::remote::Message;

        /// What a call of such a service carries.
        #[diagnostic::on_unimplemented(
            message = "`{Self}` cannot be written and read by serde, so no grain can be sent it",
            label = "not both `Serialize` and `DeserializeOwned`"
        )]
        pub trait Carried: Serialize + DeserializeOwned {}

        impl<T: Serialize + DeserializeOwned> Carried for T {}

        pub async fn call<A: Carried, R: Carried>(
            grain: &GrainRef,
            method: i32,
            argument: &A,
        ) -> Result<R, CallError> {
            let argument = Json::write(argument).map_err(|error| grain.unwritable(error.to_string()))?;
            let read = |answer: Message| {
                let answer: Json = answer.decode().map_err(|error| error.to_string())?;
                serde_json::from_slice(&answer.text).map_err(|error| error.to_string())
            };
            grain.call_as(method, argument.encode_to_vec().into(), read).await
        }

        pub fn argument<A: Carried>(bytes: Bytes) -> Result<A, GrainError> {
            let invalid = |problem: String| {
                GrainError::invalid_argument(problem).with("argument", std::any::type_name::<A>())
            };
            let envelope = Json::decode(bytes).map_err(|error| invalid(error.to_string()))?;
            serde_json::from_slice(&envelope.text).map_err(|error| invalid(error.to_string()))
        }

        pub fn reply<R: Carried>(reply: &R) -> Result<Message, GrainError> {
            let reply = Json::write(reply).map_err(|error| {
                GrainError::internal(format!("the grain's answer cannot be written: {error}"))
            })?;
            Ok(Message::new(&reply))
        }

        /// The envelope.
        #[derive(Clone, PartialEq, Eq, prost::Message)]
        struct Json {
            #[prost(bytes = "bytes", tag = "1")]
            text: Bytes,
        }

        impl Json {
            fn write(content: &impl Serialize) -> Result<Self, serde_json::Error> {
                Ok(Self { text: serde_json::to_vec(content)?.into() })
            }
        }

        impl Name for Json {
            const PACKAGE: &'static str = "synod.grains";
            const NAME: &'static str = "Json";
        }
    }
}
