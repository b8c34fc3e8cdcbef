//! Relay: `forge-bridge relay <socket>`. Connects its stdin and stdout to a Unix socket, so that a program that
//! starts servers, as an agent starts its MCP servers, reaches a server inside an adapter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use super::secrecy;

/// Runs until the other end of the socket closes. `args` are those after `relay`.
pub fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    secrecy::close_supervisor();
    let (Some(path), None) = (args.next(), args.next()) else {
        tell("usage: forge-bridge relay <socket>");
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
    // Unbuffered: each message is forwarded as it arrives.
    let mut stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    thread::spawn(move || {
        // The other end sees the shutdown, whatever the result.
        let _ = pass(&mut stdin, &mut sending);
        let _ = sending.shutdown(Shutdown::Write);
    });
    pass(&mut socket, &mut stdout)
}

/// `dyn` keeps `io::copy` from using the kernel's `splice`, which delays small messages.
fn pass(from: &mut dyn Read, to: &mut impl Write) -> io::Result<()> {
    io::copy(from, to).map(drop)
}

fn tell(line: &str) {
    // The parent can have closed stderr.
    let _ = writeln!(io::stderr(), "forge-bridge: {line}");
}
