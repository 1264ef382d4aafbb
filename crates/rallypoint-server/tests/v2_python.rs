//! python-etcd and PyTorch use this server, and a gateway, without noticing that it is no etcd.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use futures::future::join_all;
use rallypoint_testkit::{Version, run_python};
use v2_support::Target;

/// Runs a script with the port and the name of the server as its arguments; it prints `ok` at its end.
async fn run(target: &Target, script: &'static str) {
    let (port, name) = (target.address.port().to_string(), target.name);
    let output = tokio::task::spawn_blocking(move || run_python(script, &[&port, name])).await.unwrap();
    assert_eq!(output.lines().last(), Some("ok"), "{}: {output}", target.name);
}

const PYTHON_ETCD: &str = r#"
import sys, threading, time
import etcd

client = etcd.Client(port=int(sys.argv[1]), read_timeout=20)
other = etcd.Client(port=int(sys.argv[1]), allow_reconnect=True)

def fails(error, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as e:
        return e
    raise AssertionError(f"{call} did not raise {error}")

made = client.write("/d/a", "one")
assert made.newKey and made.action == "set" and made.value == "one"
assert client.read("/d/a").value == "one" and client.get("/d/a").etcd_index == made.modifiedIndex
assert "/d/a" in client and "/d/b" not in client
fails(etcd.EtcdKeyNotFound, client.read, "/none")
fails(etcd.EtcdAlreadyExist, client.write, "/d/a", "x", prevExist=False)
fails(etcd.EtcdNotFile, client.write, "/d", "x")
fails(etcd.EtcdNotDir, client.write, "/d/a/b", "x")
fails(etcd.EtcdDirNotEmpty, client.delete, "/d", dir=True)
fails(etcd.EtcdRootReadOnly, client.delete, "/", recursive=True)
fails(etcd.EtcdCompareFailed, client.test_and_set, "/d/a", "two", "wrong")
swapped = client.test_and_set("/d/a", "two", "one")
assert swapped.value == "two" and swapped._prev_node.value == "one" and not swapped.newKey
swapped.value = "three"
assert client.update(swapped).value == "three"
fails(etcd.EtcdCompareFailed, client.update, swapped)
for value in ["1", "2", "3"]:
    client.write("/q", value, append=True)
assert [n.value for n in client.read("/q", sorted=True).leaves] == ["1", "2", "3"]
client.write("/deep/er/key", "é <&> \u2028")
assert [n.value for n in client.read("/deep", recursive=True).leaves] == ["é <&> \u2028"]
assert client.pop("/deep/er/key").value == "é <&> \u2028"
assert client.delete("/deep", recursive=True).action == "delete"

# Watches.
started = time.monotonic()
fails(etcd.EtcdWatchTimedOut, client.watch, "/d/a", timeout=1)
assert 0.9 < time.monotonic() - started < 10
# Again and again, until the watch has begun and is told.
told = threading.Event()
def write_until_told():
    while not told.wait(0.2):
        other.write("/d/a", "four")
writer = threading.Thread(target=write_until_told)
writer.start()
assert client.watch("/d/a", timeout=20).value == "four"
told.set()
writer.join()
index = client.read("/d/a").etcd_index
def write_three():
    for value in ["w1", "w2", "w3"]:
        other.write("/w/x", value)
threading.Timer(0.2, write_three).start()
seen = []
for event in client.eternal_watch("/w", index=index + 1, recursive=True):
    seen.append(event.value)
    if len(seen) == 3:
        break
assert seen == ["w1", "w2", "w3"], seen
for _ in range(1001):
    client.write("/flood", "x")
if sys.argv[2] == "gateway":
    # Its past ends where that of the cluster does.
    assert client.watch("/flood", index=index).value == "x"
else:
    cleared = fails(etcd.EtcdEventIndexCleared, client.watch, "/d/a", index=index)
    assert cleared.payload["index"] == client.read("/flood").etcd_index

# TTLs.
ends = client.write("/ends", "x", ttl=20)
assert ends.ttl == 20
client.refresh("/ends", ttl=30)
assert 28 <= client.read("/ends").ttl <= 30 and client.read("/ends").value == "x"
soon = client.write("/soon", None, dir=True, ttl=1)
expired = client.watch("/soon", index=soon.modifiedIndex + 1, timeout=20)
assert expired.action == "expire" and expired.dir

# About the server.
assert client.machines == [f"http://127.0.0.1:{sys.argv[1]}"], client.machines
members = client.members
assert client.leader in members.values() and client.leader["clientURLs"] == client.machines
assert client.stats["state"] == "StateLeader" and client.leader_stats["followers"] == {}
assert client.store_stats["setsSuccess"] > 1000
assert client.version.startswith("3.") and client.cluster_version.startswith("3.")

# A recipe of the client.
lock, rival = etcd.Lock(client, "job"), etcd.Lock(other, "job")
assert lock.acquire(blocking=False, lock_ttl=30) and not rival.acquire(blocking=False, lock_ttl=30)
lock.release()
assert rival.acquire(blocking=True, lock_ttl=30, timeout=20)
rival.release()
print("ok")
"#;

#[tokio::test]
async fn python_etcd_does_not_notice() {
    let servers =
        [Target::etcd(Version::V34).await, Target::embedded().await, Target::gateway(Version::V35).await];
    join_all(servers.iter().map(|target| run(target, PYTHON_ETCD))).await;
}

const ETCD_STORE: &str = r#"
import datetime, sys, threading
import etcd
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

def store(timeout=20):
    client = etcd.Client(port=int(sys.argv[1]))
    return EtcdStore(client, "/stores/one/", timeout=datetime.timedelta(seconds=timeout))

one, two = store(), store()
one.set("key", b"\x00\xff")
assert two.get("key") == b"\x00\xff"
threading.Timer(0.2, two.set, ("later", "value")).start()
assert one.get("later") == b"value"
assert not one.check(["key", "none"]) and one.check(["key", "later"])
two.wait(["key", "later"])
try:
    store(1).get("none")
except LookupError:
    pass
else:
    raise AssertionError("a key that is not there was found")

def count(store):
    for _ in range(50):
        store.add("counter", 1)
threads = [threading.Thread(target=count, args=(store(),)) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert one.add("counter", 0) == 200
print("ok")
"#;

#[tokio::test]
async fn the_etcd_store_of_pytorch_runs_on_it() {
    let servers = [Target::embedded().await, Target::gateway(Version::V34).await];
    join_all(servers.iter().map(|target| run(target, ETCD_STORE))).await;
}

const RENDEZVOUS: &str = r#"
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.etcd_rendezvous import create_rdzv_handler
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend

def params(backend):
    return RendezvousParameters(
        backend=backend, endpoint=f"127.0.0.1:{sys.argv[1]}", run_id="run", min_nodes=2, max_nodes=2,
        timeout=60, join_timeout=60, local_addr="127.0.0.1",
    )

def etcd_v2():
    backend, store = create_backend(params("etcd-v2"))
    return create_handler(store, backend, params("etcd-v2"))

for name, new in [("etcd", lambda: create_rdzv_handler(params("etcd"))), ("etcd-v2", etcd_v2)]:
    nodes = [new(), new()]
    with ThreadPoolExecutor(2) as pool:
        def meet(node):
            info = node.next_rendezvous()
            info.store.set(f"hello{info.rank}", str(info.rank))
            heard = int(info.store.get(f"hello{1 - info.rank}"))
            assert heard == 1 - info.rank
            # Nobody leaves while the other still talks to its store.
            done.wait()
            return info.rank, info.world_size
        done = threading.Barrier(2, timeout=60)
        met = sorted(pool.map(meet, nodes))
    assert met == [(0, 2), (1, 2)], (name, met)
    assert nodes[0].num_nodes_waiting() == 0 and nodes[0].get_backend() == name
    nodes[0].set_closed()
    # The dynamic handler looks again after a second.
    while not nodes[1].is_closed():
        time.sleep(0.05)
    try:
        nodes[1].next_rendezvous()
    except RendezvousClosedError:
        pass
    else:
        raise AssertionError("a closed run let somebody in")
    for node in nodes:
        node.shutdown()
print("ok")
"#;

#[tokio::test]
#[ignore = "it takes long: scripts/test long"]
async fn the_etcd_rendezvous_backends_of_pytorch_run_on_it() {
    let servers = [Target::embedded().await, Target::gateway(Version::V35).await];
    join_all(servers.iter().map(|target| run(target, RENDEZVOUS))).await;
}
