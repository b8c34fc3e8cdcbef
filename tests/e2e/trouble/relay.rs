//! A relay between a bridge and its PostgreSQL server that plays a network in trouble. A connection that is silent is never
//! closed by it, as by a firewall that has forgotten it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::unix;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Delay of each part of a message.
const DELAY: Duration = Duration::from_secs(5);

/// State of the network; bytes that are held are passed on when it is well again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Well,
    /// Nothing passes, on connections of before and new ones.
    Mute,
    /// All is passed on 5 s later.
    Delayed,
    /// The server hears the bridge, which hears nothing.
    Unheard,
    /// The bridge hears the server, which hears nothing.
    Unsaid,
}

/// Ends when it is dropped.
pub(super) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepts: AbortOnDropHandle<()>,
}

struct Shared {
    /// Socket of the server that new connections are made to.
    socket: Mutex<PathBuf>,
    network: watch::Sender<Network>,
    /// Commits, still to come, whose answer is cut off.
    cuts: AtomicU32,
    /// The connection of the next commit becomes silent for good.
    silences_one: AtomicBool,
    /// Cancelled for the connections that lose the server.
    loss: Mutex<CancellationToken>,
}

/// One connection of the bridge.
struct Connection {
    shared: Arc<Shared>,
    /// It has become silent for good; the server keeps its end.
    silent: CancellationToken,
    /// It has lost the server, which the bridge is not told.
    lost: CancellationToken,
    closed: CancellationToken,
}

impl Relay {
    /// Listens for a bridge of the server in this folder.
    pub(super) async fn start(server: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            socket: Mutex::new(socket(server)),
            network: watch::Sender::new(Network::Well),
            cuts: AtomicU32::new(0),
            silences_one: AtomicBool::new(false),
            loss: Mutex::default(),
        });
        let tasks = TaskTracker::new();
        let (connections, own) = (tasks.clone(), Arc::clone(&shared));
        let accepts = tasks.spawn(async move {
            loop {
                let (bridge, _) = listener.accept().await.unwrap();
                connections.spawn(pass(bridge, Arc::clone(&own)));
            }
        });
        Self {
            address,
            shared,
            _accepts: AbortOnDropHandle::new(accepts),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://forge@{}/postgres?sslmode=disable", self.address)
    }

    pub(super) fn is(&self, network: Network) {
        self.shared.network.send_replace(network);
    }

    /// Cuts the connections of the next commits, after the server has got them.
    pub(super) fn cut_commits(&self, count: u32) {
        self.shared.cuts.store(count, Ordering::Relaxed);
    }

    /// Makes the connection of the next commit silent for good, before the server gets it; all others work.
    pub(super) fn silence_writer(&self) {
        self.shared.silences_one.store(true, Ordering::Relaxed);
    }

    /// Half-open connections: those of now have lost the server, new ones work.
    pub(super) fn lose_server(&self) {
        let mut loss = self.shared.loss.lock().unwrap();
        std::mem::take(&mut *loss).cancel();
    }

    /// Leads new connections to the server in this folder; those of now have lost theirs.
    pub(super) fn move_to(&self, server: &Path) {
        *self.shared.socket.lock().unwrap() = socket(server);
        self.lose_server();
    }

    /// Takes back troubles that have not come.
    pub(super) fn heal(&self) {
        self.is(Network::Well);
        self.cut_commits(0);
        self.shared.silences_one.store(false, Ordering::Relaxed);
    }
}

fn socket(server: &Path) -> PathBuf {
    server.join(".s.PGSQL.5432")
}

async fn pass(bridge: TcpStream, shared: Arc<Shared>) {
    let lost = shared.loss.lock().unwrap().clone();
    let socket = shared.socket.lock().unwrap().clone();
    // The server can be gone for a while.
    let Ok(server) = UnixStream::connect(socket).await else {
        return;
    };
    let connection = Connection {
        shared,
        silent: CancellationToken::new(),
        lost,
        closed: CancellationToken::new(),
    };
    let (from_bridge, to_bridge) = bridge.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        connection.up(from_bridge, to_server),
        connection.down(from_server, to_bridge)
    );
}

impl Connection {
    /// Passes on what the bridge sends.
    async fn up(&self, mut bridge: OwnedReadHalf, server: unix::OwnedWriteHalf) {
        let (mut bytes, mut server) = (vec![0; 64 << 10], Some(server));
        loop {
            let read = tokio::select! {
                read = bridge.read(&mut bytes) => read,
                () = self.lost.cancelled(), if server.is_some() => {
                    server = None;
                    continue;
                }
                () = self.closed.cancelled() => return,
            };
            let Ok(length @ 1..) = read else {
                return self.closed.cancel();
            };
            let part = &bytes[..length];
            let is_commit = part.windows(7).any(|text| text == b"COMMIT\0");
            if is_commit && self.shared.silences_one.swap(false, Ordering::Relaxed) {
                self.silent.cancel();
            }
            if self.silent.is_cancelled() {
                return self.closed.cancelled().await;
            }
            self.passes(Network::Unsaid).await;
            if let Some(server) = &mut server
                && server.write_all(part).await.is_err()
            {
                return self.closed.cancel();
            }
            let cuts = &self.shared.cuts;
            let less = |left: u32| left.checked_sub(1);
            let is_cut = is_commit
                && cuts
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                    .is_ok();
            if is_cut {
                return self.closed.cancel();
            }
        }
    }

    /// Passes on what the server sends.
    async fn down(&self, mut server: unix::OwnedReadHalf, mut bridge: OwnedWriteHalf) {
        let mut bytes = vec![0; 64 << 10];
        let passing = async {
            while let Ok(length @ 1..) = server.read(&mut bytes).await {
                self.passes(Network::Unheard).await;
                if bridge.write_all(&bytes[..length]).await.is_err() {
                    break;
                }
            }
            self.closed.cancel();
        };
        tokio::select! {
            () = passing => return,
            () = self.closed.cancelled() => return,
            () = self.silent.cancelled() => {}
            () = self.lost.cancelled() => drop(server),
        }
        // The bridge is not told.
        self.closed.cancelled().await;
        drop(bridge);
    }

    /// Waits until bytes pass in the direction that this trouble closes.
    async fn passes(&self, closed: Network) {
        let mut network = self.shared.network.subscribe();
        let due = Instant::now() + DELAY;
        loop {
            let now = *network.borrow_and_update();
            let is_held = now == Network::Mute || now == closed;
            if now != Network::Delayed && !is_held {
                return;
            }
            let changed = network.changed();
            let waited = match is_held {
                // The sender lives as long as the connection.
                true => changed.await.is_ok(),
                false => timeout_at(due, changed).await.is_ok(),
            };
            if !waited {
                return;
            }
        }
    }
}
