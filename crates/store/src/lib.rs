//! The object store of synod. So far only its [`hints`]: what its nodes tell each other without promising anything.

#![forbid(unsafe_code)]

pub mod hints;
