//! One client of a proxy.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::table::{Down, Stream, Up};
use crate::trunk::frame::MOST_DATA;

/// Passes bytes on until the client or the server ends it, or the server is gone: `ends` says so.
pub(super) async fn serve(mut socket: TcpStream, mut stream: Stream, mut ends: watch::Receiver<bool>) {
    // Requests and replies are small, and somebody waits for each.
    let _ = socket.set_nodelay(true);
    let is_lost = {
        let ((from, to), (up, down)) = (socket.split(), stream.split());
        tokio::select! {
            () = send_up(from, up) => false,
            () = send_down(to, down) => false,
            _ = ends.wait_for(|gone| *gone) => true,
        }
    };
    // What the client sent may be the first to find that the server is gone.
    if is_lost || stream.is_lost() {
        // Not an end of the store's, which would be orderly.
        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    } else {
        stream.close().await;
    }
}

async fn send_up(mut from: ReadHalf<'_>, up: Up<'_>) {
    let mut buffer = vec![0; MOST_DATA];
    while let Ok(count @ 1..) = from.read(&mut buffer).await
        && up.send(&buffer[..count]).await
    {}
}

async fn send_down(mut to: WriteHalf<'_>, mut down: Down<'_>) {
    while let Some(bytes) = down.next().await
        && to.write_all(&bytes).await.is_ok()
    {
        down.taken(bytes.len()).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::io::ErrorKind;

    use tokio::net::TcpListener;

    use super::super::table::Table;
    use super::*;

    #[tokio::test]
    async fn a_client_whose_words_are_the_first_to_find_no_server_sees_a_reset() {
        let (table, frames) = Table::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let stream = table.open().await.unwrap();
        drop(frames);
        let (_not_told_yet, ends) = watch::channel(false);
        let serving = tokio::spawn(serve(socket, stream, ends));
        client.write_all(b"a word").await.unwrap();
        let error = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        serving.await.unwrap();
    }
}
