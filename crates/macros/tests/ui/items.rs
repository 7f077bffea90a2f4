use synod_macros::grain;

#[grain]
pub trait Items<T>: Clone {
    const LIMIT: u64;
    type Total;
    async fn add(&mut self, request: u64) -> Result<u64, GrainError>;
    async fn add(&mut self, request: String) -> Result<u64, GrainError>;
    async fn activate(&mut self) -> Result<u64, GrainError>;
    #[cfg(test)]
    async fn sometimes(&mut self) -> Result<u64, GrainError>;
}

fn main() {}
