//! Why a round ended.

use rallypoint_core::text::list;

use crate::absent::words;
use crate::past::look;
use crate::source::{Event, Lost};
use crate::text::{line, name};

/// Letters of a sentence.
const WORDS: usize = 300;
/// Of many nodes the first are named.
const NAMED: usize = 4;

/// What ended a round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cause {
    pub(crate) text: String,
    pub(crate) at_ms: u64,
    /// The id of the event that tells of it.
    pub(crate) event: String,
}

/// The first cause that was told of the end of a round: a failure or a loss before all that follows from it. Who merely asks
/// for the next round has a reason, and is named only where nothing else is known.
pub(crate) fn cause(events: &[Event], round: u64) -> Option<Cause> {
    if round == 0 {
        return None;
    }
    let first =
        |looks: &[&str]| events.iter().find(|event| event.round == round && looks.contains(&look(event)));
    let of = |event: &Event, text: String| {
        Some(Cause { text: line(&text, WORDS), at_ms: event.at_ms, event: event.id.clone() })
    };
    if let Some(failed) = first(&["failed"]) {
        return of(failed, failed.text.clone());
    }
    let next = events.iter().find(|event| event.kind == "formed" && event.round == round + 1);
    let (stopped, harm) = (first(&["stopped"]), first(&["died", "left"]));
    let told = stopped.filter(|stopped| says_why(stopped));
    if let Some(stopped) = told.filter(|stopped| is_for_newcomers(stopped)) {
        return of(stopped, next.and_then(joined).unwrap_or_else(|| why(stopped)));
    }
    // What happened later ended nothing, unless it is what was told.
    let is_later = |harm: &Event| {
        told.is_some_and(|told| {
            told.revision < harm.revision && !whom(harm).iter().any(|node| told.why.contains(node))
        })
    };
    if let Some(harm) = harm.filter(|harm| !is_later(harm)) {
        return of(harm, harm_in_words(events, harm));
    }
    if let Some(told) = told {
        return of(told, why(told));
    }
    let asked = first(&["asked"]);
    if let Some(next) = next {
        // Their going was the first that was heard of it, also where that went without a name.
        let at = stopped.or(asked).unwrap_or(next);
        let gone: Vec<&Lost> = next.gone.iter().filter(|lost| lost.why != "again").collect();
        let text = if gone.is_empty() { joined(next) } else { Some(losses(&gone)) };
        if let Some(text) = text {
            return of(next, text).map(|cause| Cause { at_ms: at.at_ms, ..cause });
        }
    }
    let waits = events.iter().find(|event| {
        event.round == round && event.kind == "waiting" && event.waiting > 0 && (stopped.or(asked).is_some())
    });
    let rest = waits.or_else(|| first(&["closed"])).or(stopped).or(asked)?;
    of(rest, if look(rest) == "stopped" { why(rest) } else { rest.text.clone() })
}

/// What is said of a loss, without those who merely ask for the next round.
pub(crate) fn harm_in_words(events: &[Event], harm: &Event) -> String {
    let (again, gone): (Vec<&Lost>, Vec<&Lost>) = harm.lost.iter().partition(|lost| lost.why == "again");
    let text = if again.is_empty() || gone.is_empty() { harm.text.clone() } else { losses(&gone) };
    let is_preempted = |node: &str| {
        events.iter().any(|event| event.round == harm.round && event.kind == "preempted" && event.by == node)
    };
    match &gone[..] {
        [one] if one.why == "left" && is_preempted(&one.node) => format!("{text}: it was preempted"),
        _ => text,
    }
}

/// Who was lost.
fn whom(harm: &Event) -> Vec<&str> {
    if harm.kind == "killed" {
        return vec![&harm.by];
    }
    harm.lost.iter().filter(|lost| lost.why != "again").map(|lost| lost.node.as_str()).collect()
}

/// Whether it says more than that somebody else asked for another round.
fn says_why(stopped: &Event) -> bool {
    !stopped.why.is_empty() && !stopped.why.contains("for a new round")
}

/// In the words of the launcher: `1 more node waits to get in`.
fn is_for_newcomers(stopped: &Event) -> bool {
    stopped.why.contains(" to get in")
}

/// Why the workers were stopped. A node that tells of itself says its rank alone.
fn why(stopped: &Event) -> String {
    let Some((rank, rest)) = stopped.why.strip_prefix("node ").and_then(|why| why.split_once(' ')) else {
        return if stopped.why.is_empty() { stopped.text.clone() } else { stopped.why.clone() };
    };
    match rest.starts_with('(') || stopped.by.is_empty() || rank.parse::<usize>().is_err() {
        true => stopped.why.clone(),
        false => format!("node {rank} ({}) {rest}", stopped.by),
    }
}

/// `node 3 (gpu-008) left`.
fn losses(lost: &[&Lost]) -> String {
    let one = |lost: &&Lost| format!("node {} ({}) {}", lost.rank, name(&lost.node), words(&lost.why));
    let more = (lost.len() > NAMED).then(|| format!("{} more are gone", lost.len() - NAMED));
    list(&lost.iter().take(NAMED).map(one).chain(more).collect::<Vec<_>>())
}

/// `1 node joined (gpu-014)`.
fn joined(formed: &Event) -> Option<String> {
    let all = formed.joined_count.max(formed.joined.len());
    let mut names: Vec<String> = formed.joined.iter().take(NAMED).map(|new| name(&new.node)).collect();
    if names.is_empty() {
        return None;
    }
    if all > names.len() {
        names.push(format!("{} more", all - names.len()));
    }
    Some(format!("{} joined ({})", rallypoint_core::text::count(all, "node"), list(&names)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::past::number;

    /// Of these, in order, what ended round 4.
    fn told(mut events: Vec<Value>) -> String {
        for (at, event) in events.iter_mut().enumerate() {
            event["revision"] = at.into();
            event["at_ms"] = at.into();
            if event["round"].is_null() {
                event["round"] = 4.into();
            }
        }
        let mut events: Vec<Event> =
            events.into_iter().map(|it| serde_json::from_value(it).unwrap()).collect();
        number(&mut events);
        cause(&events, 4).map_or_else(String::new, |cause| cause.text)
    }

    fn lost(all: &[(&str, usize, &str)]) -> Value {
        let lost: Vec<Value> =
            all.iter().map(|(node, rank, why)| json!({"node": node, "rank": rank, "why": why})).collect();
        let said =
            |why: &str| if why == "again" { "asks for a new round".to_owned() } else { why.to_owned() };
        let text: Vec<String> =
            all.iter().map(|(node, rank, why)| format!("node {rank} ({node}) {}", said(why))).collect();
        json!({"event": "lost", "text": text.join(" and "), "lost": lost})
    }

    fn stopped(why: &str) -> Value {
        json!({"event": "stopped", "by": "gpu-001", "why": why, "text": format!("the workers of round 4 have ended: {why}")})
    }

    fn asks() -> Value {
        lost(&[("gpu-006", 2, "again")])
    }

    fn formed(joined: &[&str], gone: &Value) -> Value {
        let new: Vec<Value> = joined.iter().map(|node| json!({"node": node, "rank": 9})).collect();
        json!({"event": "formed", "round": 5, "text": "round 5 formed", "joined": new, "joined_count": joined.len(), "gone": gone})
    }

    #[test]
    fn a_round_that_somebody_joined_ended_for_that() {
        let waits = json!({"event": "waiting", "waiting": 1, "text": "1 node waits to get in"});
        let why = stopped("1 more node waits to get in");
        assert_eq!(told(vec![waits.clone()]), "", "it is at work");
        assert_eq!(told(vec![waits.clone(), asks()]), "1 node waits to get in");
        let begun = vec![waits.clone(), asks(), why.clone()];
        assert_eq!(told(begun.clone()), "1 more node waits to get in");
        let whole = |joined: &[&str]| [begun.clone(), vec![formed(joined, &json!([]))]].concat();
        assert_eq!(told(whole(&["gpu-014"])), "1 node joined (gpu-014)");
        assert_eq!(told(whole(&["a", "b", "c", "d", "e", "f"])), "6 nodes joined (a, b, c, d and 2 more)");
        // Nobody of rank 0 was there to tell.
        assert_eq!(told(vec![asks(), formed(&["gpu-014"], &json!([]))]), "1 node joined (gpu-014)");
        // Somebody died while they met again.
        let died = lost(&[("gpu-003", 7, "died")]);
        assert_eq!(
            told(vec![asks(), why, died, formed(&["gpu-014"], &json!([]))]),
            "1 node joined (gpu-014)"
        );
    }

    #[test]
    fn a_round_that_somebody_left_ended_for_that() {
        let left = lost(&[("gpu-008", 3, "left")]);
        assert_eq!(told(vec![asks(), left.clone()]), "node 3 (gpu-008) left");
        // Both were told at once.
        assert_eq!(
            told(vec![lost(&[("gpu-004", 10, "again"), ("gpu-008", 3, "left")])]),
            "node 3 (gpu-008) left"
        );
        let vague = stopped("node 10 (gpu-004) left or asks for a new round");
        assert_eq!(told(vec![asks(), vague.clone(), left.clone()]), "node 3 (gpu-008) left");
        assert_eq!(
            told(vec![asks(), stopped("node 3 (gpu-008) leaves"), left.clone()]),
            "node 3 (gpu-008) left"
        );
        // Only the next round tells of it.
        let gone = json!([{"node": "gpu-008", "rank": 3, "why": "left"}]);
        assert_eq!(told(vec![asks(), vague, formed(&[], &gone)]), "node 3 (gpu-008) left");
        let preempted = json!({"event": "preempted", "by": "gpu-008", "text": "it is preempted"});
        assert_eq!(told(vec![preempted, asks(), left]), "node 3 (gpu-008) left: it was preempted");
    }

    #[test]
    fn what_was_told_is_said_where_nothing_else_is_known() {
        assert_eq!(told(vec![asks(), stopped("node 3 (gpu-008) leaves")]), "node 3 (gpu-008) leaves");
        // It tells of itself.
        let own = stopped("node 0 was asked to end by SIGTERM");
        assert_eq!(told(vec![own.clone(), asks()]), "node 0 (gpu-001) was asked to end by SIGTERM");
        let both = vec![own, asks(), lost(&[("gpu-001", 0, "left")])];
        assert_eq!(told(both), "node 0 (gpu-001) was asked to end by SIGTERM");
        // Another one died while they met again.
        let later = vec![stopped("node 3 (gpu-008) leaves"), lost(&[("gpu-009", 5, "died")])];
        assert_eq!(told(later), "node 3 (gpu-008) leaves");
        assert_eq!(told(vec![asks()]), "node 2 (gpu-006) asks for a new round");
        assert_eq!(told(vec![asks(), stopped("")]), "the workers of round 4 have ended: ");
        assert_eq!(told(vec![formed(&[], &json!([]))]), "");
    }
}
