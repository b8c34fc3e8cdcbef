//! Conditions that slow a PostgreSQL server down: a distance, work that waits in its tables, an old snapshot.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio_postgres::{Client, Config, config::Host};

/// Dispatches of an adapter that is away, as a bridge accepts them.
const WAITING: &str =
    "WITH new AS (
       INSERT INTO dispatch (id, phase, provider, pinned, priority, attempts, epoch, events, cancel_requested, start_by)
       SELECT gen_random_uuid(), 0, 'away', true, 0, 0, 0, 1, false, 9223372036854775807 FROM generate_series(1, $1::int8)
       RETURNING id)
     INSERT INTO body (id, task_id, agent_id, run_id, trace_id, key, fingerprint, accepted_at, routing, request)
     SELECT id, uuid_send(id), 'bench', 'run-waiting', uuid_send(id), uuid_send(id), uuid_send(id), 1, '{}', '{}' FROM new";
/// Rows of one statement.
const STEP: i64 = 100_000;
const PIECE_BYTES: usize = 64 << 10;

pub(crate) async fn add_waiting(client: &Client, count: usize) -> anyhow::Result<()> {
    let mut left = i64::try_from(count)?;
    while left > 0 {
        client.execute(WAITING, &[&left.min(STEP)]).await?;
        left -= STEP;
    }
    // What the server would do in the background during the measurement.
    for sql in [
        "VACUUM ANALYZE dispatch",
        "VACUUM ANALYZE body",
        "CHECKPOINT",
    ] {
        client.batch_execute(sql).await?;
    }
    Ok(())
}

/// Holds back the removal of dead rows until the connection ends, as a backup does.
pub(crate) async fn open_snapshot(client: &Client) -> anyhow::Result<()> {
    let sql = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM node";
    client.batch_execute(sql).await?;
    Ok(())
}

/// URL of a relay to the server of this one that passes its answers on later. It ends with the process.
pub(crate) fn delayed(url: &str, delay: Duration) -> anyhow::Result<String> {
    let config: Config = url.parse()?;
    let (host, port) = (config.get_hosts().first(), config.get_ports().first());
    let Some(Host::Tcp(host)) = host else {
        anyhow::bail!("--delay-ms needs a server with an address");
    };
    let place = format!("{host}:{}", port.unwrap_or(&5432));
    let named = format!("@{place}");
    ensure!(
        url.contains(&named),
        "--delay-ms needs a URL with the user and {place}"
    );
    let server: SocketAddr = place
        .parse()
        .context("--delay-ms needs an address of digits")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let relay = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || pass(&client, server, delay));
        }
    });
    Ok(url.replace(&named, &format!("@{relay}")))
}

fn pass(client: &TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (answers, due) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let copied = io::copy(&mut &*client, &mut &server);
            // The other side may have closed it.
            let _ = server.shutdown(Shutdown::Both);
            copied
        });
        scope.spawn(|| -> io::Result<()> {
            for (at, bytes) in due {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                (&*client).write_all(&bytes)?;
            }
            client.shutdown(Shutdown::Both)
        });
        let mut piece = [0; PIECE_BYTES];
        while let Ok(count @ 1..) = (&server).read(&mut piece) {
            if answers
                .send((Instant::now() + delay, piece[..count].to_vec()))
                .is_err()
            {
                break;
            }
        }
        drop(answers);
    });
    Ok(())
}
