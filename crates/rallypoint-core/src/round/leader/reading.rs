//! What a leader has to know before it leads: the nodes, which it watches from then on, and the places and the record.
//!
//! ```text
//!               the watch has begun             the nodes are read
//!   Unwatched ──────────────────────▶ Watched ─────────────────────▶ Read
//! ```

use super::super::context::{Context, LeaderTask};
use super::super::etcd::{Entry, Event, Op, Request, Txn, Watched};
use super::super::output::{Output, WatchId};
use super::super::record::{RankRecord, RoundRecord, parse};
use super::super::view::View;
use super::roster::{LastRound, Member, Roster};
use super::term::Term;

#[derive(Debug)]
pub(super) struct Reading {
    /// Which one it is: the nodes must be read after the watch on them has begun.
    number: u64,
    nodes: Nodes,
    ranks: Option<(i64, Vec<Entry>)>,
    group: bool,
}

#[derive(Debug)]
enum Nodes {
    Unwatched,
    /// What has happened since the watch began, which is kept back until the read tells how things stood.
    Watched(Vec<Event>),
    Read {
        revision: i64,
        entries: Vec<Entry>,
        since: Vec<Event>,
    },
}

/// All that was read.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) nodes: Vec<Entry>,
    /// What has happened to the nodes since.
    pub(super) since: Vec<Event>,
    pub(super) ranks: Vec<Entry>,
}

impl Reading {
    pub(super) fn new(number: u64) -> Self {
        Reading { number, nodes: Nodes::Unwatched, ranks: None, group: false }
    }

    /// Asks for all of it.
    pub(super) fn begin(&self, context: &mut Context<'_>, term: Term) {
        let keys = Watched::Prefix(context.keys.nodes());
        context.out.push(Output::Watch { id: WatchId::Nodes, keys, from: None });
        ask(context, term, LeaderTask::ReadRanks);
        ask(context, term, LeaderTask::ReadGroup);
    }

    /// What the watch on the nodes tells.
    pub(super) fn happened(&mut self, context: &mut Context<'_>, term: Term, events: Vec<Event>) {
        match &mut self.nodes {
            Nodes::Watched(since) | Nodes::Read { since, .. } => since.extend(events),
            Nodes::Unwatched => {
                self.nodes = Nodes::Watched(events);
                ask(context, term, LeaderTask::ReadNodes { reading: self.number });
            }
        }
    }

    /// The nodes were read, for the reading of that number.
    pub(super) fn nodes_are(&mut self, number: u64, revision: i64, entries: Vec<Entry>) {
        if let Nodes::Watched(since) = &mut self.nodes
            && number == self.number
        {
            let since = std::mem::take(since);
            self.nodes = Nodes::Read { revision, entries, since };
        }
    }

    pub(super) fn ranks_are(&mut self, revision: i64, entries: Vec<Entry>) {
        self.ranks = Some((revision, entries));
    }

    pub(super) fn group_is_read(&mut self) {
        self.group = true;
    }

    /// All of it, once it is there.
    pub(super) fn finish(
        reading: &mut Option<Self>,
        context: &mut Context<'_>,
        term: Term,
        view: &View,
    ) -> Option<Known> {
        let Some(Reading { nodes: Nodes::Read { .. }, ranks, group: true, .. }) = reading else {
            return None;
        };
        let (read, _) = ranks.as_ref()?;
        // The places of a round that was completed after they were read are not among them.
        if view.known().is_some_and(|known| known.modified > *read) {
            *ranks = None;
            ask(context, term, LeaderTask::ReadRanks);
            return None;
        }
        let Reading { nodes: Nodes::Read { revision, entries, since }, ranks: Some((_, ranks)), .. } =
            reading.take()?
        else {
            return None;
        };
        let since = since.into_iter().filter(|event| event.revision() > revision).collect();
        Some(Known { nodes: entries, since, ranks })
    }
}

/// Reads a part of it.
pub(super) fn ask(context: &mut Context<'_>, term: Term, task: LeaderTask) {
    let keys = context.keys;
    let request = match &task {
        LeaderTask::ReadNodes { .. } => Request::Range(keys.nodes()),
        LeaderTask::ReadRanks => Request::Range(keys.ranks()),
        _ => {
            let then = vec![Op::Get(keys.round()), Op::Get(keys.plan()), Op::Range(keys.exclusions())];
            Request::Txn(Txn { then, ..Txn::default() })
        }
    };
    term.send(context, task, request);
}

/// The last round, as its record and its members' places have it.
pub(super) fn last_round(
    context: &Context<'_>,
    roster: &mut Roster,
    record: &RoundRecord,
    ranks: &[Entry],
) -> LastRound {
    let mut last = LastRound {
        round: record.round,
        plan: record.plan.clone(),
        world_size: record.world_size,
        told: record.news.clone(),
        ..LastRound::default()
    };
    for entry in ranks {
        let id = context.keys.id_of(&entry.key);
        let Ok(place) = parse::<RankRecord>(entry) else { continue };
        let seat = place.in_plan(&record.plan);
        // What came late of the process that had the place before counts no more.
        if let Some(previous) = place.previous.as_ref().filter(|previous| previous.plan != record.plan) {
            roster.spend(id, previous.incarnation, 0, previous.round);
        }
        let left = place.left && seat.is_some_and(|(_, incarnation)| place.incarnation == incarnation);
        if let Some((rank, incarnation)) = seat {
            let mut member =
                if left { Member::that_left(rank, incarnation) } else { Member::new(rank, incarnation) };
            member.since = place.since_in(&record.plan);
            last.members.insert(id.to_owned(), member);
        }
        // Who has left, or has a place in an earlier round and may be in it still, wants what it says after that. If
        // not, it asks again when it hears of this.
        let over = left || seat.is_none() && place.round < record.round;
        if over {
            roster.spend(id, place.incarnation, entry.mod_revision, place.round);
        }
    }
    last
}
