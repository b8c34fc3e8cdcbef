//! A proxy that cuts event streams at arbitrary bytes, the first after `FIRST` bytes, each further one after twice as
//! many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Bytes of the first stream that pass.
const FIRST: usize = 700;

pub(crate) struct Proxy {
    url: String,
    cuts: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `url`. Responses that are not event streams pass unchanged.
    pub(crate) async fn start(url: &str) -> Self {
        let target = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = format!("http://{}", listener.local_addr().unwrap());
        let cuts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&cuts);
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its handle"
        )]
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (target, cuts) = (target.clone(), Arc::clone(&counted));
                connections.spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    relay(client, server, &cuts).await;
                });
            }
        });
        Self {
            url: own,
            cuts,
            task,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(client: TcpStream, server: TcpStream, cuts: &AtomicUsize) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        // An error closes the connection like an end of file.
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let back = async {
        let limit = FIRST << cuts.load(Ordering::SeqCst);
        let mut piece = vec![0; 4096];
        let mut streamed = None;
        while let Ok(length @ 1..) = from_server.read(&mut piece).await {
            if contains(&piece[..length], b"text/event-stream") {
                streamed = Some(0);
            }
            let allowed = match &mut streamed {
                Some(count) => {
                    let allowed = length.min(limit - *count);
                    *count += allowed;
                    allowed
                }
                None => length,
            };
            if to_client.write_all(&piece[..allowed]).await.is_err() {
                break;
            }
            if streamed.is_some_and(|count| count >= limit) {
                cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
