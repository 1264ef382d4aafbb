//! What the machine must allow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files of the process itself.
const OWN_FILES: u64 = 100;

/// Makes room for nodes, each of which holds a port in case it becomes the master, and for connections. If there is not
/// enough, says what to raise.
pub(super) fn make_room(nodes: usize, connections: usize) -> Result<(), String> {
    let files = (nodes + 2 * connections) as u64 + OWN_FILES;
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let wanted = Rlimit { current: Some(files.max(most)), maximum: Some(files.max(most)) };
    let allowed = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Only root can have more than was allowed.
    if setrlimit(Resource::Nofile, wanted).is_err() {
        let _ = setrlimit(Resource::Nofile, allowed);
        if files > most {
            return Err(format!(
                "{nodes} nodes need {files} open files and this process may have {most}: raise the hard limit, for \
                 instance with `ulimit -Hn {files}` as root, or take fewer nodes"
            ));
        }
    }
    let ports = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    enough_ports(nodes + connections, ports.as_deref())
}

/// `range` is the first and the last port that the system gives out.
fn enough_ports(needed: usize, range: Option<&str>) -> Result<(), String> {
    let Some((first, last)) = range.and_then(|range| {
        let mut ends = range.split_whitespace().filter_map(|end| end.parse::<usize>().ok());
        Some((ends.next()?, ends.next()?))
    }) else {
        return Ok(());
    };
    let there = (last + 1).saturating_sub(first);
    if needed <= there {
        return Ok(());
    }
    Err(format!(
        "{needed} ports are needed, one for each node and connection, and this system gives out {there}: raise that with \
         `sysctl net.ipv4.ip_local_port_range='1024 65535'`, or take fewer nodes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_raise_is_said_in_one_sentence() {
        assert_eq!(enough_ports(28_000, Some("32768\t60999\n")), Ok(()));
        let refused = enough_ports(30_008, Some("32768\t60999\n")).unwrap_err();
        assert!(refused.contains("gives out 28232") && refused.contains("sysctl"), "{refused}");
        assert_eq!(enough_ports(30_008, Some("1024 65535")), Ok(()));
        assert_eq!(enough_ports(30_008, None), Ok(()));
    }
}
