//! Who is waited for while the nodes meet, and how that is known.

use std::collections::HashSet;

use rallypoint_core::text::{are, count};
use serde::Serialize;

use rallypoint_rendezvous::Whom;

use crate::absent::lost_at;
use crate::not_back::waits_for_any;
use crate::source::{Missing, Seen};
use crate::text::{line, name};

/// Letters of how it is known.
const WORDS: usize = 300;
/// Of many that are missing the first are named, and fewer in one line.
const NAMED: usize = 64;
const NAMED_IN_A_LINE: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct WhoIsMissing {
    pub(crate) text: String,
    /// The same in parts: what is said before the names, those that are in it, and what comes after them.
    lead: String,
    named: Vec<String>,
    rest: String,
    /// Since when, where that is known.
    pub(crate) since_ms: Option<u64>,
    /// How many are there all the same.
    pub(crate) here: String,
    /// How that is known, where it is the same for all.
    why: String,
    pub(crate) nodes: Vec<Missing>,
}

/// Who is waited for, as long as the nodes meet.
pub(crate) fn missing(seen: &Seen) -> Option<WhoIsMissing> {
    if !seen.meets() {
        return None;
    }
    // Some of those who are waited for are there, and have not stopped their workers yet.
    let there: HashSet<&str> = seen.nodes.iter().map(|node| node.node.as_str()).collect();
    let mut absent: Vec<&Missing> =
        seen.missing.iter().filter(|missing| !there.contains(missing.node.as_str())).collect();
    let late = seen.nodes.iter().filter(|node| node.state == "member").count();
    let needed = seen.settings.as_ref().map_or(0, |needs| needs.min_nodes);
    let lack = needed.saturating_sub(seen.present()).max(absent.len());
    // Where names are not known, it is those that say that they are sick.
    let sick = seen.unhealthy.iter().filter(|sick| !there.contains(sick.node.as_str()));
    let sick: Vec<Missing> = sick
        .filter(|sick| absent.iter().all(|missing| missing.node != sick.node))
        .map(|sick| Missing { node: sick.node.clone(), why: "it fails its health checks".to_owned() })
        .collect();
    absent.extend(sick.iter().take(lack.saturating_sub(absent.len())));
    let of = if seen.round == 0 { needed.max(seen.present() + lack) } else { seen.world_size.max(lack) };
    let (mut lead, mut rest, mut named) = (String::new(), String::new(), Vec::new());
    if waits_for_any(seen) {
        // Any of those who were lost would do, in whichever round that was.
        let (here, names) = (seen.present(), seen.not_back.iter().map(|lost| name(&lost.node)));
        let more = count(needed.saturating_sub(here), "more node");
        lead = format!("Waits for {more} ({here} of {needed})");
        return Some(WhoIsMissing {
            text: format!("{lead}. Not back: {}", short(names.collect())),
            lead,
            named,
            rest,
            since_ms: None,
            here: self::here(seen, here, needed),
            why: String::new(),
            nodes: Vec::new(),
        });
    }
    if lack > 0 && absent.is_empty() && !seen.excluded.is_empty() {
        let out = seen.excluded.iter().map(|it| match &it.whom {
            Whom::Node(node) => name(node),
            Whom::Host(host) => format!("host {}", name(host)),
        });
        let out = short(out.collect());
        lead = format!(
            "{}; {} excluded: {out}",
            are(lack, "more node", "needed"),
            if seen.excluded.len() == 1 { "1 is".to_owned() } else { format!("{} are", seen.excluded.len()) }
        );
    } else if lack > 0 {
        let verb = if lack == 1 { "is" } else { "are" };
        lead = format!("{lack} of {} {verb} missing", count(of, "node"));
        named = absent.iter().take(NAMED_IN_A_LINE).map(|missing| name(&missing.node)).collect();
        if named.is_empty() {
            let whose = if lack == 1 { "its name is" } else { "their names are" };
            lead.push_str(&format!("; {whose} not known"));
        } else {
            lead.push_str(": ");
        }
        if lack > named.len() && !named.is_empty() {
            rest = format!(" and {} more", lack - named.len());
        }
    }
    if late > 0 {
        let of = if lack > 0 { String::new() } else { format!(" of {of}") };
        let between = if lack > 0 { ". " } else { "" };
        let verb = if late == 1 { "has" } else { "have" };
        rest.push_str(&format!("{between}{late}{of} {verb} yet to leave round {}", seen.round));
    }
    let shown = |missing: &&Missing| Missing { node: name(&missing.node), why: line(&missing.why, WORDS) };
    let why = line(&common(&absent), WORDS);
    let since_ms = absent.iter().filter_map(|missing| lost_at(seen, &missing.node)).min();
    let here = if seen.round == 0 { String::new() } else { here(seen, of.saturating_sub(lack), of) };
    let text = format!("{lead}{}{rest}", named.join(", "));
    (!text.is_empty()).then(|| WhoIsMissing {
        text,
        lead,
        named,
        rest,
        since_ms,
        here,
        why,
        nodes: absent.iter().take(NAMED).map(shown).collect(),
    })
}

/// Of many names the first few.
fn short(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED_IN_A_LINE);
    names.truncate(NAMED_IN_A_LINE);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", names.join(", "))
}

/// How many of the members are there, and who could take the places of the others.
fn here(seen: &Seen, members: usize, of: usize) -> String {
    let waiting = seen.nodes.iter().filter(|node| node.state == "waiting").count();
    let waiting = match waiting {
        0 => String::new(),
        1 => "1 node waits to get in, ".to_owned(),
        many => format!("{many} nodes wait to get in, "),
    };
    let spares = if seen.spares == 0 { "no spares".to_owned() } else { count(seen.spares, "spare") };
    format!("{members} of {of} are here, {waiting}{spares}")
}

/// For whom the others wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Waits {
    pub(crate) count: usize,
    pub(crate) since_ms: Option<u64>,
}

pub(crate) fn waits(seen: &Seen) -> Option<Waits> {
    let needed = seen.settings.as_ref().map_or(0, |needs| needs.min_nodes);
    let count = needed.checked_sub(seen.present()).filter(|lack| *lack > 0)?;
    let open = seen.parts.last().filter(|part| part.to_ms.is_none()).map(|part| part.span.from_ms);
    seen.meets().then_some(Waits { count, since_ms: open })
}

/// How it is known that they are missing, if it is the same for all but for their ranks.
fn common(missing: &[&Missing]) -> String {
    let Some((first, rest)) = missing.split_first() else { return String::new() };
    if rest.iter().all(|missing| missing.why == first.why) {
        return first.why.clone();
    }
    // `node 17 of round 1 died`.
    let after_rank = |missing: &&&Missing| {
        let (rank, rest) = missing.why.strip_prefix("node ")?.split_once(" of round ")?;
        let (round, what) = rest.split_once(' ')?;
        rank.parse::<u64>().ok().map(|_| format!("members of round {round}; each {what}"))
    };
    let whys: Option<Vec<String>> = missing.iter().map(|missing| after_rank(&missing)).collect();
    match whys {
        Some(whys) if whys.iter().all(|why| *why == whys[0]) => whys[0].clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(run: serde_json::Value) -> Option<WhoIsMissing> {
        missing(&serde_json::from_value(run).unwrap())
    }

    fn nodes(names: impl IntoIterator<Item = usize>) -> Vec<serde_json::Value> {
        names.into_iter().map(|n| json!({"node": format!("gpu-{n:03}"), "state": "joining"})).collect()
    }

    #[test]
    fn who_is_missing_of_64_is_said_in_one_line() {
        let settings = json!({"min_nodes": 64, "max_nodes": 64});
        let run = |missing| json!({"state": "meeting", "settings": settings, "nodes": nodes((0..64).filter(|n| *n != 17)), "missing": missing});
        let named = of(run(json!([{"node": "gpu-017", "why": "the others count from gpu-000 to gpu-063"}])));
        assert_eq!(named.unwrap().text, "1 of 64 nodes is missing: gpu-017");
        let nameless = of(run(json!([])));
        assert_eq!(nameless.unwrap().text, "1 of 64 nodes is missing; its name is not known");
        let mut sick = run(json!([]));
        sick["unhealthy"] = json!([{"node": "gpu-017", "problems": ["7 GPUs are there, of 8"]}, {"node": "gpu-018", "problems": []}]);
        let sick = of(sick).unwrap();
        assert_eq!(sick.text, "1 of 64 nodes is missing: gpu-017", "the other one is there");
        assert_eq!(sick.why, "it fails its health checks");
    }

    #[test]
    fn those_who_meet_again_are_waited_for_and_only_those_who_are_gone_are_missing() {
        let missing = |names: std::ops::Range<usize>| -> Vec<_> {
            names.map(|n| json!({"node": format!("gpu-{n:03}"), "why": "of round 3"})).collect()
        };
        let text = |there, late, gone| {
            let mut nodes = nodes(0..there);
            nodes.iter_mut().take(late).for_each(|node| node["state"] = "member".into());
            let run = json!({"state": "meeting again", "round": 3, "world_size": 12, "nodes": nodes, "missing": missing(0..gone)});
            of(run).map(|missing| (missing.text, missing.nodes.len()))
        };
        let said = |text: &str, named| Some((text.to_owned(), named));
        assert_eq!(
            text(11, 11, 12),
            said("1 of 12 nodes is missing: gpu-011. 11 have yet to leave round 3", 1)
        );
        assert_eq!(text(12, 1, 1), said("1 of 12 has yet to leave round 3", 0));
        let (many, named) = text(2, 2, 12).unwrap();
        assert!(
            many.starts_with("10 of 12 nodes are missing: gpu-002, ")
                && many.contains("gpu-009 and 2 more. 2 have"),
            "{many}"
        );
        assert_eq!(named, 10);
        assert_eq!(text(12, 0, 0), None);
    }

    #[test]
    fn who_waits_to_get_in_is_not_one_of_those_that_are_here_still() {
        let mut there = nodes(0..3);
        there
            .extend([json!({"node": "new", "state": "waiting"}), json!({"node": "spare", "state": "spare"})]);
        let lost = json!([{"node": "gpu-003", "rank": 3, "why": "died"}]);
        let event = json!({"event": "lost", "round": 1, "at_ms": 70, "lost": lost});
        let run = json!({"state": "meeting again", "round": 1, "world_size": 4, "spares": 1, "nodes": there,
            "missing": [{"node": "gpu-003", "why": "node 3 of round 1 died"}], "events": [event]});
        let told = of(run).unwrap();
        assert_eq!(told.text, "1 of 4 nodes is missing: gpu-003");
        assert_eq!(told.here, "3 of 4 are here, 1 node waits to get in, 1 spare");
        assert_eq!(told.since_ms, Some(70));
    }

    #[test]
    fn where_any_of_several_would_do_all_who_have_not_come_back_are_named() {
        let lost = |numbers: &[usize]| -> Vec<_> {
            numbers
                .iter()
                .map(|n| json!({"node": format!("gpu-{n:03}"), "why": "died", "at_ms": 100 - n}))
                .collect()
        };
        let run = |not_back: &[usize], missing: serde_json::Value| {
            json!({"state": "meeting again", "round": 2, "world_size": 10, "nodes": nodes(0..9), "missing": missing,
                "settings": {"min_nodes": 10, "max_nodes": 12}, "not_back": lost(not_back)})
        };
        let eleven = json!([{"node": "gpu-011", "why": "node 9 of round 2 died"}]);
        let told = of(run(&[11, 4 + 10, 19], eleven.clone())).unwrap();
        assert_eq!(told.text, "Waits for 1 more node (9 of 10). Not back: gpu-011, gpu-014, gpu-019");
        assert_eq!((&*told.here, told.since_ms), ("9 of 10 are here, no spares", None));
        assert_eq!(
            of(run(&[11], eleven)).unwrap().text,
            "1 of 10 nodes is missing: gpu-011",
            "there is no other"
        );
        let unknown = json!([{"node": "gpu-013", "why": "node 9 of round 2 is gone"}]);
        assert_eq!(
            of(run(&[11], unknown)).unwrap().text,
            "1 of 10 nodes is missing: gpu-013",
            "it must be named"
        );
    }

    #[test]
    fn who_is_excluded_before_the_first_round_is_not_said_to_be_unknown() {
        let out = |node: &str| json!({"node": node, "reason": "sick", "by": "", "at_ms": 1});
        let run = json!({"state": "meeting", "settings": {"min_nodes": 12, "max_nodes": 12}, "nodes": nodes(4..13),
            "excluded": [out("gpu-001"), out("gpu-003")]});
        assert_eq!(of(run).unwrap().text, "3 more nodes are needed; 2 are excluded: gpu-001, gpu-003");
    }

    #[test]
    fn what_is_known_of_all_who_are_missing_is_said_once() {
        let common = |whys: &[&str]| {
            let all: Vec<_> =
                whys.iter().map(|why| Missing { node: String::new(), why: (*why).to_owned() }).collect();
            super::common(&all.iter().collect::<Vec<_>>())
        };
        assert_eq!(common(&["by the numbers", "by the numbers"]), "by the numbers");
        assert_eq!(common(&["node 17 of round 1 died"]), "node 17 of round 1 died");
        assert_eq!(
            common(&["node 17 of round 1 died", "node 3 of round 1 died"]),
            "members of round 1; each died"
        );
        assert_eq!(common(&["node 17 of round 1 died", "node 3 of round 1 left"]), "");
        assert_eq!(common(&[]), "");
    }
}
