//! Serves etcd's protocols on a free port of this machine, or on the address given, until its input ends.

use std::error::Error;
use std::io::{copy, sink, stdin};

use rallypoint_server::{Config, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse()?;
    let server = Server::bind(Config { listen, ..Config::default() })?;
    println!("{}", server.endpoint());
    tokio::task::spawn_blocking(|| copy(&mut stdin(), &mut sink())).await??;
    server.stop().await?;
    Ok(())
}
