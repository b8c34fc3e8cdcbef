//! A reserved port: bound, so that no other process gets it, and not listening, so that connections are refused.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

pub(crate) struct Reserved(TcpSocket);

impl Reserved {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(crate) fn listen(self) -> TcpListener {
        self.0.listen(64).unwrap()
    }
}
