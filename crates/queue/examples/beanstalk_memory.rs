//! Serves beanstalkd's clients from memory, without a cluster: `beanstalk_memory 127.0.0.1:11300`.

use std::error::Error;
use std::net::SocketAddr;

use synod_core::jobs::JobLimits;
use synod_queue::beanstalk::{BeanstalkConfig, BeanstalkServer};
use synod_queue::memory::MemoryQueue;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("the address to listen at is missing")?;
    let address: SocketAddr = address.parse()?;
    // As much as beanstalkd takes.
    let limits = JobLimits { body_bytes_max: 65_535, ..JobLimits::default() };
    let server =
        BeanstalkServer::bind(address, BeanstalkConfig::default(), MemoryQueue::new(limits)?).await?;
    tracing::info!(address = %server.local_addr(), "listening");
    std::future::pending::<()>().await;
    server.stop().await;
    Ok(())
}
