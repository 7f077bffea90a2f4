//! Two nodes in this process, and counters that both of them call.
//!
//! ```sh
//! cargo run -p counter
//! ```

use std::error::Error;

use counter::{AddRequest, Counter, ErrorReason, settle, start};
use synod::cluster::ClusterProvider;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "what it is for")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut first = start("first", None).await?;
    let mut second = start("second", Some(&first)).await?;
    settle(&[&first, &second]).await;

    for number in 0..6 {
        let name = format!("user:{number}");
        first.grain::<Counter>(&name)?.add(AddRequest { amount: 40 }).await?;
        let total = second.grain::<Counter>(&name)?.add(AddRequest { amount: 2 }).await?;
        println!("{name} lives on node {} and has counted to {}", total.node, total.value);
    }

    let refused = first.grain::<Counter>("user:0")?.add(AddRequest { amount: -43 }).await;
    if let Err(error) = refused
        && ErrorReason::Overdrawn.caused(&error)
    {
        println!("user:0 has not enough: {error}");
    }
    second.shutdown(true).await?;
    Ok(first.shutdown(true).await?)
}
