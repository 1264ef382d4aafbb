//! What the page shows of a run: all words are made here, and all that nodes wrote is made fit to be shown.

use std::collections::BTreeMap;

use rallypoint_core::endpoint::host_and_port;
use rallypoint_core::text::{are, count};
use serde::Serialize;

use crate::absent::{self, Absent, absent};
use crate::away::{self, Preempted, Sick};
use crate::exclusion::{self, Excluded};
use crate::missing::{Waits, WhoIsMissing, missing, waits};
use crate::not_back::{NotBack, not_back};
use crate::outcome::badge;
use crate::past::{self, Ended, Failure, ShownEvent};
use crate::source::{Node, Row, Seen, Summary, Unreadable};
use crate::text::{line, name};
use crate::timeline::{Timeline, timeline};

/// Letters of what a node says of itself, and of a sentence.
const WORDS: usize = 300;
/// Of a long timeline the last events are shown.
const EVENTS: usize = 300;
/// Of many that are lost or unreadable the first are named.
const NAMED: usize = 64;
/// Rows of the list of runs.
const ROWS: usize = 500;

/// A run as the page shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RunView {
    pub(crate) head: Head,
    pub(crate) timeline: Timeline,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// In the order of etcd.
    pub(crate) events: Vec<ShownEvent>,
}

/// All that is told of a run beside its nodes and its past.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Head {
    pub(crate) there: bool,
    run_id: String,
    state: String,
    /// What it does or how it ended, in a word, and how that looks.
    word: String,
    look: &'static str,
    /// What goes on, in a sentence or two.
    headline: String,
    round: u64,
    world_size: usize,
    /// How many are there, and how many it takes.
    here: String,
    needs: String,
    /// Those who came after the round was formed.
    late: usize,
    spares: usize,
    master: Option<Shown>,
    leader: Option<String>,
    missing: Option<WhoIsMissing>,
    excluded: Vec<Excluded>,
    unhealthy: Vec<Sick>,
    preempted: Vec<Preempted>,
    absent: Vec<Absent>,
    /// Lost in any round, while others would have room for them.
    pub(crate) not_back: Vec<NotBack>,
    /// For how many nodes the others wait, and since when.
    waits: Option<Waits>,
    ended: Option<Ended>,
    failure: Option<Failure>,
    summary: Option<Summary>,
    unreadable: Vec<Unreadable>,
    /// The states of nodes, in words.
    words: BTreeMap<&'static str, String>,
    is_over: bool,
    /// Said where nodes would be, if there are none.
    nobody: &'static str,
    has_ranks: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Shown {
    node: String,
    address: String,
}

impl RunView {
    /// Of a run that is not there.
    pub(crate) fn nothing(id: &str) -> Self {
        let head = Head {
            run_id: name(id),
            state: "not there".to_owned(),
            word: "not there".to_owned(),
            look: "other",
            here: "0".to_owned(),
            nobody: "No nodes are there.",
            headline: "There is no such run on this etcd. If it is started, it appears here.".to_owned(),
            is_over: true,
            ..Head::default()
        };
        RunView { head, ..RunView::default() }
    }

    pub(crate) fn of(mut seen: Seen) -> Self {
        past::number(&mut seen.events);
        let timeline = timeline(&seen);
        let head = head(&seen);
        let events = &seen.events[seen.events.len().saturating_sub(EVENTS)..];
        let events = events.iter().map(past::shown).collect();
        let nodes = seen.nodes.iter().map(node).map(|node| (node.node.clone(), node)).collect();
        RunView { head, timeline, nodes, events }
    }
}

/// The list of all runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Runs {
    text: String,
    rows: Vec<ShownRow>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct ShownRow {
    /// As it is asked for, which may be another than what is shown.
    id: String,
    #[serde(flatten)]
    row: Row,
    word: String,
    look: &'static str,
    here: String,
    needs: String,
    /// Those who came after the round was formed.
    late: usize,
    waits: Option<Waits>,
}

impl Runs {
    pub(crate) fn of(mut rows: Vec<Row>) -> Self {
        // Those that go on come first.
        let is_over = |row: &Row| ["closed", "abandoned"].contains(&&*row.state);
        rows.sort_by(|one, other| (is_over(one), &one.run_id).cmp(&(is_over(other), &other.run_id)));
        let all = rows.len();
        let text = match all {
            0 => "There are no runs of the backend rallypoint on this etcd.".to_owned(),
            _ if all > ROWS => format!("{}, of which the first {ROWS} are shown.", count(all, "run")),
            _ => String::new(),
        };
        rows.truncate(ROWS);
        let shown = |mut row: Row| {
            let id = std::mem::take(&mut row.run_id);
            row.run_id = name(&id);
            row.state = line(&row.state, WORDS);
            let (word, look) = badge(&row.state, row.closed.as_deref());
            let forms = row.state == "meeting";
            let least = row.min_nodes.unwrap_or_default();
            let meets = forms || row.state == "meeting again";
            let here = match row.there {
                there if meets && there < least => format!("{there} of {least}"),
                there if meets => there.to_string(),
                _ => row.nodes.to_string(),
            };
            let lack = if meets { least.saturating_sub(row.there) } else { 0 };
            let waits = (lack > 0).then_some(Waits { count: lack, since_ms: row.since_ms });
            let needs = needs(least, row.max_nodes.unwrap_or_default());
            let late = if forms { 0 } else { row.waiting };
            row.closed = row.closed.map(|reason| line(&reason, WORDS));
            ShownRow { id, row, word, look, here, needs, late, waits }
        };
        Runs { text, rows: rows.into_iter().map(shown).collect() }
    }
}

fn head(seen: &Seen) -> Head {
    let present = seen.present();
    let settings = seen.settings.clone().unwrap_or_default();
    let (word, look) = badge(&seen.state, seen.closed.as_deref());
    Head {
        there: true,
        run_id: name(&seen.run_id),
        state: line(&seen.state, WORDS),
        word,
        look,
        headline: headline(seen),
        round: seen.round,
        world_size: seen.world_size,
        here: if seen.state == "meeting" { format!("{present} here") } else { present.to_string() },
        needs: needs(settings.min_nodes, settings.max_nodes),
        late: seen.nodes.iter().filter(|node| node.state == "waiting").count(),
        spares: seen.spares,
        master: seen.master.as_ref().map(|master| Shown {
            node: name(&master.node),
            address: line(&host_and_port(&master.address, master.port), WORDS),
        }),
        leader: seen.leader.as_deref().map(name),
        missing: missing(seen),
        excluded: seen.excluded.iter().map(exclusion::shown).collect(),
        unhealthy: away::sick(seen),
        preempted: away::preempted(seen),
        absent: absent(seen),
        not_back: not_back(seen),
        waits: waits(seen),
        ended: past::ended(seen),
        failure: past::failure(seen),
        summary: seen.summary.clone(),
        unreadable: seen.unreadable.iter().take(NAMED).map(unreadable).collect(),
        words: words(seen),
        is_over: is_over(seen),
        nobody: match is_over(seen) {
            true => "No nodes are left.",
            false => "No nodes are there.",
        },
        has_ranks: seen.nodes.iter().any(|node| node.rank.is_some()),
    }
}

/// `4`, `2–8`; nothing where that is not known.
fn needs(least: usize, most: usize) -> String {
    match (least, most) {
        (0, 0) => String::new(),
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least}–{most}"),
    }
}

fn is_over(seen: &Seen) -> bool {
    ["closed", "abandoned"].contains(&&*seen.state)
}

/// What a node's state means, while the run is in this one.
fn words(seen: &Seen) -> BTreeMap<&'static str, String> {
    let member = match seen.state.as_str() {
        "meeting again" => format!("still in round {}", seen.round),
        "closed" => "on its way out".to_owned(),
        _ => "at work".to_owned(),
    };
    let lost = ["died", "killed", "left", "replaced", "late"].map(|why| (why, absent::words(why).to_owned()));
    let mut words = BTreeMap::from([
        ("member", member),
        ("joining", format!("ready for round {}", seen.round + 1)),
        ("waiting", "waits to get in".to_owned()),
        ("spare", "stands by as a spare".to_owned()),
        ("leaving", "on its way out".to_owned()),
        ("missing", "missing".to_owned()),
        ("excluded", "excluded".to_owned()),
        ("gone", "is gone".to_owned()),
        ("finished", "had finished, and is gone".to_owned()),
    ]);
    words.extend(lost);
    words
}

fn headline(seen: &Seen) -> String {
    let present = seen.present();
    let in_state = |state: &str| seen.nodes.iter().filter(|node| node.state == state).count();
    let spares = match seen.spares {
        0 => String::new(),
        1 => " 1 spare stands by.".to_owned(),
        many => format!(" {many} spares stand by."),
    };
    match seen.state.as_str() {
        "meeting" => {
            let range = match &seen.settings {
                Some(needs) if needs.min_nodes == needs.max_nodes => {
                    format!("; it needs {}", needs.min_nodes)
                }
                Some(needs) => format!("; it needs {} to {}", needs.min_nodes, needs.max_nodes),
                None => String::new(),
            };
            format!("The first round is being formed: {}{range}.", are(present, "node", "here"))
        }
        "running" => {
            let gone = seen.without.len();
            let works = count(seen.world_size.saturating_sub(gone), "node");
            let gone = if gone > 0 {
                format!("; {gone} had finished, and {} gone", if gone == 1 { "is" } else { "are" })
            } else {
                String::new()
            };
            format!("Round {} is at work on {works}{gone}.{spares}", seen.round)
        }
        "meeting again" => {
            let (ready, still) = (in_state("joining"), in_state("member"));
            format!(
                "Round {} has ended, and its nodes meet again: {}, {still} still in the old round.{spares}",
                seen.round,
                are(ready, "node", "ready")
            )
        }
        "closed" => match seen.closed.as_deref().filter(|reason| !reason.is_empty()) {
            Some(reason) => format!("It is over: {}", line(reason, WORDS)),
            None => "It is over.".to_owned(),
        },
        "abandoned" if seen.round == 0 => {
            "No round was ever formed: all nodes have died or left, and nobody has closed the run.".to_owned()
        }
        "abandoned" => "No node is there: all have died or left, and nobody has closed the run.".to_owned(),
        "unreadable" => "What stands in etcd for this run was not written by a node.".to_owned(),
        other => line(other, WORDS),
    }
}

fn node(node: &Node) -> Node {
    let (shown, host) = (name(&node.node), name(&node.host));
    Node {
        is_altered: shown != node.node || host != node.host,
        node: shown,
        host,
        state: line(&node.state, WORDS),
        address: line(&node.address, WORDS),
        rack: line(&node.rack, 60),
        about: line(&node.about, WORDS),
        rank: node.rank,
        since: node.since,
        arrived: node.arrived,
    }
}

fn unreadable(unreadable: &Unreadable) -> Unreadable {
    Unreadable { key: line(&unreadable.key, WORDS), problem: line(&unreadable.problem, WORDS) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn head(run: serde_json::Value) -> Head {
        RunView::of(serde_json::from_value(run).unwrap()).head
    }

    fn nodes(names: impl IntoIterator<Item = usize>) -> Vec<serde_json::Value> {
        names.into_iter().map(|n| json!({"node": format!("gpu-{n:03}"), "state": "joining"})).collect()
    }

    #[test]
    fn what_goes_on_is_said_in_a_sentence() {
        let run = json!({"state": "meeting", "settings": {"min_nodes": 64, "max_nodes": 64}, "nodes": nodes(0..63)});
        assert_eq!(head(run).headline, "The first round is being formed: 63 nodes are here; it needs 64.");
    }

    #[test]
    fn a_round_ended_for_the_first_cause_and_that_is_a_failure_before_a_loss() {
        let event = |revision: u64, round, kind, text| json!({"revision": revision, "round": round, "event": kind, "text": text, "traceback": "Traceback\n  here"});
        let run = json!({"state": "running", "round": 4, "nodes": nodes(0..2), "events": [
            event(1, 2, "failed", "an older one"),
            event(2, 3, "lost", "node 1 asks for a new round"),
            event(3, 3, "failed", "rank 5 failed"),
            event(4, 3, "failed", "another"),
            event(5, 3, "stopped", "the workers have ended"),
            event(6, 4, "formed", "round 4 formed"),
        ]});
        let head = head(run);
        let ended = head.ended.unwrap();
        assert_eq!((&*ended.title, &*ended.text), ("Why round 3 ended", "rank 5 failed"));
        assert_eq!(head.failure.unwrap().traceback, "Traceback\n  here");
    }

    #[test]
    fn who_only_asks_for_a_new_round_is_not_among_the_lost() {
        let lost = json!([{"node": "a", "rank": 0, "why": "again"}, {"node": "b", "rank": 1, "why": "died"}]);
        let head = head(json!({"state": "meeting again", "round": 1, "lost": lost}));
        assert_eq!(head.absent.iter().map(|lost| lost.node.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn the_list_says_how_many_of_those_that_are_needed_are_here_and_how_a_run_ended() {
        let row = |state: &str, nodes, waiting, closed: Option<&str>| Row {
            run_id: state.to_owned(),
            state: state.to_owned(),
            nodes,
            waiting,
            there: if state == "meeting again" { 3 } else { waiting },
            min_nodes: Some(4),
            max_nodes: Some(4),
            closed: closed.map(str::to_owned),
            ..Row::default()
        };
        let rows = vec![
            row("closed", 0, 0, Some("all workers have finished")),
            row("meeting", 0, 3, None),
            row("meeting again", 4, 3, None),
            row("running", 4, 1, None),
        ];
        let runs = Runs::of(rows);
        let shown: Vec<_> = runs.rows.iter().map(|row| (&*row.word, &*row.here, row.late)).collect();
        assert_eq!(
            shown,
            [
                ("meeting", "3 of 4", 0),
                ("meeting again", "3 of 4", 3),
                ("running", "4", 1),
                ("finished", "0", 0)
            ]
        );
        assert_eq!(
            runs.rows.iter().filter(|row| row.waits.as_ref().is_some_and(|waits| waits.count == 1)).count(),
            2
        );
    }

    #[test]
    fn a_run_that_never_formed_says_so() {
        let run = RunView::of(serde_json::from_value(json!({"state": "abandoned"})).unwrap());
        assert!(run.head.headline.starts_with("No round was ever formed"), "{}", run.head.headline);
        assert_eq!(run.head.nobody, "No nodes are left.");
    }

    #[test]
    fn what_nodes_say_is_bounded_and_harmless_in_all_places() {
        let long = format!("<script>\u{202e}{}", "x".repeat(20_000));
        let run = json!({"run_id": long, "state": "running", "closed": long, "leader": long, "round": 1,
            "master": {"node": long, "address": long, "port": 1}, "lost": [{"node": long, "rank": 0, "why": long}],
            "unreadable": [{"key": long, "problem": long}], "missing": [{"node": long, "why": long}],
            "excluded": [{"node": long, "reason": long, "by": long}], "unhealthy": [{"node": long, "problems": [long, long]}],
            "nodes": [{"node": long, "state": "member", "address": long, "host": long, "rack": long, "about": long}],
            "events": [{"revision": 1, "round": 1, "event": "failed", "text": long, "by": long, "message": long, "traceback": long}]});
        let view = RunView::of(serde_json::from_value(run).unwrap());
        let sent =
            serde_json::to_string(&(&view.head, &view.events, &view.nodes.values().collect::<Vec<_>>()))
                .unwrap();
        assert!(!sent.contains('\u{202e}') && sent.contains("<script>"), "turned around");
        assert!(sent.len() < 26_000, "{} bytes", sent.len());
    }
}
