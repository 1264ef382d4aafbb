//! Machines with addresses of their own, on one machine.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process;

/// A bridge, and as many namespaces on it as `$0` says. All of it is in a user namespace, so that it needs no rights,
/// and is gone with its last process.
const MAKE: &str = r#"
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add hub type bridge
ip addr add 10.77.0.254/24 dev hub
ip link set hub up
n=0
while [ $n -lt "$0" ]; do
    ip netns add node$n
    ip link add up$n type veth peer name net0 netns node$n
    ip link set up$n master hub up
    ip -n node$n link set lo up
    ip -n node$n addr add 10.77.0.1$n/24 dev net0
    ip -n node$n link set net0 up
    n=$((n + 1))
done
echo ready
exec sleep infinity
"#;

/// Takes the `$0`th node's cable out at the far end. Both sides know each other's hardware address for good, as behind a
/// router: a kernel that has to ask for it finds out that nobody is there.
const LOSE: &str = r#"
hub=$(ip -br link show hub | awk '{ print $3 }')
ip link set hub address "$hub"
ip -n "node$0" neigh replace 10.77.0.254 lladdr "$hub" dev net0 nud permanent
node=$(ip -n "node$0" -br link show net0 | awk '{ print $3 }')
ip neigh replace "10.77.0.1$0" lladdr "$node" dev hub nud permanent
ip link set "up$0" nomaster
"#;

/// A network of a hub and some nodes, each with a network namespace of its own. What runs in them is the caller's to
/// end; it is killed when the thread that started it ends.
#[derive(Debug)]
pub struct Network {
    keeper: Child,
}

impl Network {
    /// The address of the hub.
    pub const HUB: &str = "10.77.0.254";

    /// Makes a network with up to ten nodes, whose addresses are `10.77.0.10` and on.
    ///
    /// # Errors
    ///
    /// Where this machine has no `ip`, or does not let us make namespaces: what it said.
    pub fn start(nodes: usize) -> Result<Self, String> {
        assert!(nodes <= 10, "the addresses have one digit for the node");
        let mut command = process::command(Path::new("unshare"));
        command.args(["-Urnm", "sh", "-c", MAKE, &nodes.to_string()]);
        let mut keeper = process::spawn({
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        });
        let mut line = String::new();
        let read = keeper.stdout.as_mut().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        if line.trim() == "ready" {
            return Ok(Network { keeper });
        }
        let _ = keeper.kill();
        let said = keeper.wait_with_output().expect("a child can be waited for").stderr;
        Err(format!("{read:?}: {}", String::from_utf8_lossy(&said).trim()))
    }

    /// The beginning of a command at the hub: a program and its arguments come next.
    #[must_use]
    pub fn hub(&self) -> Command {
        self.enter(&["setpriv", "--pdeathsig", "KILL"])
    }

    /// The beginning of a command on the `n`th node, from 0.
    #[must_use]
    pub fn node(&self, n: usize) -> Command {
        self.enter(&["ip", "netns", "exec", &format!("node{n}"), "setpriv", "--pdeathsig", "KILL"])
    }

    /// Cuts the `n`th node off: nothing gets to it or from it.
    pub fn cut(&self, n: usize) {
        self.link(n, &["down"]);
    }

    /// Loses whatever goes to the `n`th node or comes from it, while its own link stays up, as when a switch further on
    /// fails: the node's kernel does not know, and waits longer from one try to the next.
    pub fn lose(&self, n: usize) {
        let status = self.enter(&["sh", "-ec", LOSE, &n.to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot lose what node {n} sends");
    }

    /// Ends what [`cut`](Self::cut) or [`lose`](Self::lose) began.
    pub fn mend(&self, n: usize) {
        self.link(n, &["master", "hub", "up"]);
    }

    fn link(&self, n: usize, state: &[&str]) {
        let link = format!("up{n}");
        let status = self.enter(&[&["ip", "link", "set", &link], state].concat()).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot set the link of node {n} {state:?}");
    }

    fn enter(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--preserve-credentials", "-U", "-n", "-m", "-t", &self.keeper.id().to_string()]);
        command.args(args);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
