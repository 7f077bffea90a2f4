use synod_macros::grain;

#[grain(name = "Counter")]
pub trait UnknownOption {}

#[grain(kind = "a/b")]
pub trait BadKind {}

#[grain]
pub struct NotATrait;

fn main() {}
