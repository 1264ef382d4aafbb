//! What a node knows of its group: who leads, which round there is, who is kept out, and its own place.
//!
//! ```text
//!           ask for both watches            both have begun          a look is answered
//!   Closed ──────────────────────▶ Opening ─────────────────▶ Blind ───────────────────▶ Following
//!                                                               ▲                            │
//!                                                               └── a watch has read afresh ─┘
//! ```
//!
//! A node watches before it looks: an etcd has nothing to look up for a watch that begins now, and with thousands of
//! watches that is what takes it long. What the watches tell before the look is answered is kept back, since the look
//! tells how things stood.
//!
//! A watch reads afresh when its stream was cut. Then nothing is known any more: etcd may have lost data meanwhile,
//! and its revisions may be those of another history. So the node looks again, and takes what it sees for all there is.

use std::time::Duration;

use super::context::Context;
use super::etcd::{Condition, Entry, Event, Op, OpReply, Request, Txn, TxnReply, Update, Watched};
use super::exclusion::{Exclusion, Exclusions};
use super::output::{Output, WatchId};
use super::record::{Corrupt, RankRecord, RoundRecord, json, parse};
use super::settings::NodeConfig;

#[derive(Debug)]
pub(super) struct View {
    watching: Watching,
    leader: Fact<LeaderKey>,
    round: Fact<RoundKey>,
    place: Fact<Option<OwnRank>>,
    exclusions: Exclusions,
    /// Which of the watches, of the group and of the place, etcd refuses.
    refused: [bool; 2],
    /// What etcd had of the run is gone, and nobody has taken note of it yet.
    lost: bool,
    /// A round was completed while this node was watching, and nobody has taken note of it yet.
    formed: bool,
    /// The number and the plan of the last round that the record told of. It may have been taken back since.
    last_told: Option<(u64, String)>,
    /// When the last call is over, by the record that was written then.
    last_call: Option<(i64, Duration)>,
}

#[derive(Debug)]
enum Watching {
    Closed,
    Opening { group: bool, rank: bool, kept_back: Vec<(WatchId, Update)> },
    Blind { kept_back: Vec<(WatchId, Update)> },
    Following,
}

/// A key as it was at a revision.
#[derive(Debug)]
struct Fact<T> {
    as_of: i64,
    value: T,
}

impl<T> Fact<T> {
    fn unknown(value: T) -> Self {
        Fact { as_of: 0, value }
    }

    /// A read tells how it is at its revision.
    fn read(&mut self, revision: i64, value: T) {
        if revision >= self.as_of {
            *self = Fact { as_of: revision, value };
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaderKey {
    Unknown,
    Free,
    /// It hangs on no lease: no node has written it.
    Nobodys {
        modified: i64,
    },
    Held {
        lease: i64,
        created: i64,
    },
}

#[derive(Debug)]
pub(super) enum RoundKey {
    Unknown,
    Missing,
    Known(Box<KnownRound>),
    Corrupt(Corrupt),
}

/// The round's record as it stands in etcd.
#[derive(Debug, Clone)]
pub(super) struct KnownRound {
    pub(super) record: RoundRecord,
    /// As it is written there, which no other history has in the same words.
    pub(super) text: String,
    pub(super) modified: i64,
    /// What the record hangs on: the run's lease, or that of the closed mark.
    pub(super) lease: i64,
}

impl KnownRound {
    /// It still stands there.
    pub(super) fn stands(&self, key: &str) -> Vec<Condition> {
        Condition::stands(key.to_owned(), self.modified, &self.text).to_vec()
    }
}

/// This node's place as it stands in etcd.
#[derive(Debug)]
pub(super) struct OwnRank {
    pub(super) record: RankRecord,
    pub(super) modified: i64,
}

/// What one request saw, at one revision.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) revision: i64,
    pub(super) leader: Option<Entry>,
    pub(super) round: Option<Entry>,
    pub(super) place: Option<Entry>,
    pub(super) exclusions: Vec<Entry>,
    /// This node's own key, where that was asked for.
    pub(super) own: Option<Entry>,
}

impl View {
    pub(super) fn new() -> Self {
        View {
            watching: Watching::Closed,
            leader: Fact::unknown(LeaderKey::Unknown),
            round: Fact::unknown(RoundKey::Unknown),
            place: Fact::unknown(None),
            exclusions: Exclusions::default(),
            refused: [false; 2],
            lost: false,
            formed: false,
            last_told: None,
            last_call: None,
        }
    }

    pub(super) fn leader(&self) -> LeaderKey {
        self.leader.value
    }

    pub(super) fn round(&self) -> &RoundKey {
        &self.round.value
    }

    /// The round's record, if it is there.
    pub(super) fn known(&self) -> Option<&KnownRound> {
        if let RoundKey::Known(known) = &self.round.value { Some(known) } else { None }
    }

    /// Whether the record has told, the last time that it told of any round, of a later one than that of this number and plan.
    pub(super) fn has_told_of_later(&self, round: u64, plan: &str) -> bool {
        self.last_told.as_ref().is_some_and(|(last, of)| *last > round && of != plan)
    }

    /// Whether the run is known to be closed.
    pub(super) fn is_closed(&self) -> bool {
        self.known().is_some_and(|known| known.record.closed.is_some())
    }

    /// This node's place, whoever it was written for.
    pub(super) fn place(&self) -> Option<&OwnRank> {
        self.place.value.as_ref()
    }

    /// All who are kept out of the run.
    pub(super) fn exclusions(&self) -> &Exclusions {
        &self.exclusions
    }

    /// Why this node is kept out of the run, if it is.
    pub(super) fn kept_out(&self, config: &NodeConfig) -> Option<&Exclusion> {
        self.exclusions.of(&config.id, &config.host)
    }

    /// Watches the group and this node's place, from now on.
    pub(super) fn open(&mut self, context: &mut Context<'_>) {
        if !matches!(self.watching, Watching::Closed) {
            return;
        }
        self.watching = Watching::Opening { group: false, rank: false, kept_back: Vec::new() };
        let rank = Watched::Key(context.keys.rank(&context.config.id));
        let group = Watched::Prefix(context.keys.group());
        context.out.push(Output::Watch { id: WatchId::Group, keys: group, from: None });
        context.out.push(Output::Watch { id: WatchId::Rank, keys: rank, from: None });
    }

    /// Ends the watches and forgets the group.
    pub(super) fn close(&mut self, context: &mut Context<'_>) {
        if !matches!(self.watching, Watching::Closed) {
            context.out.push(Output::Unwatch(WatchId::Group));
            context.out.push(Output::Unwatch(WatchId::Rank));
        }
        *self = View::new();
    }

    /// Whether a look would tell how things stood when the watches began.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.watching, Watching::Blind { .. } | Watching::Following)
    }

    /// Whether it waits for a look.
    pub(super) fn is_blind(&self) -> bool {
        matches!(self.watching, Watching::Blind { .. })
    }

    /// Whether what happens to the group is told to this node.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.watching, Watching::Following) && self.refused == [false; 2]
    }

    /// etcd refuses a watch, until that tells of something again.
    pub(super) fn is_refused(&mut self, watch: WatchId) {
        self.set_refused(watch, true);
    }

    fn set_refused(&mut self, watch: WatchId, refused: bool) {
        match watch {
            WatchId::Group => self.refused[0] = refused,
            WatchId::Rank => self.refused[1] = refused,
            // It tells of the others; whether this node leads is not asked here.
            WatchId::Nodes => {}
        }
    }

    /// etcd has lost data, or may have: nothing that is known counts any more.
    pub(super) fn distrust(&mut self, context: &mut Context<'_>) {
        context.out.begin_epoch();
        match &mut self.watching {
            Watching::Following => self.watching = Watching::Blind { kept_back: Vec::new() },
            // What was kept back was told before the look that will follow, and may be of another history.
            Watching::Opening { kept_back, .. } | Watching::Blind { kept_back } => kept_back.clear(),
            Watching::Closed => {}
        }
    }

    /// Takes note of a last call. The record tells what was left of it when that was written.
    pub(super) fn note_last_call(&mut self, now: Duration) {
        let known = self.known().map(|known| (known.modified, known.record.news.last_call_ms));
        self.last_call = match (known, self.last_call) {
            (Some((modified, Some(_))), Some((noted, until))) if modified == noted => Some((noted, until)),
            (Some((modified, Some(left))), _) => Some((modified, now + Duration::from_millis(left))),
            _ => None,
        };
    }

    /// When the last call is over that the group was told of: it goes on under whoever leads next.
    pub(super) fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, until)| until)
    }

    /// Whether it has turned out that etcd has lost what it had of the run; told once.
    pub(super) fn take_loss(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Whether a round was completed while this node was watching; told once. It is later than all that etcd has lost by then.
    pub(super) fn take_formed(&mut self) -> bool {
        std::mem::take(&mut self.formed)
    }

    /// The round's record was written just now.
    fn round_becomes(&mut self, revision: i64, value: RoundKey) {
        let before = self.known().map(|known| known.record.plan.clone());
        self.round_is(revision, value);
        let known = self.known().filter(|known| known.record.has_round());
        self.formed |= known.is_some_and(|known| before.as_ref() != Some(&known.record.plan));
    }

    /// What the round's record is now.
    fn round_is(&mut self, as_of: i64, value: RoundKey) {
        let before = self.known().filter(|known| known.record.has_round()).map(|known| known.modified);
        let now = if let RoundKey::Known(known) = &value { known.modified } else { 0 };
        self.lost |= before.is_some_and(|before| now < before);
        if let RoundKey::Known(known) = &value
            && known.record.has_round()
        {
            self.last_told = Some((known.record.round, known.record.plan.clone()));
        }
        self.round = Fact { as_of, value };
    }

    /// What a watch tells.
    pub(super) fn handle(&mut self, context: &mut Context<'_>, watch: WatchId, update: Update) {
        if let Update::Snapshot { .. } = update {
            self.distrust(context);
        }
        context.out.saw(update.revision());
        self.set_refused(watch, false);
        match &mut self.watching {
            Watching::Closed => {}
            Watching::Opening { group, rank, kept_back } => {
                *group |= watch == WatchId::Group;
                *rank |= watch == WatchId::Rank;
                keep_back(kept_back, watch, update);
                if *group && *rank {
                    self.watching = Watching::Blind { kept_back: std::mem::take(kept_back) };
                }
            }
            Watching::Blind { kept_back } => keep_back(kept_back, watch, update),
            Watching::Following => self.follow(context, watch, update),
        }
    }

    fn follow(&mut self, context: &Context<'_>, watch: WatchId, update: Update) {
        let Update::Events(events) = update else { return };
        let record = |event: &&Event| matches!(event, Event::Put(entry) if entry.key == context.keys.round());
        let recorded: Vec<i64> = events.iter().filter(record).map(Event::revision).collect();
        for event in events {
            let revision = event.revision();
            let (key, entry) = match event {
                Event::Put(entry) => (entry.key.clone(), Some(entry)),
                Event::Delete { key, .. } => (key, None),
            };
            if watch == WatchId::Rank {
                if revision > self.place.as_of {
                    self.place = Fact { as_of: revision, value: place_of(entry.as_ref()) };
                }
            } else if key == context.keys.leader() && revision > self.leader.as_of {
                self.leader = Fact { as_of: revision, value: leader_of(entry.as_ref()) };
            } else if key == context.keys.round() && revision > self.round.as_of {
                self.round_becomes(revision, round_of(entry.as_ref()));
            } else if key.starts_with(&context.keys.exclusions()) {
                let by_hand = recorded.contains(&revision);
                self.exclusions.happened(revision, &key, entry.as_ref(), by_hand);
            }
        }
    }

    /// What a look has seen. Of one that is blind it is all there is.
    pub(super) fn see(&mut self, context: &Context<'_>, sight: &Sight) {
        let leader = leader_of(sight.leader.as_ref());
        let (round, place) = (round_of(sight.round.as_ref()), place_of(sight.place.as_ref()));
        let as_of = sight.revision;
        if let Watching::Blind { kept_back } = &mut self.watching {
            let kept_back = std::mem::take(kept_back);
            self.watching = Watching::Following;
            self.leader = Fact { as_of, value: leader };
            self.round_is(as_of, round);
            self.place = Fact { as_of, value: place };
            self.exclusions.forget_revisions();
            self.exclusions.read(as_of, &sight.exclusions);
            for (watch, update) in kept_back {
                self.follow(context, watch, update);
            }
        } else {
            self.leader.read(as_of, leader);
            self.see_round(as_of, sight.round.as_ref());
            self.place.read(as_of, place);
            self.exclusions.read(as_of, &sight.exclusions);
        }
    }

    /// Who leads, as a request has seen.
    pub(super) fn see_leader(&mut self, revision: i64, leader: Option<&Entry>) {
        self.leader.read(revision, leader_of(leader));
    }

    /// This node leads since that revision.
    pub(super) fn leads_since(&mut self, revision: i64, lease: i64) {
        self.leader.read(revision, LeaderKey::Held { lease, created: revision });
    }

    /// The round's record, as a request has seen it.
    pub(super) fn see_round(&mut self, revision: i64, round: Option<&Entry>) {
        if revision >= self.round.as_of {
            self.round_is(revision, round_of(round));
        }
    }

    /// Who is kept out, as a request has seen it together with the round's record: a leader that knows of a record knows of
    /// all exclusions that were written by then.
    pub(super) fn see_exclusions(&mut self, revision: i64, found: Option<OpReply>) {
        if let Some(OpReply::Found(entries)) = found {
            self.exclusions.read(revision, &entries);
        }
    }

    /// This node itself has written the round's record.
    pub(super) fn wrote_round(&mut self, revision: i64, record: RoundRecord, lease: i64) {
        let text = json(&record);
        let known = KnownRound { record, text, modified: revision, lease };
        if revision >= self.round.as_of {
            self.round_becomes(revision, RoundKey::Known(Box::new(known)));
        }
    }
}

/// Keeps for later what has happened. What stood there when a watch read afresh, a look will tell.
fn keep_back(kept_back: &mut Vec<(WatchId, Update)>, watch: WatchId, update: Update) {
    if let Update::Events(_) = update {
        kept_back.push((watch, update));
    }
}

fn leader_of(entry: Option<&Entry>) -> LeaderKey {
    match entry {
        Some(Entry { lease: 0, mod_revision: modified, .. }) => LeaderKey::Nobodys { modified: *modified },
        Some(entry) => LeaderKey::Held { lease: entry.lease, created: entry.create_revision },
        None => LeaderKey::Free,
    }
}

fn round_of(entry: Option<&Entry>) -> RoundKey {
    let Some(entry) = entry else { return RoundKey::Missing };
    match parse(entry) {
        Ok(record) => {
            let (text, modified, lease) = (entry.value.clone(), entry.mod_revision, entry.lease);
            RoundKey::Known(Box::new(KnownRound { record, text, modified, lease }))
        }
        Err(corrupt) => RoundKey::Corrupt(corrupt),
    }
}

/// A place that cannot be read is none: the leader writes another with the next round.
fn place_of(entry: Option<&Entry>) -> Option<OwnRank> {
    let entry = entry?;
    Some(OwnRank { record: parse(entry).ok()?, modified: entry.mod_revision })
}

/// A look at all that concerns a node.
pub(super) fn look(context: &Context<'_>) -> Request {
    let id = &context.config.id;
    let keys = [context.keys.leader(), context.keys.round(), context.keys.rank(id), context.keys.node(id)];
    let exclusions = Op::Range(context.keys.exclusions());
    let then = keys.into_iter().map(Op::Get).chain([exclusions]).collect();
    Request::Txn(Txn { then, ..Txn::default() })
}

/// What a [`look`] saw.
pub(super) fn looked(mut reply: TxnReply) -> Sight {
    let exclusions = found(reply.results.pop());
    let mut found = reply.results.into_iter().map(got);
    let mut next = || found.next().flatten();
    let (leader, round, place, own) = (next(), next(), next(), next());
    Sight { revision: reply.revision, leader, round, place, exclusions, own }
}

pub(super) fn got(result: OpReply) -> Option<Entry> {
    if let OpReply::Got(entry) = result { entry } else { None }
}

pub(super) fn found(result: Option<OpReply>) -> Vec<Entry> {
    if let Some(OpReply::Found(entries)) = result { entries } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::context::tests::Bench;
    use super::*;

    /// The watch on the group tells of a record, and before anybody looks, that on the places reads afresh: etcd has begun
    /// anew, and counts from the beginning.
    #[test]
    fn what_one_watch_told_before_another_read_afresh_is_not_taken_for_later() {
        let (mut bench, mut view) = (Bench::new(), View::new());
        let context = &mut bench.context();
        view.open(context);
        for watch in [WatchId::Group, WatchId::Rank] {
            view.handle(context, watch, Update::Events(Vec::new()));
        }
        let record = RoundRecord::without_round(3, Some(context.config.settings), 1);
        let (key, value) = (context.keys.round(), json(&record));
        let entry = Entry { key, value, create_revision: 18, mod_revision: 18, lease: 1 };
        view.handle(context, WatchId::Group, Update::Events(vec![Event::Put(entry)]));
        view.handle(context, WatchId::Rank, Update::Snapshot { revision: 6, entries: Vec::new() });
        let (revision, exclusions) = (7, Vec::new());
        view.see(context, &Sight { revision, leader: None, round: None, place: None, exclusions, own: None });
        assert!(matches!(view.round(), RoundKey::Missing), "{:?}", view.round());
    }
}
