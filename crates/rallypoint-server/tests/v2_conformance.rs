//! Every rule of `v2_conformance.txt` holds on etcd 3.4, on etcd 3.5, on this server and on a gateway.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod v2_support;

use futures::future::join_all;
use rallypoint_testkit::Version;
use v2_support::{Answer, Target, is_alike};

const RULES: &str = include_str!("v2_conformance.txt");

#[tokio::test]
async fn every_server_answers_as_written() {
    let gateways = join_all(Version::all().into_iter().map(Target::gateway)).await;
    for target in Target::all().await.into_iter().chain(gateways) {
        let mut rules = 0;
        // The first part says how to read the rest.
        for rule in RULES.split("\n\n").skip(2) {
            check(&target, rule).await;
            rules += 1;
        }
        assert!(rules > 20);
    }
}

async fn check(target: &Target, rule: &str) {
    let base = target.get("", "").await.index.unwrap();
    let mut lines = rule.lines().peekable();
    let name = lines.next().unwrap();
    assert!(name.starts_with("# "), "{name}");
    while let Some(request) = lines.next() {
        let mut wanted = lines.next().unwrap().trim_start();
        if let Some(differs) = lines.next_if(|line| line.trim_start().starts_with("3.5: "))
            && target.name == "etcd 3.5"
        {
            wanted = differs.trim_start().trim_start_matches("3.5: ");
        }
        let answer = send(target, &with_indices(request, base)).await;
        assert!(answer.has_cluster && answer.content_type == "application/json", "{answer:?}");
        assert_eq!(answer.has_raft, answer.status < 300, "{answer:?}");
        let seen = format!("{} {} {}", answer.status, answer.index.unwrap(), answer.body);
        let wanted = with_indices(wanted, base);
        assert!(
            is_alike(seen.trim_end(), &wanted),
            "{}, {name}\n{request}\nwanted: {wanted}\nseen:   {seen}",
            target.name
        );
    }
}

async fn send(target: &Target, request: &str) -> Answer {
    let (method, rest) = request.split_once(' ').unwrap();
    let (key, fields) = rest.split_once(' ').unwrap_or((rest, ""));
    target.call(method.parse().unwrap(), key, fields).await
}

/// The text with `$n` and `$pn` written out.
fn with_indices(text: &str, base: u64) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (padded, part) = part.strip_prefix('p').map_or((false, part), |part| (true, part));
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let index = base + part[..end].parse::<u64>().unwrap();
        out += &if padded { format!("{index:020}") } else { index.to_string() };
        out += &part[end..];
    }
    out
}
