//! `forg-conformance`: runs `forge-bridge conformance` of the program beside it, with the same arguments.

#[path = "../launcher.rs"]
mod launcher;

fn main() -> std::process::ExitCode {
    launcher::run("conformance")
}
