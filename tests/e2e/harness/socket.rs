//! Raw connections, for clients whose behaviour no library offers.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::Api;

/// Connects with the smallest receive buffer.
pub(crate) async fn connect(api: &Api) -> TcpStream {
    let address: SocketAddr = api.url.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(address).await.unwrap()
}

/// Reads until the other side closes the connection.
pub(crate) async fn rest(mut stream: TcpStream) -> String {
    let mut told = Vec::new();
    // A reset ends the connection as well.
    let _ = stream.read_to_end(&mut told).await;
    String::from_utf8_lossy(&told).into_owned()
}
