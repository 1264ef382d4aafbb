//! Who this node is, and where others reach it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use rallypoint_core::Endpoints;
use rallypoint_core::round::NodeConfig;
use tokio::net::UdpSocket;
use uuid::Uuid;

use super::settings::NativeSettings;

/// A name that a process holds for as long as it lives, whatever ends it.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    /// What keeps others on this machine from taking the name; the system lets go of it with the process.
    #[cfg(target_os = "linux")]
    _lock: std::os::unix::net::UnixListener,
}

impl Identity {
    /// The first name of this machine that no living process has in this run. A process that is started again
    /// gets the one it had, and so comes back as itself.
    #[cfg(target_os = "linux")]
    pub(super) fn claim(run: &str, address: &str) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let host = host();
        let mut slot = 0;
        loop {
            let name = match slot {
                0 => format!("{host}-{address}"),
                slot => format!("{host}-{address}-{slot}"),
            };
            // Such names have little room.
            let digest = ring::digest::digest(&ring::digest::SHA256, format!("{run}\n{name}").as_bytes());
            let lock: String = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
            let address = SocketAddr::from_abstract_name(format!("rallypoint/{lock}"))?;
            match UnixListener::bind_addr(&address) {
                Ok(lock) => return Ok(Identity { name, _lock: lock }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => slot += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// A name that nobody else has. Elsewhere nothing tells a process that was started again from a second one.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn claim(_run: &str, address: &str) -> io::Result<Self> {
        Ok(Identity { name: format!("{address}-{}", Uuid::new_v4().simple()) })
    }
}

/// What the machine of a node of this name knows of it, and tells others.
pub(super) fn config(settings: &NativeSettings, run: &str, node: &str, address: &str) -> NodeConfig {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    NodeConfig {
        incarnation: incarnation(),
        address: address.to_owned(),
        host: settings.host.clone().unwrap_or_else(host),
        rack: settings.rack.clone(),
        hint: settings.hint.clone(),
        about: settings.about.clone(),
        since: clock.as_secs(),
        clock,
        when_excluded: settings.when_excluded,
        lease_ttl: settings.lease,
        run_ttl: settings.run_ttl,
        closed_ttl: settings.closed_ttl,
        last_call: settings.last_call,
        replacement: settings.replacement,
        ..NodeConfig::new(run, node, settings.run)
    }
}

/// The name of this machine, as `hostname` says it.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Tells this process from all others.
pub(super) fn incarnation() -> u64 {
    // JSON readers elsewhere hold numbers up to 2^53.
    Uuid::new_v4().as_u64_pair().0 >> 11
}

/// The address by which this machine reaches etcd: others that reach the same etcd can reach it too, which no
/// host name promises.
pub(crate) async fn local_address(endpoints: &Endpoints) -> io::Result<IpAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there is no endpoint");
    for endpoint in endpoints.as_slice() {
        let found = async {
            let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
            for address in tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await? {
                result = way_to(address).await;
                if result.is_ok() {
                    break;
                }
            }
            result
        };
        match found.await {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn way_to(address: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    // Nothing is sent: the system only looks up the way.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_name_is_held_by_one_and_free_again_when_that_one_is_gone() {
        let run = Uuid::new_v4().to_string();
        let first = Identity::claim(&run, "10.0.0.1").unwrap();
        let second = Identity::claim(&run, "10.0.0.1").unwrap();
        assert!(first.name.ends_with("-10.0.0.1"));
        assert_eq!(second.name, format!("{}-1", first.name));
        assert_eq!(Identity::claim("another run", "10.0.0.1").unwrap().name, first.name);
        let name = first.name.clone();
        drop(first);
        assert_eq!(Identity::claim(&run, "10.0.0.1").unwrap().name, name);
    }

    #[tokio::test]
    async fn the_address_is_the_one_on_the_way_to_etcd() {
        assert!(local_address(&"127.0.0.1:2379".parse().unwrap()).await.unwrap().is_loopback());
    }
}
