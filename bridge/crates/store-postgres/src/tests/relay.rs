//! A relay between a store and its server that cuts the connection around a COMMIT.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::cluster::cluster;
use super::traffic::{Traffic, Trip, Trips};
use crate::Target;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cut {
    Never,
    /// The message with the next COMMIT does not reach the server.
    Before,
    /// The answer to the next COMMIT does not reach the store.
    After,
    /// The same, and no question for its outcome reaches the server.
    Silent,
    /// No question for an outcome reaches the server.
    Unasked,
    /// The connection of the next COMMIT is mute from there on: it stays open, and nothing passes.
    Mute,
    /// The same of the answer to the next COMMIT.
    MuteAfter,
}

/// A connection with a message that holds this is mute from there on.
pub(super) const MUTE: &str = "make it mute";

/// Ends when it is dropped.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    cut: Arc<Mutex<Cut>>,
    /// Nothing passes on connections that are made.
    is_deaf: Arc<AtomicBool>,
    has_cut: Arc<AtomicBool>,
    trips: Trips,
    /// Cancelled for the connections that are stranded.
    stranded: Arc<Mutex<CancellationToken>>,
    /// Connections that were made.
    made: Arc<AtomicUsize>,
    _accepts: AbortOnDropHandle<()>,
}

impl Relay {
    pub(super) async fn start() -> Self {
        Self::to(&cluster().folder).await
    }

    /// Relays to the server with its socket in this folder.
    pub(super) async fn to(folder: &Path) -> Self {
        let socket = folder.join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(Mutex::new(Cut::Never));
        let next = Arc::clone(&cut);
        let is_deaf = Arc::new(AtomicBool::new(false));
        let has_cut = Arc::new(AtomicBool::new(false));
        let trips = Trips::default();
        let noted = Arc::clone(&trips);
        let (deaf, done) = (Arc::clone(&is_deaf), Arc::clone(&has_cut));
        let stranded = Arc::<Mutex<CancellationToken>>::default();
        let made = Arc::<AtomicUsize>::default();
        let (lost, count) = (Arc::clone(&stranded), Arc::clone(&made));
        let tasks = TaskTracker::new();
        let connections = tasks.clone();
        let accepts = tasks.spawn(async move {
            loop {
                let (store, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                if deaf.load(Ordering::Relaxed) {
                    connections.spawn(hold(store));
                } else {
                    let (cut, done) = (Arc::clone(&next), Arc::clone(&done));
                    let lost = lost.lock().unwrap().clone();
                    let traffic = Traffic::new(Arc::clone(&noted));
                    connections.spawn(pass(store, socket.clone(), cut, done, lost, traffic));
                }
            }
        });
        Self {
            address,
            cut,
            is_deaf,
            has_cut,
            trips,
            stranded,
            made,
            _accepts: AbortOnDropHandle::new(accepts),
        }
    }

    pub(super) fn target(&self, database: &str) -> Target {
        let address = self.address;
        let url = format!("postgres://forge@{address}/{database}?sslmode=disable");
        Target::new(&url, None).unwrap()
    }

    /// Takes the round trips since the last call.
    pub(super) fn take_trips(&self) -> Vec<Trip> {
        std::mem::take(&mut self.trips.lock().unwrap())
    }

    /// Cuts nothing from now on.
    pub(super) fn heal(&self) {
        self.is_deaf.store(false, Ordering::Relaxed);
        *self.cut.lock().unwrap() = Cut::Never;
    }

    /// The connections of now are mute and stay open; new ones work.
    pub(super) fn strand(&self) {
        std::mem::take(&mut *self.stranded.lock().unwrap()).cancel();
    }

    /// Number of connections that were made.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// New connections are accepted and mute from now on.
    pub(super) fn deafen(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    /// The cut that was asked for has been made.
    pub(super) fn has_cut(&self) -> bool {
        self.has_cut.load(Ordering::Relaxed)
    }

    /// Cuts at the next COMMIT. The cut that was asked for before has been made.
    pub(super) fn cut(&self, cut: Cut) {
        self.has_cut.store(false, Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.cut.lock().unwrap(), cut);
        assert_eq!(before, Cut::Never);
    }
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}

/// Reads nothing, and keeps the connection open.
async fn hold(_store: TcpStream) {
    std::future::pending::<()>().await;
}

/// Passes bytes on until one side ends, or until the cut.
async fn pass(
    mut store: TcpStream,
    socket: PathBuf,
    cut: Arc<Mutex<Cut>>,
    made: Arc<AtomicBool>,
    stranded: CancellationToken,
    mut traffic: Traffic,
) {
    let Ok(mut server) = UnixStream::connect(socket).await else {
        return;
    };
    let (mut sent, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut cutting = Cut::Never;
    loop {
        tokio::select! {
            () = stranded.cancelled() => return hold(store).await,
            read = store.read(&mut sent) => {
                let Ok(1..) = read else { return };
                let bytes = &sent[..read.unwrap()];
                traffic.sent(bytes);
                if *cut.lock().unwrap() == Cut::Unasked && holds(bytes, b"pg_xact_status") {
                    return;
                }
                if holds(bytes, MUTE.as_bytes()) {
                    return hold(store).await;
                }
                if holds(bytes, b"COMMIT\0") {
                    let mut cut = cut.lock().unwrap();
                    let next = match *cut {
                        Cut::Silent | Cut::Unasked => Cut::Unasked,
                        _ => Cut::Never,
                    };
                    cutting = std::mem::replace(&mut *cut, next);
                }
                if matches!(cutting, Cut::Before | Cut::Mute) {
                    made.store(true, Ordering::Relaxed);
                }
                match cutting {
                    Cut::Before => return,
                    Cut::Mute => return hold(store).await,
                    _ => {}
                }
                if server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(1..) = read else { return };
                let bytes = &answered[..read.unwrap()];
                traffic.answered(bytes);
                let is_answer = holds(bytes, b"COMMIT\0");
                match cutting {
                    Cut::After | Cut::Silent | Cut::MuteAfter if is_answer => {
                        made.store(true, Ordering::Relaxed);
                        if cutting == Cut::MuteAfter {
                            hold(store).await;
                        }
                        return;
                    }
                    Cut::After | Cut::Silent | Cut::MuteAfter => {}
                    _ => {
                        if store.write_all(bytes).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}
