//! What a node asks of its last round: who is in it, and who is gone.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use rallypoint_core::round::{Entry, Keys, Lost, NodeRecord, RankRecord, RoundRecord, Wants, Whom, Why};
use rallypoint_core::time::millis;
use rallypoint_etcd::Result;
use rallypoint_etcd::v3::Client;

use super::super::translate::read_all;
use super::exclusions::of_group;
use super::{by_id, parse, read_entry, read_round};
use crate::handler::Member;

/// In a round of up to so many members, each that is missed is looked for. All nodes may do so at once.
pub(super) const MOST_LOOKED_FOR: usize = 256;

/// Who gave up so long before another one did has waited for the same nodes as that one.
const TOGETHER: Duration = Duration::from_secs(10);

/// Who of a round is there no more.
#[derive(Debug, Default)]
pub(in super::super) struct Gone {
    /// By rank; of a large round the first few.
    pub(in super::super) lost: Vec<Lost>,
    /// Those of them, by name, that left a moment ago because too few nodes had come.
    pub(in super::super) gave_up: HashSet<String>,
    /// How many the round had.
    pub(in super::super) members: usize,
}

/// Members of the round of `plan` that are there no more. An empty plan is that of the last round.
pub(in super::super) async fn gone(client: &Client, keys: &Keys, plan: &str) -> Result<Gone> {
    let is_meant = |round: &RoundRecord| round.has_round() && (plan.is_empty() || round.plan == plan);
    let Some(round) = read_round(client, keys).await?.filter(is_meant) else { return Ok(Gone::default()) };
    let plan = &*round.plan;
    let (mut gone, mut gave_up) = (Vec::new(), HashSet::new());
    for lost in round.news.lost {
        // Who asked for a new round may have gone since.
        if lost.why != Why::Again || read_entry(client, &keys.node(&lost.node)).await?.is_none() {
            gone.push(lost);
        }
    }
    if round.world_size <= MOST_LOOKED_FOR {
        // Nobody tells of those who went when the others had asked for a new round already.
        let (_, ranks) = read_all(client, &keys.ranks()).await?;
        let (_, nodes) = read_all(client, &keys.nodes()).await?;
        let nodes = by_id(keys, &nodes);
        look_for(&mut gone, keys, plan, &ranks, |id| nodes.contains_key(id));
        let since = millis(SystemTime::now() - TOGETHER);
        let is_one = |place: RankRecord| place.left && place.gave_up_ms.is_some_and(|at| at >= since);
        let those = ranks.iter().filter(|entry| parse(entry).is_ok_and(is_one));
        gave_up = those.map(|entry| keys.id_of(&entry.key).to_owned()).collect();
    }
    gone.sort_by_key(|lost| lost.rank);
    Ok(Gone { lost: gone, gave_up, members: round.world_size })
}

/// Adds those members of the round of `plan` that are not here, and that nobody has told of.
pub(super) fn look_for(
    gone: &mut Vec<Lost>,
    keys: &Keys,
    plan: &str,
    ranks: &[Entry],
    is_here: impl Fn(&str) -> bool,
) {
    for entry in ranks {
        let id = keys.id_of(&entry.key);
        let Ok(place) = parse::<RankRecord>(entry) else { continue };
        let Some((rank, incarnation)) = place.in_plan(plan).filter(|_| !is_here(id)) else { continue };
        let why = if place.left && place.incarnation == incarnation { Why::Left } else { Why::Died };
        match gone.iter_mut().find(|lost| lost.node == id) {
            Some(known) if known.why == Why::Again => known.why = why,
            Some(_) => {}
            None => gone.push(Lost { node: id.to_owned(), rank, why }),
        }
    }
}

/// Members of the round of `plan` that are there no more, and whether others ask for another round, or are in one.
pub(in super::super) async fn standing(
    client: &Client,
    keys: &Keys,
    plan: &str,
) -> Result<(Vec<Lost>, bool)> {
    let round = read_round(client, keys).await?.filter(|round| round.plan == plan && round.has_round());
    let Some(round) = round else { return Ok((Vec::new(), true)) };
    let gone = gone(client, keys, plan).await?.lost;
    let is_gone = |again: &Lost| gone.iter().any(|lost| lost.node == again.node);
    let over = round.news.lost.iter().any(|lost| lost.why == Why::Again && !is_gone(lost));
    Ok((gone, over))
}

/// How many nodes are there that `whom` does not mean, and that nobody has excluded.
pub(in super::super) async fn others_than(client: &Client, keys: &Keys, whom: &Whom) -> Result<usize> {
    let (_, nodes) = read_all(client, &keys.nodes()).await?;
    let (_, group) = read_all(client, &keys.group()).await?;
    let excluded = of_group(keys, &group);
    let stays = |entry: &&Entry| {
        let id = keys.id_of(&entry.key);
        let is_out = |host: &str| whom.is(id, host) || excluded.iter().any(|it| it.whom.is(id, host));
        // What cannot be read is nobody's.
        parse::<NodeRecord>(entry)
            .is_ok_and(|node| !matches!(node.wants, Wants::Leave) && !is_out(&node.host))
    };
    Ok(nodes.iter().filter(stays).count())
}

/// The members of the round of `plan`, by rank; none if it is not the last one.
pub(in super::super) async fn members(client: &Client, keys: &Keys, plan: &str) -> Result<Vec<Member>> {
    let (_, ranks) = read_all(client, &keys.ranks()).await?;
    let (_, nodes) = read_all(client, &keys.nodes()).await?;
    if read_round(client, keys).await?.is_none_or(|record| record.plan != plan || !record.has_round()) {
        return Ok(Vec::new());
    }
    let nodes = by_id(keys, &nodes);
    let mut members = Vec::new();
    for entry in &ranks {
        // What cannot be read is nobody's.
        let Some((rank, _)) = parse::<RankRecord>(entry).ok().and_then(|place| place.in_plan(plan)) else {
            continue;
        };
        let id = keys.id_of(&entry.key);
        let node = nodes.get(id).and_then(|entry| parse::<NodeRecord>(entry).ok());
        let (address, about) = node.map(|node| (node.address, node.about)).unwrap_or_default();
        members.push(Member { node: id.to_owned(), rank, address, about });
    }
    members.sort_by_key(|member| member.rank);
    Ok(members)
}
