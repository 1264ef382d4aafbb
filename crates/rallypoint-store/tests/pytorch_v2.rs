//! The store on the v2 wire beside PyTorch's own `EtcdStore`, on the same data.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use rallypoint_core::EtcdSettings;
use rallypoint_store::{EtcdV2Store, Store};
use rallypoint_testkit::{Etcd, Python, Version};

/// PyTorch's store, told what to do line by line. Keys and values are in hexadecimal.
const SCRIPT: &str = r#"
import datetime, sys
import etcd
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

host, port = sys.argv[1].split(":")
client = etcd.Client(host=host, port=int(port), allow_reconnect=True)
store = EtcdStore(client, sys.argv[2], timeout=datetime.timedelta(seconds=60))
print("ready")
for line in sys.stdin:
    what, *words = line.split()
    words = [bytes.fromhex(word.strip(".")) for word in words]
    if what == "set":
        store.set(*words)
        print("done")
    elif what == "get":
        print("begun")
        print("." + store.get(*words).hex())
    elif what == "wait":
        print("begun")
        store.wait(words)
        print("done")
    elif what == "check":
        print(store.check(words))
    elif what == "add":
        key, num, times = words
        print("begun")
        print(" ".join(str(store.add(key, int(num))) for _ in range(int(times))))
"#;

struct Torch(Python);

impl Torch {
    fn start(etcd: &Etcd) -> Self {
        Torch(Python::spawn(SCRIPT, &[&etcd.endpoint(), "/torch/elastic/store"]))
    }

    fn ready(&mut self) {
        assert_eq!(self.0.read_line(), "ready");
    }

    fn tell(&mut self, what: &str, words: &[&[u8]]) {
        let hex =
            |word: &&[u8]| word.iter().fold(String::from(" ."), |text, byte| format!("{text}{byte:02x}"));
        self.0.write_line(&format!("{what}{}", words.iter().map(hex).collect::<String>()));
    }

    /// Tells it to do something that takes its time; on return it has begun.
    fn begin(&mut self, what: &str, words: &[&[u8]]) {
        self.tell(what, words);
        assert_eq!(self.0.read_line(), "begun");
    }

    fn answer(&mut self) -> String {
        self.0.read_line()
    }

    fn value(&mut self) -> Vec<u8> {
        let line = self.answer();
        let hex = line.strip_prefix('.').unwrap_or_else(|| panic!("not a value: {line:?}"));
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }
}

async fn open(etcd: &Etcd) -> EtcdV2Store {
    let settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
    let store = EtcdV2Store::connect(settings, "/torch/elastic/store").await.unwrap();
    store.with_timeout(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_store_for_both() {
    for version in Version::WITH_V2 {
        let etcd = Etcd::builder(version).v2().start();
        let (mut torch, mut other) = (Torch::start(&etcd), Torch::start(&etcd));
        torch.ready();
        other.ready();
        let store = open(&etcd).await;
        each_reads_what_the_other_wrote(&mut torch, &store).await;
        each_wakes_the_others_waiters(&mut torch, &store).await;
        both_see_what_is_there(&mut torch, &store).await;
        adds_mix_without_a_lost_count([&mut torch, &mut other], &etcd).await;
        what_pytorch_cannot_keep_does_not_disturb_it(&mut torch, &store).await;
    }
}

async fn each_reads_what_the_other_wrote(torch: &mut Torch, store: &EtcdV2Store) {
    let all: Vec<u8> = (0..=255).collect();
    // Keys whose base64 has no slash, or PyTorch could not read them itself.
    let keys: [&[u8]; 6] = [b"key", b"rank/0", b"a b+c", b"\xfb\xef\xbe", "ключ".as_bytes(), b"\0"];
    let values: [&[u8]; 6] = [b"value", b"", &all, b"\xff", b"???", b"12"];
    for (key, value) in keys.iter().zip(values) {
        torch.tell("set", &[key, value]);
        assert_eq!(torch.answer(), "done");
        assert_eq!(store.get(key).await.unwrap(), value, "{}", key.escape_ascii());

        let ours = [b"ours:", value].concat();
        store.set(key, &ours).await.unwrap();
        torch.begin("get", &[key]);
        assert_eq!(torch.value(), ours, "{}", key.escape_ascii());
    }
    let mut listed = keys.map(<[u8]>::to_vec);
    listed.sort();
    assert_eq!(store.list_keys().await.unwrap(), listed);
}

async fn each_wakes_the_others_waiters(torch: &mut Torch, store: &EtcdV2Store) {
    // Whoever waits begins first; were it late it would find the key, so this can only be too kind.
    let beginning = Duration::from_millis(200);

    torch.begin("get", &[b"late1"]);
    tokio::time::sleep(beginning).await;
    store.set(b"late1", b"ours").await.unwrap();
    assert_eq!(torch.value(), b"ours");
    torch.begin("wait", &[b"late2", b"late3"]);
    tokio::time::sleep(beginning).await;
    store.add(b"late2", 1).await.unwrap();
    store.append(b"late3", b"x").await.unwrap();
    assert_eq!(torch.answer(), "done");

    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store.wait(&[b"late4", b"late5"], None).await.unwrap();
            store.get(b"late5").await.unwrap()
        }
    });
    tokio::time::sleep(beginning).await;
    torch.tell("set", &[b"late4", b""]);
    assert_eq!(torch.answer(), "done");
    assert!(!waiting.is_finished(), "late5 is still missing");
    torch.begin("add", &[b"late5", b"7", b"1"]);
    assert_eq!(torch.answer(), "7");
    assert_eq!(waiting.await.unwrap(), b"7");
}

async fn both_see_what_is_there(torch: &mut Torch, store: &EtcdV2Store) {
    store.set(b"there", b"").await.unwrap();
    assert!(!store.check(&[b"there", b"missing"]).await.unwrap());
    torch.tell("check", &[b"there"]);
    assert_eq!(torch.answer(), "True");
    torch.tell("check", &[b"there", b"missing"]);
    assert_eq!(torch.answer(), "False");
    torch.tell("set", &[b"missing", b"1"]);
    assert_eq!(torch.answer(), "done");
    assert!(store.check(&[b"there", b"missing"]).await.unwrap());
    assert!(store.delete_key(b"missing").await.unwrap());
    torch.tell("check", &[b"missing"]);
    assert_eq!(torch.answer(), "False");
}

async fn adds_mix_without_a_lost_count(torches: [&mut Torch; 2], etcd: &Etcd) {
    const THEIRS: usize = 20;
    const OURS: usize = 60;
    let [first, second] = torches;
    for torch in [&mut *first, &mut *second] {
        torch.begin("add", &[b"counter", b"1", THEIRS.to_string().as_bytes()]);
    }
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(open(etcd).await);
    }
    let ours = join_all(stores.iter().map(|store| async move {
        let mut sums = Vec::new();
        for _ in 0..OURS {
            sums.push(store.add(b"counter", 1).await.unwrap());
        }
        sums
    }))
    .await
    .concat();
    let mut sums = ours;
    for torch in [first, second] {
        sums.extend(torch.answer().split(' ').map(|sum| sum.parse::<i64>().unwrap()));
    }
    let total = i64::try_from(2 * THEIRS + 3 * OURS).unwrap();
    assert_eq!(sums.iter().copied().collect::<HashSet<_>>(), (1..=total).collect(), "each sum was seen");
    assert_eq!(sums.len(), usize::try_from(total).unwrap(), "and seen once");
    assert_eq!(stores[0].get(b"counter").await.unwrap(), total.to_string().into_bytes());
}

/// Names that PyTorch never makes, and queues: it reads its directory with them in it.
async fn what_pytorch_cannot_keep_does_not_disturb_it(torch: &mut Torch, store: &EtcdV2Store) {
    let long = vec![b'k'; 4096];
    let odd: [&[u8]; 4] = [b"", b"ab?", b"\xff\xff\xff", &long];
    let before = store.num_keys().await.unwrap();
    for key in odd {
        store.set(key, key).await.unwrap();
        store.queue_push(key, b"item").await.unwrap();
    }
    assert_eq!(store.num_keys().await.unwrap(), before + 4);
    torch.begin("get", &[b"key"]);
    assert_eq!(torch.value(), b"ours:value");
    torch.begin("wait", &[b"last"]);
    store.queue_push(b"last", b"a queue is not a key to PyTorch").await.unwrap();
    store.set(b"last", b"").await.unwrap();
    assert_eq!(torch.answer(), "done");
    for key in odd {
        assert_eq!(store.get(key).await.unwrap(), key);
        assert_eq!(store.queue_pop(key, false).await.unwrap(), b"item");
    }
}
