use synod_macros::grain;

#[grain]
pub trait Signatures {
    fn not_async(&mut self, request: u64) -> Result<u64, GrainError>;
    async fn shared(&self, request: u64) -> Result<u64, GrainError>;
    async fn no_receiver(request: u64) -> Result<u64, GrainError>;
    async fn nothing_at_all() -> Result<u64, GrainError>;
    async fn too_many(&mut self, first: u64, second: u64) -> Result<u64, GrainError>;
    async fn generic<T>(&mut self, request: T) -> Result<u64, GrainError>;
    async fn body(&mut self, request: u64) -> Result<u64, GrainError> {
        Ok(request)
    }
    async fn borrowed(&mut self, request: &str) -> Result<u64, GrainError>;
    async fn pattern(&mut self, (a, b): Pair) -> Result<u64, GrainError>;
}

fn main() {}
