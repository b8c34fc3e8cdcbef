//! Launcher of a command that has a name of its own: runs this subcommand of the `forge-bridge` beside it, with the same
//! arguments.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

#[expect(
    clippy::print_stderr,
    reason = "there is no other place for its only error"
)]
pub(crate) fn run(subcommand: &str) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(own) => own.with_file_name("forge-bridge"),
        Err(_) => "forge-bridge".into(),
    };
    let arguments = std::env::args_os().skip(1);
    let error = Command::new(&program)
        .arg(subcommand)
        .args(arguments)
        .exec();
    eprintln!("cannot run {}: {error}", program.display());
    ExitCode::FAILURE
}
