//! Just enough HTTP to ask a server how it is.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use crate::Host;

/// The answer to a plain GET on a loopback port, status line and headers included.
pub fn get(port: u16, path: &str, timeout: Duration) -> io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The answer to a plain GET on a port of a machine of a network, asked there.
pub(crate) fn get_at(host: &Host, port: u16, path: &str, timeout: Duration) -> io::Result<String> {
    const ASK: &str = r#"exec 3<>"/dev/tcp/$0/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3 && cat <&3"#;
    let mut command = host.command("timeout");
    command.args([&timeout.as_secs().to_string(), "bash", "-c", ASK]);
    command.args([&host.address(), &port.to_string(), path]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
