//! The rules of the tree, one by one. That etcd has the same ones is for the tests beside a real etcd to say.

use futures::FutureExt as _;
use std::time::Duration;

use http::Method;

use super::*;
use crate::v2::wire::Request;

#[path = "large_tests.rs"]
mod large;

/// A tree and the time it lives in.
struct World {
    store: Store,
    millis: u64,
}

impl World {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        World { store: Store::new(limits), millis: 1_700_000_000_000 }
    }

    fn now(&self) -> Time {
        Time::since_epoch(Duration::from_millis(self.millis))
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        self.store.expire(self.now());
    }

    fn apply(&mut self, method: &Method, path: &str, fields: &str) -> Result<Answer> {
        let request = Request::parse(method, Path::clean(path.as_bytes()), fields.as_bytes(), b"")?;
        self.store.apply(self.now(), &request.path, request.op)
    }

    /// The answer as it goes over the wire, with the index that the answer is at.
    fn call(&mut self, method: &Method, path: &str, fields: &str) -> String {
        let json = match self.apply(method, path, fields) {
            Ok(Answer::Event(event)) => event.to_json(),
            Ok(Answer::Listing(listing)) => listing.event().to_json(),
            Ok(Answer::Watch(_)) => panic!("use `watch`"),
            Err(error) => error.to_json(),
        };
        String::from_utf8(json.to_vec()).unwrap().trim_end().to_owned()
    }

    fn get(&mut self, path: &str) -> String {
        self.call(&Method::GET, path, "")
    }

    fn put(&mut self, path: &str, fields: &str) -> String {
        self.call(&Method::PUT, path, fields)
    }

    fn delete(&mut self, path: &str, fields: &str) -> String {
        self.call(&Method::DELETE, path, fields)
    }

    fn watch(&mut self, path: &str, fields: &str) -> Watch {
        match self.apply(&Method::GET, path, &format!("wait=true&{fields}")) {
            Ok(Answer::Watch(watch)) => watch,
            other => panic!("{other:?}"),
        }
    }
}

fn told(watch: &mut Watch) -> Vec<String> {
    let name = |event: Arc<Event>| {
        format!("{} {}", event.action.name(), String::from_utf8_lossy(event.node.path.as_bytes()))
    };
    std::iter::from_fn(|| watch.next().now_or_never().flatten()).map(name).collect()
}

#[test]
fn a_set_replaces_and_an_update_keeps_the_created_index() {
    let mut world = World::new();
    let first = r#""node":{"key":"/a","value":"1","modifiedIndex":4,"createdIndex":4}"#;
    assert_eq!(world.put("/a", "value=1"), format!("{{\"action\":\"set\",{first}}}"));
    assert_eq!(
        world.put("/a", "value=2"),
        r#"{"action":"set","node":{"key":"/a","value":"2","modifiedIndex":5,"createdIndex":5},"prevNode":{"key":"/a","value":"1","modifiedIndex":4,"createdIndex":4}}"#
    );
    assert_eq!(
        world.put("/a", "value=3&prevExist=true"),
        r#"{"action":"update","node":{"key":"/a","value":"3","modifiedIndex":6,"createdIndex":5},"prevNode":{"key":"/a","value":"2","modifiedIndex":5,"createdIndex":5}}"#
    );
    assert_eq!(
        world.put("/a", "value=4&prevValue=3&prevIndex=6"),
        r#"{"action":"compareAndSwap","node":{"key":"/a","value":"4","modifiedIndex":7,"createdIndex":5},"prevNode":{"key":"/a","value":"3","modifiedIndex":6,"createdIndex":5}}"#
    );
    assert_eq!(
        world.delete("/a", ""),
        r#"{"action":"delete","node":{"key":"/a","modifiedIndex":8,"createdIndex":5},"prevNode":{"key":"/a","value":"4","modifiedIndex":7,"createdIndex":5}}"#
    );
    assert_eq!(world.get("/a"), r#"{"errorCode":100,"message":"Key not found","cause":"/a","index":8}"#);
}

#[test]
fn a_failed_compare_names_what_differs_and_costs_no_index() {
    let mut world = World::new();
    world.put("/a", "value=1");
    for (fields, cause) in [
        ("prevValue=2", "[2 != 1]"),
        ("prevIndex=9", "[9 != 4]"),
        ("prevValue=2&prevIndex=9", "[2 != 1] [9 != 4]"),
        ("prevValue=1&prevIndex=9", "[9 != 4]"),
    ] {
        let failed = format!(r#"{{"errorCode":101,"message":"Compare failed","cause":"{cause}","index":4}}"#);
        assert_eq!(world.put("/a", &format!("value=3&{fields}")), failed);
        assert_eq!(world.delete("/a", fields), failed);
    }
    assert!(world.delete("/a", "prevValue=1&prevIndex=4").starts_with(r#"{"action":"compareAndDelete""#));
}

#[test]
fn only_new_nodes_are_new() {
    let mut world = World::new();
    for (fields, new) in [
        ("value=1&prevExist=false", true),
        ("value=2", false),
        ("value=2&prevExist=true", false),
        ("value=2&prevValue=2", false),
        ("dir=true", false),
    ] {
        let Ok(Answer::Event(event)) = world.apply(&Method::PUT, "/a", fields) else { panic!("{fields}") };
        assert_eq!(event.is_new_node(), new, "{fields}");
    }
    let Ok(Answer::Event(event)) = world.apply(&Method::PUT, "/b", "") else { panic!() };
    assert!(event.is_new_node());
    assert_eq!(
        world.put("/a", "prevExist=false"),
        r#"{"errorCode":105,"message":"Key already exists","cause":"/a","index":9}"#
    );
}

#[test]
fn directories_are_replaced_by_nothing_and_deleted_on_request_only() {
    let mut world = World::new();
    world.put("/d", "value=file");
    let dir = r#""node":{"key":"/d","dir":true,"modifiedIndex":5,"createdIndex":5}"#;
    assert!(world.put("/d", "dir=true").starts_with(&format!("{{\"action\":\"set\",{dir},\"prevNode\"")));
    let not_a_file =
        |index| format!(r#"{{"errorCode":102,"message":"Not a file","cause":"/d","index":{index}}}"#);
    for fields in ["dir=true", "value=x", "prevIndex=5", "value=x&prevExist=true", "refresh=true&ttl=5"] {
        assert_eq!(world.put("/d", fields), not_a_file(5), "{fields}");
    }
    for fields in ["", "prevIndex=5", "dir=true&prevIndex=5"] {
        assert_eq!(world.delete("/d", fields), not_a_file(5), "{fields}");
    }
    // An update says that the directory was modified; it still shows its old index.
    assert!(world.put("/d", "dir=true&prevExist=true").contains(r#""dir":true,"modifiedIndex":6"#));
    assert_eq!(world.get("/d"), format!("{{\"action\":\"get\",{dir}}}"));

    world.put("/d/_hidden", "");
    assert_eq!(
        world.delete("/d", "dir=true"),
        r#"{"errorCode":108,"message":"Directory not empty","cause":"/d","index":7}"#
    );
    assert_eq!(
        world.delete("/d", "recursive=true"),
        r#"{"action":"delete","node":{"key":"/d","dir":true,"modifiedIndex":8,"createdIndex":5},"prevNode":{"key":"/d","dir":true,"modifiedIndex":5,"createdIndex":5}}"#
    );
    assert_eq!((world.store.nodes(), world.store.weight()), (0, 0));
}

#[test]
fn the_root_is_read_only_and_has_no_key() {
    let mut world = World::new();
    assert_eq!(world.get("/"), r#"{"action":"get","node":{"dir":true}}"#);
    let read_only = r#"{"errorCode":107,"message":"Root is read only","cause":"/","index":3}"#;
    for fields in ["value=1", "dir=true", "prevExist=true", "prevExist=false", "prevIndex=1"] {
        assert_eq!(world.put("/", fields), read_only, "{fields}");
    }
    assert_eq!(world.delete("/", "recursive=true"), read_only);
    assert_eq!(world.delete("/", "prevIndex=1"), r#"{"errorCode":102,"message":"Not a file","index":3}"#);
}

#[test]
fn a_file_is_no_directory() {
    let mut world = World::new();
    world.put("/f", "");
    let error = r#"{"errorCode":104,"message":"Not a directory","cause":"/f","index":4}"#;
    assert_eq!(world.get("/f/a/b"), error);
    assert_eq!(world.put("/f/a", "value=1"), error);
    assert_eq!(world.put("/f/a", "value=1&prevExist=false"), error);
    assert_eq!(world.delete("/f/a", ""), error);
    assert_eq!(world.call(&Method::POST, "/f", "value=1"), error);
}

#[test]
fn listings_are_sorted_and_leave_hidden_nodes_out() {
    let mut world = World::new();
    for path in ["/d/b/x", "/d/a", "/d/_h/y", "/d/c"] {
        world.put(path, "");
    }
    let keys = |json: String| {
        json.split("\"key\":\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(world.get("/d")), ["/d", "/d/a", "/d/b", "/d/c"]);
    let all = world.call(&Method::GET, "/", "recursive=true");
    assert_eq!(keys(all), ["/d", "/d/a", "/d/b", "/d/b/x", "/d/c"]);
    assert_eq!(keys(world.get("/d/_h")), ["/d/_h", "/d/_h/y"]);
}

#[test]
fn posted_keys_are_the_index_in_twenty_digits() {
    let mut world = World::new();
    assert_eq!(
        world.call(&Method::POST, "/q", "value=1"),
        r#"{"action":"create","node":{"key":"/q/00000000000000000004","value":"1","modifiedIndex":4,"createdIndex":4}}"#
    );
    let made = r#"{"action":"get","node":{"key":"/q","dir":true,"nodes":[{"key":"/q/00000000000000000004","value":"1","modifiedIndex":4,"createdIndex":4}],"modifiedIndex":4,"createdIndex":4}}"#;
    assert_eq!(world.get("/q"), made);
    assert!(world.call(&Method::POST, "/", "").contains("\"/00000000000000000005\""));
}

#[test]
fn a_ttl_is_shown_in_begun_seconds_and_dropped_by_a_write_without_one() {
    let mut world = World::new();
    assert_eq!(
        world.put("/a", "value=1&ttl=10"),
        r#"{"action":"set","node":{"key":"/a","value":"1","expiration":"2023-11-14T22:13:30Z","ttl":10,"modifiedIndex":4,"createdIndex":4}}"#
    );
    world.pass(1001);
    assert!(world.get("/a").contains("\"expiration\":\"2023-11-14T22:13:30Z\",\"ttl\":9"));
    for fields in ["value=1&prevExist=true", "value=1&prevValue=1", "value=1"] {
        world.put("/a", "value=1&ttl=10");
        assert!(!world.put("/a", fields).split("prevNode").next().unwrap().contains("ttl"), "{fields}");
        assert_eq!(world.store.next_end(), None);
    }
    world.pass(60_000);
    assert!(world.get("/a").contains("\"value\":\"1\""));
}

#[test]
fn a_ttl_of_zero_ends_at_once_and_is_not_shown() {
    let mut world = World::new();
    let set = world.put("/a", "value=1&ttl=0");
    assert!(set.contains("expiration") && !set.contains("ttl"));
    assert_eq!(world.store.next_end(), Some(world.now()));
    assert_eq!(world.get("/a"), r#"{"errorCode":100,"message":"Key not found","cause":"/a","index":5}"#);
}

#[test]
fn each_end_costs_one_index_and_a_directory_one_in_all() {
    let mut world = World::new();
    world.put("/d", "dir=true&ttl=1");
    world.put("/d/a", "ttl=5");
    world.put("/d/b/c", "ttl=1");
    world.put("/e", "value=x&ttl=2");
    let (mut child, mut below, mut above, mut other) = (
        world.watch("/d/a", "stream=true"),
        world.watch("/d/b", "recursive=true"),
        world.watch("/", "recursive=true&stream=true"),
        world.watch("/d/none", ""),
    );
    world.pass(999);
    assert_eq!(world.store.index(), 7);
    world.pass(1);
    assert_eq!(world.store.index(), 8);
    assert_eq!(told(&mut child), ["expire /d"]);
    assert_eq!(told(&mut below), ["expire /d"]);
    assert_eq!(told(&mut other), [""; 0]);
    assert_eq!(world.store.next_end(), Some(Time::since_epoch(Duration::from_millis(world.millis + 1000))));
    world.pass(1000);
    assert_eq!(told(&mut above), ["expire /d", "expire /e"]);
    assert_eq!((world.store.nodes(), world.store.weight(), world.store.next_end()), (0, 0, None));
    // Its last value is in the event, and in the history.
    let mut past = world.watch("/e", "waitIndex=9");
    assert_eq!(
        past.next().now_or_never().flatten().unwrap().to_json(),
        "{\"action\":\"expire\",\"node\":{\"key\":\"/e\",\"modifiedIndex\":9,\"createdIndex\":7},\"prevNode\":{\"key\":\"/e\",\"value\":\"x\",\"expiration\":\"2023-11-14T22:13:22Z\",\"modifiedIndex\":7,\"createdIndex\":7}}\n"
    );
}

#[test]
fn a_refresh_keeps_the_value_raises_the_indices_and_wakes_nobody() {
    let mut world = World::new();
    world.put("/a", "value=1&ttl=10");
    let mut watch = world.watch("/a", "stream=true");
    world.pass(5000);
    assert_eq!(
        world.put("/a", "refresh=true&ttl=10"),
        r#"{"action":"set","node":{"key":"/a","value":"1","expiration":"2023-11-14T22:13:35Z","ttl":10,"modifiedIndex":5,"createdIndex":5},"prevNode":{"key":"/a","value":"1","expiration":"2023-11-14T22:13:30Z","ttl":5,"modifiedIndex":4,"createdIndex":4}}"#
    );
    assert!(
        world
            .put("/a", "refresh=true&ttl=10&prevExist=true")
            .contains(r#""modifiedIndex":6,"createdIndex":5"#)
    );
    assert!(world.put("/a", "refresh=true&ttl=10&prevIndex=6").contains(r#""value":"1","#));
    assert_eq!(told(&mut watch), [""; 0]);
    assert_eq!(told(&mut world.watch("/a", "waitIndex=5")), [""; 0]);
    world.put("/a", "value=2");
    assert_eq!(told(&mut watch), ["set /a"]);
    // The history goes on behind the refreshes.
    let mut past = world.watch("/a", "waitIndex=5");
    assert_eq!(past.next().now_or_never().flatten().unwrap().index(), 8);
    assert_eq!(
        world.put("/none", "refresh=true&ttl=10"),
        r#"{"errorCode":100,"message":"Key not found","cause":"/none","index":8}"#
    );
}

#[test]
fn a_refresh_works_on_directories() {
    let mut world = World::new();
    world.put("/d", "dir=true&ttl=10");
    world.put("/d/a", "value=1");
    world.pass(9000);
    assert_eq!(
        world.put("/d", "dir=true&refresh=true&ttl=10&prevExist=true"),
        r#"{"action":"update","node":{"key":"/d","dir":true,"expiration":"2023-11-14T22:13:39Z","ttl":10,"modifiedIndex":6,"createdIndex":4},"prevNode":{"key":"/d","dir":true,"expiration":"2023-11-14T22:13:30Z","ttl":1,"modifiedIndex":4,"createdIndex":4}}"#
    );
    world.pass(9000);
    assert!(world.get("/d/a").contains("\"value\":\"1\""));
    world.pass(1000);
    assert!(world.get("/d").contains("\"index\":7"));
}

#[test]
fn watchers_hear_of_every_write_that_succeeds() {
    let mut world = World::new();
    let mut key = world.watch("/d/a", "stream=true");
    let mut dir = world.watch("/d", "stream=true");
    let mut all = world.watch("/d", "recursive=true&stream=true");
    world.put("/d/a", "value=1");
    world.put("/d/a", "value=1");
    world.put("/d/a", "value=2&prevValue=nope");
    world.put("/d/a", "value=2&prevExist=false");
    world.put("/d/_h", "value=2");
    world.delete("/d/a", "");
    assert_eq!(told(&mut key), ["set /d/a", "set /d/a", "delete /d/a"]);
    assert_eq!(told(&mut all), ["set /d/a", "set /d/a", "delete /d/a"]);
    assert_eq!(told(&mut dir), [""; 0]);
    let mut hidden = world.watch("/d/_h", "");
    world.delete("/d", "recursive=true");
    assert_eq!(told(&mut hidden), ["delete /d"]);
    assert_eq!(told(&mut dir), ["delete /d"]);
    assert_eq!(told(&mut all), ["delete /d"]);
}

#[test]
fn a_watch_goes_back_a_thousand_events() {
    let mut world = World::new();
    world.put("/first", "");
    // The indices that no client used can be asked for too.
    assert_eq!(told(&mut world.watch("/first", "waitIndex=1")), ["set /first"]);
    for _ in 0..999 {
        world.put("/a", "");
    }
    assert_eq!(told(&mut world.watch("/first", "waitIndex=4")), ["set /first"]);
    assert_eq!(told(&mut world.watch("/", "recursive=true&waitIndex=4")), ["set /first"]);
    assert_eq!(told(&mut world.watch("/a", "stream=true&waitIndex=4")).len(), 999);
    world.put("/a", "");
    assert_eq!(
        world.apply(&Method::GET, "/a", "wait=true&waitIndex=4").unwrap_err().to_json(),
        "{\"errorCode\":401,\"message\":\"The event in requested index is outdated and cleared\",\"cause\":\"the requested history has been cleared [5/4]\",\"index\":1004}\n"
    );
    // 0 is now, and the future may be far.
    let (mut now, mut future) = (world.watch("/a", "waitIndex=0"), world.watch("/a", "waitIndex=1006"));
    world.put("/a", "");
    assert_eq!((told(&mut now).len(), told(&mut future).len()), (1, 0));
    world.put("/a", "");
    assert_eq!(told(&mut future).len(), 1);
}

#[test]
fn the_past_is_told_more_loosely_than_the_present() {
    let mut world = World::new();
    world.put("/d/_h", "");
    world.put("/d/x", "");
    world.delete("/d", "recursive=true");
    assert_eq!(told(&mut world.watch("/d", "recursive=true&waitIndex=4")), ["set /d/_h"]);
    for path in ["/d", "/d/x/y", "/db"] {
        assert_eq!(told(&mut world.watch(path, "waitIndex=6")), ["delete /d"], "{path}");
    }
}

#[test]
fn limits_are_kept_and_named() {
    let mut world = World::with(Limits { nodes: 10_000, history: 1 << 20, watchers: 2 });
    let full = "etcdserver: mvcc: database space exceeded";
    assert!(world.put("/a", &format!("value={}", "x".repeat(9000))).contains("\"set\""));
    assert!(world.put("/b", &format!("value={}", "x".repeat(1000))).contains(full));
    assert!(world.put("/a", &format!("value={}&prevExist=true", "x".repeat(10_000))).contains(full));
    for _ in 0..20 {
        world.call(&Method::POST, "/q", "");
    }
    assert!(world.store.weight() <= 10_000);
    // What does not grow can still be changed.
    assert!(world.put("/a", "refresh=true&ttl=100").contains("\"set\""));
    assert!(world.put("/a", &format!("value={}", "y".repeat(9000))).contains("\"set\""));
    world.delete("/a", "");
    assert!(world.put("/b", &format!("value={}", "x".repeat(1000))).contains("\"set\""));

    let (_one, _two) = (world.watch("/a", ""), world.watch("/b", "stream=true"));
    let error = world.apply(&Method::GET, "/c", "wait=true").unwrap_err();
    assert_eq!(error.cause, b"too many watchers: the limit is 2");
    // What is answered from the past waits for nothing.
    assert_eq!(told(&mut world.watch("/a", "waitIndex=4")), ["set /a"]);
}

#[test]
fn random_requests_never_panic_and_leave_nothing_behind() {
    const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE];
    const FIELDS: [&str; 20] = [
        "value=1",
        "value=2",
        "dir=true",
        "dir=x",
        "ttl=1",
        "ttl=0",
        "ttl=9223372037",
        "ttl=",
        "prevExist=true",
        "prevExist=false",
        "prevIndex=5",
        "prevValue=1",
        "refresh=true",
        "recursive=true",
        "wait=true",
        "stream=true",
        "waitIndex=7",
        "noValueOnSuccess=true",
        "%ff%zz",
        "a;b",
    ];
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let is_json = |text: &[u8]| assert!(serde_json::from_slice::<serde_json::Value>(text).is_ok());
    let mut world = World::with(Limits { nodes: 1 << 15, history: 1 << 16, watchers: 50 });
    let mut watches = Vec::new();
    for _ in 0..15_000 {
        let path: Vec<u8> = (0..rng.usize(..8)).map(|_| b"/ab_.\xff"[rng.usize(..6)]).collect();
        let fields: Vec<&str> = (0..rng.usize(..5)).map(|_| FIELDS[rng.usize(..FIELDS.len())]).collect();
        let (method, text) = (&METHODS[rng.usize(..METHODS.len())], fields.join("&"));
        let (query, body) = text.split_at(rng.usize(..=text.len()));
        if let Ok(request) = Request::parse(method, Path::clean(&path), query.as_bytes(), body.as_bytes()) {
            match world.store.apply(world.now(), &request.path, request.op) {
                Ok(Answer::Watch(watch)) => watches.push(watch),
                Ok(Answer::Event(event)) => is_json(&event.to_json()),
                Ok(Answer::Listing(listing)) => is_json(&listing.event().to_json()),
                Err(error) => is_json(&error.to_json()),
            }
        }
        if watches.len() > 60 {
            let watch = watches.swap_remove(rng.usize(..watches.len()));
            world.store.unwatch(&watch.place);
        }
        world.pass(rng.u64(..100));
    }
    for watch in watches {
        world.store.unwatch(&watch.place);
    }
    let Content::Dir(children) = &world.store.root.content else { unreachable!() };
    for name in children.keys().cloned().collect::<Vec<_>>() {
        let path = Path::default().child(&name);
        let delete = Op::Delete { dir: true, recursive: true };
        assert!(world.store.apply(world.now(), &path, delete).is_ok());
    }
    assert_eq!((world.store.nodes, world.store.weight, world.store.hub.count()), (0, 0, 0));
    assert_eq!(world.store.next_end(), None);
}
