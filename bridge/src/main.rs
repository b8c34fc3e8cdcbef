use std::process::ExitCode;

fn main() -> ExitCode {
    forge_bridge::process::exec::run(std::env::args_os().skip(2))
}
