//! Connections by hand, for clients that do what no library does.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::Api;

/// One for which the system holds as little as it can.
pub(crate) async fn connect(api: &Api) -> TcpStream {
    let address: SocketAddr = api.url.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(address).await.unwrap()
}

/// What is said until the other side ends it.
pub(crate) async fn rest(mut stream: TcpStream) -> String {
    let mut told = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut told).await;
    String::from_utf8_lossy(&told).into_owned()
}
