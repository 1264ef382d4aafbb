//! Child processes that end with this one.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};
use std::thread;

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// A command that runs `program` and is killed when this process ends, even by SIGKILL. Ctrl-C is for this process alone.
pub(crate) fn command(program: &std::path::Path) -> Command {
    let mut command = Command::new("setpriv");
    command.process_group(0);
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Starts a [`command`].
pub(crate) fn spawn(command: Command) -> Child {
    // Linux sends the signal when the *thread* that spawned the child ends, and a test's thread ends long
    // before the process does. So one thread, which never ends, spawns them all.
    static SPAWNER: OnceLock<mpsc::Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = mpsc::channel::<Request>();
        thread::Builder::new()
            .name("testkit-spawner".into())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    // Whoever asked waits for the reply; if it is gone all the same, so must the child be.
                    if let Err(mpsc::SendError(Ok(mut orphan))) = reply.send(command.spawn()) {
                        let _ = orphan.kill();
                        let _ = orphan.wait();
                    }
                }
            })
            .expect("a thread can be started");
        requests
    });

    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).expect("the spawner thread never ends");
    match answer.recv().expect("the spawner thread answers every request") {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("`setpriv` is missing: install the package util-linux")
        }
        Err(error) => panic!("cannot start a process through `setpriv`: {error}"),
    }
}
