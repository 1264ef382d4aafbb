//! What PyTorch's own client sees, on our server and on PyTorch's two.

use rallypoint_tcpstore::TcpStoreServer;
use rallypoint_testkit::run_python;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pytorchs_client_sees_on_our_server_what_it_sees_on_pytorchs() {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = server.local_addr().port().to_string();
    let said =
        tokio::task::spawn_blocking(move || run_python(include_str!("pytorch.py"), &[&port])).await.unwrap();
    let said = said.trim();
    assert!(said.ends_with(" the same, 0 not"), "{said}");
    server.stop().await;
}
