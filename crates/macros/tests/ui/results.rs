use synod_macros::grain;

#[grain]
pub trait Results {
    async fn none(&mut self, request: u64);
    async fn bare(&mut self, request: u64) -> u64;
    async fn other_error(&mut self, request: u64) -> Result<u64, String>;
    async fn alias(&mut self, request: u64) -> Result<u64>;
    async fn stream(&mut self, request: u64) -> impl Stream<Item = u64>;
    async fn stream_inside(&mut self, request: u64) -> Result<impl Stream<Item = u64>, GrainError>;
    async fn streamed_argument(&mut self, requests: impl Stream<Item = u64>) -> Result<u64, GrainError>;
}

fn main() {}
