//! Machines with addresses of their own, on one machine.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::process;

/// A bridge, and as many namespaces on it as `$0` says. They are gone with their last process.
const MAKE: &str = r#"
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add hub type bridge
ip addr add 10.77.0.254/24 dev hub
ip link set hub up
printf '127.0.0.1 localhost\n::1 localhost\n' >/run/hosts
printf 'nameserver 10.77.0.253\noptions timeout:30 attempts:5\n' >/run/resolv.conf
n=0
while [ $n -lt "$0" ]; do
    ip netns add host$n
    ip link add up$n type veth peer name net0 netns host$n
    ip link set up$n master hub up
    ip -n host$n link set lo up
    ip -n host$n addr add 10.77.0.$((n + 10))/24 dev net0
    ip -n host$n link set net0 up
    ip -n host$n neigh add 10.77.0.253 lladdr 02:00:00:00:00:01 dev net0 nud permanent
    n=$((n + 1))
done
echo ready
exec sleep infinity
"#;

/// Takes the cable of host `$0`, at address `$1`, out at the far end. Both sides know each other's hardware address for
/// good, as behind a router: a kernel that has to ask for it finds out that nobody is there.
const LOSE: &str = r#"
hub=$(ip -br link show hub | awk '{ print $3 }')
ip link set hub address "$hub"
ip -n "host$0" neigh replace 10.77.0.254 lladdr "$hub" dev net0 nud permanent
host=$(ip -n "host$0" -br link show net0 | awk '{ print $3 }')
ip neigh replace "$1" lladdr "$host" dev hub nud permanent
ip link set "up$0" nomaster
"#;

/// What is sent there is lost without a word.
const NOBODY: &str = "02:00:00:00:00:01";

/// A network of a hub and some hosts, each a network namespace. It is gone when it and all its hosts are dropped; what
/// runs there is the caller's to end.
#[derive(Debug)]
pub struct Network(Arc<Keeper>);

/// The process that has the namespaces.
#[derive(Debug)]
struct Keeper {
    child: Child,
    /// Whether they belong to a user namespace, so that they need no rights.
    of_user: bool,
    hosts: usize,
}

/// A machine of a [`Network`].
#[derive(Debug, Clone)]
pub struct Host {
    network: Arc<Keeper>,
    /// None for the hub.
    number: Option<usize>,
}

impl Network {
    /// Makes a network with up to 200 hosts.
    ///
    /// # Errors
    ///
    /// Where this machine has no `ip`, or does not let us make namespaces: why not. Where there are no user namespaces,
    /// root can still.
    pub fn start(hosts: usize) -> Result<Self, String> {
        assert!(hosts <= 200, "the hub has address 254");
        let of_user = Keeper::start("-Urnm", hosts, true);
        of_user.or_else(|why| {
            Keeper::start("-nm", hosts, false).map_err(|as_root| {
                format!(
                    "no network namespaces here: this needs unshare, iproute2 and user namespaces, or root \
                     (in a user namespace: {why}; as root: {as_root})"
                )
            })
        })
    }

    /// The machine in the middle, which cannot be cut off.
    #[must_use]
    pub fn hub(&self) -> Host {
        Host { network: Arc::clone(&self.0), number: None }
    }

    /// One of the others, from 0.
    #[must_use]
    pub fn host(&self, number: usize) -> Host {
        assert!(number < self.0.hosts, "the network has {} hosts", self.0.hosts);
        Host { network: Arc::clone(&self.0), number: Some(number) }
    }

    /// All but the hub.
    #[must_use]
    pub fn hosts(&self) -> Vec<Host> {
        (0..self.0.hosts).map(|number| self.host(number)).collect()
    }
}

impl Host {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("10.77.0.{}", self.number.map_or(254, |number| number + 10))
    }

    /// Runs `program` there. It is killed when the thread that started it ends.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.network.enter();
        if let Some(number) = self.number {
            command.args(["ip", "netns", "exec", &format!("host{number}")]);
        }
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// As [`command`](Self::command), with a resolver that never answers: looking a name up that is not `localhost`
    /// takes half a minute at least. Not at the hub.
    #[must_use]
    pub fn command_without_names(&self, program: impl AsRef<OsStr>) -> Command {
        const FORGET: &str = r#"mount --bind /run/hosts /etc/hosts && mount --bind /run/resolv.conf /etc/resolv.conf && exec "$@""#;
        let number = self.number.expect("what is mounted at the hub would be everybody's");
        let mut command = self.network.enter();
        command.args(["ip", "netns", "exec", &format!("host{number}"), "sh", "-c", FORGET, "sh"]);
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program);
        command
    }

    /// Cuts it off: nothing gets to it or from it, and nobody is told.
    pub fn cut(&self) {
        self.link(&["down"]);
    }

    /// Loses whatever goes to it or comes from it, while its own link stays up, as when a switch further on fails: its
    /// kernel does not know, and waits longer from one try to the next.
    pub fn lose(&self) {
        let number = self.number.expect("the hub cannot be cut off").to_string();
        let done = run(self.network.enter().args(["sh", "-ec", LOSE, &number, &self.address()]));
        assert_eq!(done, Ok(()), "cannot lose what host {number} sends");
    }

    /// Ends what [`cut`](Self::cut) or [`lose`](Self::lose) began.
    pub fn mend(&self) {
        self.link(&["master", "hub", "up"]);
    }

    /// What either sends the other is lost from now on. Both still reach everybody else.
    pub fn cut_from(&self, other: &Host) {
        for (from, to) in [(self, other), (other, self)] {
            from.ip(&[
                "neigh",
                "replace",
                &to.address(),
                "lladdr",
                NOBODY,
                "dev",
                from.device(),
                "nud",
                "permanent",
            ]);
        }
    }

    /// Ends what [`cut_from`](Self::cut_from) began.
    pub fn mend_to(&self, other: &Host) {
        for (from, to) in [(self, other), (other, self)] {
            from.ip(&["neigh", "del", &to.address(), "dev", from.device()]);
        }
    }

    /// Everything that it sends arrives so much later.
    ///
    /// # Errors
    ///
    /// Where the kernel cannot do that (it has no `netem`). [`Proxy::delay`](crate::Proxy::delay) can everywhere.
    pub fn delay(&self, by: Duration) -> Result<(), String> {
        let mut command = self.command("tc");
        command.args(["qdisc", "replace", "dev", self.device(), "root", "netem", "delay"]);
        run(command.arg(format!("{}us", by.as_micros())))
            .map_err(|said| format!("this kernel cannot delay packets: {said}"))
    }

    fn device(&self) -> &'static str {
        if self.number.is_some() { "net0" } else { "hub" }
    }

    fn ip(&self, args: &[&str]) {
        let done = run(self.command("ip").args(args));
        assert_eq!(done, Ok(()), "`ip {}` at {}", args.join(" "), self.address());
    }

    fn link(&self, state: &[&str]) {
        let number = self.number.expect("the hub cannot be cut off");
        let done = run(self.network.enter().args(["ip", "link", "set", &format!("up{number}")]).args(state));
        assert_eq!(done, Ok(()), "cannot set the link of host {number} {state:?}");
    }
}

impl Keeper {
    fn start(unshare: &str, hosts: usize, of_user: bool) -> Result<Network, String> {
        let mut command = process::command(Path::new("unshare"));
        command.args([unshare, "sh", "-c", MAKE, &hosts.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process::spawn(command);
        let mut line = String::new();
        let read = child.stdout.as_mut().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        if line.trim() == "ready" {
            return Ok(Network(Arc::new(Keeper { child, of_user, hosts })));
        }
        let _ = child.kill();
        let said = child.wait_with_output().expect("a child can be waited for").stderr;
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        Err(if said.is_empty() { format!("{read:?}") } else { said })
    }

    /// The beginning of a command at the hub. Ctrl-C is for this process alone.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.process_group(0);
        if self.of_user {
            command.args(["--preserve-credentials", "-U"]);
        }
        command.args(["-n", "-m", "-t", &self.child.id().to_string()]);
        command
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it said, where it failed.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
