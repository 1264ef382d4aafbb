//! Where to listen, as people write it.

use std::fmt;
use std::str::FromStr;

/// A host, and a port or several: `0.0.0.0:9400`, `[::]:0`, `node1:9400-9407`. Of several the first that is free is taken, so
/// that programs on one machine can be started alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    host: String,
    first: u16,
    last: u16,
}

/// What is no address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address to listen on: write HOST:PORT, as in 127.0.0.1:9400, or HOST:FIRST-LAST for the first free of several ports"
)]
pub struct BadListenAddress(String);

impl ListenAddress {
    /// The host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The ports to try, in this order.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        self.first..=self.last
    }
}

impl FromStr for ListenAddress {
    type Err = BadListenAddress;

    fn from_str(text: &str) -> Result<Self, BadListenAddress> {
        let bad = || BadListenAddress(text.to_owned());
        let (host, ports) = text.trim().rsplit_once(':').ok_or_else(bad)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // An address of IPv6 without brackets could end anywhere.
        if bare.unwrap_or(host).is_empty() || (bare.is_none() && host.contains([':', '[', ']', '/'])) {
            return Err(bad());
        }
        let port = |text: &str| text.parse::<u16>().map_err(|_| bad());
        let (first, last) = match ports.split_once('-') {
            None => (port(ports)?, port(ports)?),
            Some((first, last)) => (port(first)?, port(last)?),
        };
        if last < first || (first == 0 && last > 0) {
            return Err(bad());
        }
        Ok(ListenAddress { host: bare.unwrap_or(host).to_owned(), first, last })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.first)?;
        if self.last > self.first { write!(f, "-{}", self.last) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_is_a_host_and_a_port_or_several() {
        for (text, host, ports) in [
            ("127.0.0.1:9400", "127.0.0.1", vec![9400]),
            ("node1:0", "node1", vec![0]),
            ("[::1]:9400-9402", "::1", vec![9400, 9401, 9402]),
            (" 0.0.0.0:65535-65535 ", "0.0.0.0", vec![65535]),
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!((address.host(), address.ports().collect::<Vec<_>>()), (host, ports), "{text}");
        }
        assert_eq!("[::1]:1-2".parse::<ListenAddress>().unwrap().to_string(), "[::1]:1-2");
        for text in ["", "9400", ":9400", "a:", "a:b", "a:65536", "a:2-1", "a:0-5", "::1:9400", "http://a:1"]
        {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{text}: {error}");
        }
    }
}
