//! What PyTorch's own client sees, on our server and on PyTorch's two.

use rallypoint_tcpstore::wire::MESSAGES;
use rallypoint_tcpstore::{Limits, TcpStoreServer};
use rallypoint_testkit::run_python;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pytorchs_client_sees_on_our_server_what_it_sees_on_pytorchs() {
    let address = "127.0.0.1:0".parse().unwrap();
    // On several threads, however few cores there are.
    let server = TcpStoreServer::bind_on_threads(address, Limits::default(), 3).unwrap();
    let port = server.local_addr().port().to_string();
    let compare = move || run_python(include_str!("pytorch.py"), &[&port, &MESSAGES.join(" ")]);
    let said = tokio::task::spawn_blocking(compare).await.unwrap();
    let said = said.trim();
    assert!(said.ends_with(" the same, 0 not"), "{said}");
    server.stop().await;
}
