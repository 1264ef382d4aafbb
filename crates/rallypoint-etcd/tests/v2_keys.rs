//! The keys API of the v2 client, operation by operation, on real etcd 3.4 and 3.5.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::collections::HashSet;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_etcd::ErrorKind;
use rallypoint_etcd::v2::{Action, Client, Code, Delete, Get, MAX_FORM, MAX_TTL, Put, Refusal, Response};
use rallypoint_testkit::{Etcd, Version};

async fn start(version: Version) -> (Etcd, Client) {
    let etcd = Etcd::builder(version).v2().start();
    let client = Client::connect(EtcdSettings::new(&etcd.endpoint()).unwrap()).await.unwrap();
    (etcd, client)
}

/// Runs a test on each etcd.
macro_rules! on_each_etcd {
    ($($name:ident)*) => {
        $(#[tokio::test] async fn $name() {
            for version in Version::WITH_V2 {
                let (mut etcd, client) = start(version).await;
                checks::$name(&mut etcd, &client).await;
            }
        })*
    };
}

on_each_etcd! {
    values_are_written_read_and_removed
    conditions_are_kept
    directories_are_made_listed_and_removed
    in_order_keys_come_out_in_order
    a_ttl_ends_a_key_and_a_refresh_prolongs_it
    any_key_and_any_text_survives
    every_refusal_has_its_code
    what_is_too_large_is_refused_before_it_is_sent
    a_prefix_is_put_before_every_key_and_taken_off_again
}

fn code(result: Result<Response, rallypoint_etcd::Error>) -> Code {
    let error = result.expect_err("a refusal");
    let refusal = Refusal::of(&error).unwrap_or_else(|| panic!("not the server's: {error}"));
    assert_eq!(error.kind(), ErrorKind::V2(refusal.code), "{error}");
    refusal.code
}

mod checks {
    use super::*;

    pub(super) async fn values_are_written_read_and_removed(etcd: &mut Etcd, client: &Client) {
        let version = client.version().await.unwrap();
        let expected = if etcd.version() == Version::V34 { "3.4." } else { "3.5." };
        assert!(version.server.starts_with(expected), "{version:?}");

        let created = client.set("/a/b", "1").await.unwrap();
        assert_eq!((created.action, created.prev_node), (Action::Set, None));
        assert_eq!(created.node.created_index, created.node.modified_index);
        let read = client.get("/a/b", Get::new()).await.unwrap();
        assert_eq!(read.node, created.node);
        assert_eq!((read.node.key.as_str(), read.node.name()), ("/a/b", "b"));
        assert!(read.etcd_index >= read.node.modified_index);

        let replaced = client.set("a/b", "").await.unwrap();
        assert_eq!(replaced.node.value.as_deref(), Some(""));
        assert_eq!(replaced.prev_node.unwrap(), created.node);
        let removed = client.delete("/a/b", Delete::key()).await.unwrap();
        assert_eq!((removed.action, removed.node.value), (Action::Delete, None));

        let gone = client.find("/a/b", Get::new()).await.unwrap();
        assert_eq!((gone.node, gone.etcd_index), (None, removed.node.modified_index));
        let local = client.get("/a", Get::new().local()).await.unwrap();
        assert!(local.node.dir && local.node.nodes.is_empty());
    }

    pub(super) async fn conditions_are_kept(_: &mut Etcd, client: &Client) {
        assert_eq!(client.create("/k", "1").await.unwrap().action, Action::Create);
        assert_eq!(code(client.create("/k", "2").await), Code::NodeExists);
        assert_eq!(code(client.put("/none", Put::value("1").prev_exist(true)).await), Code::KeyNotFound);
        let updated = client.put("/k", Put::value("2").prev_exist(true)).await.unwrap();
        assert_eq!(updated.action, Action::Update);

        let index = updated.node.modified_index;
        assert_eq!(code(client.put("/k", Put::value("3").prev_index(index - 1)).await), Code::TestFailed);
        let swapped = client.put("/k", Put::value("3").prev_index(index)).await.unwrap();
        assert_eq!(swapped.action, Action::CompareAndSwap);
        assert_eq!(code(client.put("/k", Put::value("4").prev_value("2")).await), Code::TestFailed);
        let error = client.put("/k", Put::value("4").prev_value("x").prev_index(1)).await.unwrap_err();
        let refusal = Refusal::of(&error).unwrap();
        assert_eq!(refusal.cause, format!("[x != 3] [1 != {}]", swapped.node.modified_index));
        assert!(error.to_string().contains("compare-and-swap \"/k\" at http://127.0.0.1:"), "{error}");
        let swapped = client.put("/k", Put::value("4").prev_value("3")).await.unwrap();
        assert_eq!(swapped.node.value.as_deref(), Some("4"));

        assert_eq!(code(client.delete("/k", Delete::key().prev_value("3")).await), Code::TestFailed);
        assert_eq!(code(client.delete("/k", Delete::key().prev_index(1)).await), Code::TestFailed);
        let gone = client.delete("/k", Delete::key().prev_index(swapped.node.modified_index)).await.unwrap();
        assert_eq!(gone.action, Action::CompareAndDelete);
        assert_eq!(gone.prev_node.unwrap().value.as_deref(), Some("4"));
        client.set("/k", "5").await.unwrap();
        client.delete("/k", Delete::key().prev_value("5")).await.unwrap();
    }

    pub(super) async fn directories_are_made_listed_and_removed(_: &mut Etcd, client: &Client) {
        let made = client.put("/d", Put::dir().prev_exist(false)).await.unwrap();
        assert!(made.node.dir);
        client.delete("/d", Delete::dir()).await.unwrap();
        for key in ["/d/c", "/d/a", "/d/b/deep", "/d/_hidden"] {
            client.set(key, key).await.unwrap();
        }
        let names = |response: Response| {
            response.node.nodes.iter().map(|node| node.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(client.get("/d", Get::new().sorted()).await.unwrap()), ["a", "b", "c"]);
        let flat = client.get("/d", Get::new().sorted()).await.unwrap();
        assert!(flat.node.nodes[1].nodes.is_empty(), "only what is right in it");
        let whole = client.get("/d", Get::new().sorted().recursive()).await.unwrap();
        assert_eq!(whole.node.nodes[1].nodes[0].key, "/d/b/deep");
        assert!(names(client.get("/", Get::new()).await.unwrap()).contains(&"d".to_owned()));

        assert_eq!(code(client.delete("/d", Delete::dir()).await), Code::DirectoryNotEmpty);
        client.delete("/d", Delete::tree()).await.unwrap();
        assert_eq!(code(client.get("/d/b/deep", Get::new()).await), Code::KeyNotFound);
    }

    pub(super) async fn in_order_keys_come_out_in_order(_: &mut Etcd, client: &Client) {
        for i in 0..12 {
            let value = i.to_string();
            let pushed = client.push("/queue", Put::value(&value)).await.unwrap();
            assert_eq!(pushed.action, Action::Create);
        }
        client.push("/queue", Put::value("12").ttl(Duration::from_secs(100))).await.unwrap();
        let queue = client.get("/queue", Get::new().sorted()).await.unwrap().node.nodes;
        let values: Vec<u32> =
            queue.iter().map(|node| node.value.as_deref().unwrap().parse().unwrap()).collect();
        assert_eq!(values, (0..13).collect::<Vec<_>>());
        assert_eq!(queue[12].ttl, Some(100));
    }

    pub(super) async fn a_ttl_ends_a_key_and_a_refresh_prolongs_it(etcd: &mut Etcd, client: &Client) {
        let second = Duration::from_secs(1);
        let short = client.put("/short", Put::value("v").ttl(second)).await.unwrap();
        assert_eq!(short.node.ttl, Some(1));
        assert!(short.node.expiration.is_some());
        // It is there yet when it is refreshed, also on a busy machine.
        let kept = client.put("/kept", Put::value("v").ttl(5 * second)).await.unwrap();
        let refreshed = client.put("/kept", Put::refresh(Duration::from_secs(60))).await.unwrap();
        assert_eq!((refreshed.action, refreshed.node.ttl), (Action::Update, Some(60)));
        assert_eq!(refreshed.node.value.as_deref(), Some("v"), "a refresh keeps the value");
        let mut watcher = client.watch("/kept", kept.node.modified_index + 1);

        let expired = client.watch("/short", short.node.modified_index + 1).next().await.unwrap();
        let rallypoint_etcd::v2::Watched::Event(expired) = expired else { panic!("{expired:?}") };
        assert_eq!(expired.action, Action::Expire);
        assert!(expired.action.removes());
        assert_eq!(code(client.get("/short", Get::new()).await), Code::KeyNotFound);
        let kept = client.get("/kept", Get::new()).await.unwrap().node;
        assert!(kept.ttl.unwrap() > 10);
        client.set("/kept", "again").await.unwrap();
        let rallypoint_etcd::v2::Watched::Event(event) = watcher.next().await.unwrap() else { panic!() };
        assert_eq!(event.node.value.as_deref(), Some("again"), "nobody is told of a refresh");
        assert_eq!(event.node.ttl, None, "a write without a TTL drops it");

        let long = client.put("/long", Put::value("v").ttl(Duration::MAX)).await.unwrap();
        assert_eq!(long.node.ttl.unwrap().unsigned_abs(), MAX_TTL.as_secs());
        assert_eq!(client.get("/long", Get::new()).await.unwrap().node.value.as_deref(), Some("v"));

        // A directory: 3.4 refreshes it. 3.5 says 300 "Raft Internal Error" and means "not a file".
        client.put("/dir", Put::dir().ttl(Duration::from_secs(50))).await.unwrap();
        let refreshed = client.put("/dir", Put::refresh(Duration::from_secs(70))).await;
        match etcd.version() {
            Version::V34 => assert_eq!(refreshed.unwrap().node.ttl, Some(70)),
            _ => assert_eq!(code(refreshed), Code::NotAFile),
        }
    }

    pub(super) async fn any_key_and_any_text_survives(_: &mut Etcd, client: &Client) {
        let texts = [
            "?",
            "+",
            "%",
            "%2F",
            "#",
            "&=;",
            " ",
            "a b",
            "\"'<>\\^`{|}",
            "ключ/ü",
            "\0",
            "~-._",
            "\n\t",
            "==",
            "…",
        ];
        for text in texts {
            let written = client.set(text, text).await.unwrap();
            assert_eq!(written.node.key, format!("/{text}"));
            let read = client.get(text, Get::new()).await.unwrap().node;
            assert_eq!((read.key, read.value.as_deref()), (format!("/{text}"), Some(text)));
        }
        let names: HashSet<String> =
            client.get("", Get::new()).await.unwrap().node.nodes.into_iter().map(|node| node.key).collect();
        assert_eq!(names.len(), texts.len(), "{names:?}");
        for text in texts {
            client.delete(text, Delete::key().prev_value(text)).await.unwrap();
        }
        // Slashes separate, however many.
        client.set("//x///y/", "1").await.unwrap();
        assert_eq!(client.get("/x/y", Get::new()).await.unwrap().node.key, "/x/y");
        let long = "k".repeat(4000);
        client.set(&long, "1").await.unwrap();
        assert_eq!(client.get(&long, Get::new()).await.unwrap().node.name(), long);

        for wrong in ["/x/../y", ".", &"k".repeat(4094)] {
            assert!(!client.takes(wrong));
            let error = client.set(wrong, "1").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        }
    }

    pub(super) async fn every_refusal_has_its_code(_: &mut Etcd, client: &Client) {
        client.set("/file", "1").await.unwrap();
        client.set("/dir/file", "1").await.unwrap();
        let second = Duration::from_secs(1);
        for (result, expected) in [
            (client.get("/none", Get::new()).await, Code::KeyNotFound),
            (client.delete("/none", Delete::key()).await, Code::KeyNotFound),
            (client.put("/none", Put::refresh(second)).await, Code::KeyNotFound),
            (client.put("/file", Put::value("2").prev_value("x")).await, Code::TestFailed),
            (client.set("/dir", "1").await, Code::NotAFile),
            (client.delete("/dir", Delete::key()).await, Code::NotAFile),
            (client.set("/file/below", "1").await, Code::NotADirectory),
            (client.create("/file", "1").await, Code::NodeExists),
            (client.put("/dir", Put::dir().prev_exist(false)).await, Code::NodeExists),
            (client.set("/", "1").await, Code::RootReadOnly),
            (client.delete("/", Delete::tree()).await, Code::RootReadOnly),
            (client.delete("/dir", Delete::dir()).await, Code::DirectoryNotEmpty),
            (client.put("/file", Put::value("2").prev_value("")).await, Code::PrevValueRequired),
            (client.delete("/file", Delete::key().prev_value("")).await, Code::PrevValueRequired),
        ] {
            assert_eq!(code(result), expected);
        }
        // Nothing of that was carried out.
        assert_eq!(client.get("/file", Get::new()).await.unwrap().node.value.as_deref(), Some("1"));
    }

    pub(super) async fn what_is_too_large_is_refused_before_it_is_sent(etcd: &mut Etcd, client: &Client) {
        let fits = "x".repeat(MAX_FORM - "value=".len());
        client.set("/large", &fits).await.unwrap();
        let read = client.get("/large", Get::new()).await.unwrap();
        assert_eq!(read.node.value.map(|value| value.len()), Some(fits.len()));
        let error = client.set("/large", &(fits + "x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.to_string().contains(&MAX_FORM.to_string()), "{error}");
        // Its log must be readable when it starts again.
        etcd.restart();
        client.get("/large", Get::new()).await.unwrap();
    }

    pub(super) async fn a_prefix_is_put_before_every_key_and_taken_off_again(
        etcd: &mut Etcd,
        client: &Client,
    ) {
        for (prefix, key, whole) in [
            ("/team", "/a/b", "/team/a/b"),
            ("team2/", "a/b", "/team2/a/b"),
            ("/x/job-", "7/a", "/x/job-7/a"),
        ] {
            let mut settings = EtcdSettings::new(&etcd.endpoint()).unwrap();
            settings.prefix = prefix.to_owned();
            let ours = Client::connect_lazily(settings).unwrap();
            let written = ours.set(key, "1").await.unwrap();
            assert_eq!(client.get(whole, Get::new()).await.unwrap().node.value.as_deref(), Some("1"));
            let again = ours.get(&written.node.key, Get::new()).await.unwrap();
            assert_eq!(again.node, written.node);
            assert_eq!(format!("{}{}", prefix.trim_matches('/'), written.node.key), whole.trim_matches('/'));
            ours.set(key, "2").await.unwrap();
            let list = ours.get(key.rsplit_once('/').unwrap().0, Get::new().recursive()).await.unwrap();
            assert_eq!(list.node.nodes[0].key, written.node.key);
        }
    }
}
