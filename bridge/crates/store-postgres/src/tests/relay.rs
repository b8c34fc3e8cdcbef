//! A relay between a store and its server that cuts the connection around a COMMIT.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::cluster::cluster;
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
}

/// Ends when it is dropped.
pub(super) struct Relay {
    address: SocketAddr,
    cut: Arc<Mutex<Cut>>,
    _accepts: AbortOnDropHandle<()>,
}

impl Relay {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(Mutex::new(Cut::Never));
        let next = Arc::clone(&cut);
        let tasks = TaskTracker::new();
        let connections = tasks.clone();
        let accepts = tasks.spawn(async move {
            loop {
                let (store, _) = listener.accept().await.unwrap();
                connections.spawn(pass(store, Arc::clone(&next)));
            }
        });
        Self {
            address,
            cut,
            _accepts: AbortOnDropHandle::new(accepts),
        }
    }

    pub(super) fn target(&self, database: &str) -> Target {
        let address = self.address;
        let url = format!("postgres://forge@{address}/{database}?sslmode=disable");
        Target::new(&url, None).unwrap()
    }

    /// Cuts nothing from now on.
    pub(super) fn heal(&self) {
        *self.cut.lock().unwrap() = Cut::Never;
    }

    /// Cuts at the next COMMIT. The cut that was asked for before has been made.
    pub(super) fn cut(&self, cut: Cut) {
        let before = std::mem::replace(&mut *self.cut.lock().unwrap(), cut);
        assert_eq!(before, Cut::Never);
    }
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|part| part == text)
}

/// Passes bytes on until one side ends, or until the cut.
async fn pass(mut store: TcpStream, cut: Arc<Mutex<Cut>>) {
    let socket = cluster().folder.join(".s.PGSQL.5432");
    let mut server = UnixStream::connect(socket).await.unwrap();
    let (mut sent, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut hides_answer = false;
    loop {
        tokio::select! {
            read = store.read(&mut sent) => {
                let Ok(1..) = read else { return };
                let bytes = &sent[..read.unwrap()];
                if *cut.lock().unwrap() == Cut::Silent && holds(bytes, b"pg_xact_status") {
                    return;
                }
                if holds(bytes, b"COMMIT\0") {
                    let mut cut = cut.lock().unwrap();
                    let next = match *cut {
                        Cut::Silent => Cut::Silent,
                        _ => Cut::Never,
                    };
                    match std::mem::replace(&mut *cut, next) {
                        Cut::Never => {}
                        Cut::Before => return,
                        Cut::After | Cut::Silent => hides_answer = true,
                    }
                }
                server.write_all(bytes).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(1..) = read else { return };
                let bytes = &answered[..read.unwrap()];
                match hides_answer {
                    true if holds(bytes, b"COMMIT\0") => return,
                    true => {}
                    false => store.write_all(bytes).await.unwrap(),
                }
            }
        }
    }
}
