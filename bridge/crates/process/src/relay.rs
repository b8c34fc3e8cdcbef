//! The relay: `forge-bridge relay <socket>`. It joins its stdin and stdout with a Unix socket, so that a
//! program that starts servers, such as an agent its MCP servers, reaches one inside an adapter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

/// Runs until the socket's other end closes. `args` are those behind `relay`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(path), None) = (args.next(), args.next()) else {
        tell("wanted: forge-bridge relay <socket>");
        return ExitCode::from(2);
    };
    match join(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("cannot relay to {}: {error}", path.display()));
            ExitCode::FAILURE
        }
    }
}

fn join(path: &OsString) -> io::Result<()> {
    let mut socket = UnixStream::connect(path)?;
    let mut sending = socket.try_clone()?;
    // Unbuffered: each message counts when it is there.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    thread::spawn(move || {
        // Whoever reads the other end sees how it ended.
        let _ = pass(&mut stdin, &mut sending);
        let _ = sending.shutdown(Shutdown::Write);
    });
    pass(&mut socket, &mut stdout)
}

/// As `dyn`, so that it is not left to the kernel's `splice`, which holds small messages back.
fn pass(from: &mut dyn Read, to: &mut impl Write) -> io::Result<()> {
    io::copy(from, to).map(drop)
}

fn tell(line: &str) {
    // Who started it keeps its stderr or not.
    let _ = writeln!(io::stderr(), "forge-bridge: {line}");
}
