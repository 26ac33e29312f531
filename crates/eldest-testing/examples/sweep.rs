//! Removes the containers, networks and volumes that killed tests have left behind.

use eldest_testing::docker::sweep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    for removed in sweep().await? {
        println!("removed {removed}");
    }
    Ok(())
}
