//! Work that blocks, away from the tasks that must not.

use std::io;

/// Does something that blocks. It is done to its end even if nobody waits for it any more.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    // Where time is simulated, other threads would bring an order of their own, and nobody else has to wait.
    #[cfg(test)]
    if crate::simulation::is_running() {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
