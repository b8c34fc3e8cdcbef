//! Runs the fake endpoints as a program, for measurements and manual tests: prints their addresses, one per line, and
//! exits when stdin closes.

use std::io::Write as _;

use forge_test_model::Model;
use forge_test_model::gloo::Gloo;
use tokio::runtime::Builder;

fn main() -> std::io::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (model, gloo) = runtime.block_on(async { (Model::start().await, Gloo::start().await) });
    let mut stdout = std::io::stdout();
    writeln!(stdout, "model {}\ngloo {}", model.url(), gloo.url())?;
    stdout.flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
