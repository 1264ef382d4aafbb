//! A group that has met: who is in it, and whether it still is.
//!
//! Each node watches two things: the record, and the keep-alive of the next node of ours by rank, with those of
//! PyTorch's nodes in between. Who sees one end tells the others through the number waiting, which PyTorch's
//! nodes look at, too. So nobody watches everybody, and no death goes unseen.
//!
//! ```text
//!       a member's key is gone, or somebody waits           one is missing
//! Rest ──────────────────────────────────────────► Listing ───────────────► Asking how it went
//!  ▲ ▲                                                │ nobody, or one that may return      │ told
//!  │ └────────────────────────────────────────────────┘                                    ▼
//!  └──────────────────────────── counted up ──────────────────────────────────────────── Calling
//! ```
//!
//! Now and then it looks by itself. A server that was restored can come past the index of a watch before it is asked, and
//! then nobody is told what happened below it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::context::Context;
use super::etcd::{
    Ending, Failure, KeepAlive, Reply, Request, Update, VersionRank, View, Watched, torch_ranks,
};
use super::outbox::{Asked, Part};
use super::output::{Change, NodeEvent, WatchId};
use super::record::{Record, Status};
use crate::Backoff;

/// A keep-alive that ended while its node could not renew it may be there again after this time.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// How often a group of up to [`SMALL`] nodes looks by itself; a larger one less often, since what is read is as long as
/// the group, and every member reads it.
const CHECK: Duration = Duration::from_secs(10);
const SMALL: f64 = 64.0;

#[derive(Debug)]
pub(super) struct Group {
    place: VersionRank,
    /// The record as it was seen last, final, and its index.
    seen: (Record, u64),
    /// The index from which on the group is final.
    since: u64,
    told: Option<Change>,
    look: Look,
    /// When to look by itself.
    check_at: Duration,
    /// The members that this node watches, and their names.
    neighbours: Neighbours,
    /// The ranks of PyTorch's nodes, which do not put their keep-alives back when etcd loses them.
    torch: BTreeSet<usize>,
    /// Whether etcd lost all keep-alives: then that one of PyTorch's is missing says nothing any more.
    lost_all: bool,
    asked: Asked,
    backoff: Backoff,
}

/// What the node is about.
#[derive(Debug, Clone, PartialEq)]
enum Look {
    Rest,
    /// Looks at the record by itself, then at the members.
    Checking,
    /// Look at the members at that time; `sure` if who is missing then is gone.
    Due {
        at: Duration,
        sure: bool,
    },
    Listing {
        sure: bool,
    },
    Asking(Missing),
    /// To count up the number waiting, so that all others learn it: at that time, or it is under way.
    Calling {
        at: Option<Duration>,
    },
}

#[derive(Debug, Clone, PartialEq)]
struct Missing {
    rank: usize,
    node: String,
}

#[derive(Debug)]
enum Neighbours {
    Unknown,
    Watched(Vec<(usize, Ended)>),
}

/// How the keep-alive of a neighbour was seen to go.
#[derive(Debug, Clone)]
struct Ended {
    node: String,
    ending: Ending,
}

/// What the group cannot answer by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Doubt {
    None,
    /// Whether the record stands.
    Record,
    /// The same, after no server could be asked.
    Unreachable,
}

impl Group {
    /// Begins to watch a group whose record became final.
    pub(super) fn new(cx: &mut Context, place: VersionRank, record: &Record, index: u64) -> Self {
        // All nodes of a group begin at the same moment; the list is as long as the group.
        let spread = Duration::from_millis(5) * u32::try_from(record.joined()).unwrap_or(u32::MAX);
        let at = cx.out.now + spread.min(Duration::from_secs(2)).mul_f64(cx.out.random());
        let mut group = Group {
            place,
            seen: (record.clone(), index),
            since: index + 1,
            told: None,
            look: Look::Due { at, sure: false },
            check_at: Duration::MAX,
            neighbours: Neighbours::Unknown,
            torch: BTreeSet::new(),
            lost_all: false,
            asked: Asked::default(),
            backoff: Backoff::default(),
        };
        group.check_later(cx);
        cx.out.watch(WatchId::Record, Watched::Record, index + 1);
        // Somebody may have come before this node saw that the group was complete.
        group.waiting_changed(cx);
        group
    }

    /// Watches no more.
    pub(super) fn end(self, cx: &mut Context) {
        cx.out.unwatch(WatchId::Record);
        cx.out.unwatch(WatchId::Members);
    }

    /// The record of the group as it was seen last, while it is worth to be put back.
    pub(super) fn record(&self) -> Option<&Record> {
        (!self.is_over()).then_some(&self.seen.0)
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        match self.look {
            Look::Rest => (!self.is_over()).then_some(self.check_at),
            Look::Due { at, .. } => Some(at),
            Look::Calling { at } => at,
            Look::Checking | Look::Listing { .. } | Look::Asking(_) => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        match self.look {
            Look::Rest if !self.is_over() && self.check_at <= cx.out.now => {
                self.check_later(cx);
                self.look = Look::Checking;
                self.ask(cx, Request::ReadRecord);
            }
            Look::Due { at, sure } if at <= cx.out.now => self.list(cx, sure),
            Look::Calling { at: Some(at) } if at <= cx.out.now => {
                self.look = Look::Calling { at: None };
                self.ask(cx, Request::ReadRecord);
            }
            _ => {}
        }
    }

    pub(super) fn handle_update(&mut self, cx: &mut Context, watch: WatchId, update: Update) -> Doubt {
        // Also where another member puts everything back.
        self.lost_all |= update == Update::FolderGone;
        match (watch, update) {
            (_, Update::Record(view)) if view.record.is_none() => {
                self.tell(cx, Change::Left { node: String::new(), rank: None });
                Doubt::None
            }
            (_, Update::Record(view)) => self.record_is(cx, &view),
            (WatchId::Record, Update::Failed) => Doubt::Unreachable,
            (WatchId::Record, _) => Doubt::Record,
            (WatchId::Members, Update::Gone { rank, ending }) => {
                if let Neighbours::Watched(watched) = &mut self.neighbours
                    && let Some((_, ended)) = watched.iter_mut().find(|(watched, _)| *watched == rank)
                {
                    ended.ending = ending;
                    self.look_at(cx.out.now + SECOND_LOOK, true);
                }
                Doubt::None
            }
            (WatchId::Members, Update::FolderGone) => Doubt::Record,
            (WatchId::Members, update) => {
                let pause = match update {
                    Update::Failed => self.backoff.next(cx.out.random()),
                    _ => Duration::ZERO,
                };
                self.neighbours = Neighbours::Unknown;
                cx.out.unwatch(WatchId::Members);
                self.look_at(cx.out.now + SECOND_LOOK + pause, false);
                Doubt::None
            }
        }
    }

    /// The version was in doubt, and stands. PyTorch's nodes were seen at the ranks in `torch`; `lost_all` if everything
    /// had to be put back.
    pub(super) fn recovered(
        &mut self,
        cx: &mut Context,
        view: &View,
        torch: BTreeSet<usize>,
        lost_all: bool,
    ) {
        self.lost_all |= lost_all;
        self.torch.extend(torch);
        cx.out.watch(WatchId::Record, Watched::Record, view.next);
        // What an index means may have changed.
        self.since = view.next;
        self.neighbours = Neighbours::Unknown;
        cx.out.unwatch(WatchId::Members);
        if let Some((record, index)) = &view.record {
            self.seen = (record.clone(), *index);
        }
        self.look_at(cx.out.now + SECOND_LOOK, false);
        self.waiting_changed(cx);
    }

    /// The version was in doubt, and is over.
    pub(super) fn superseded(&mut self, cx: &mut Context, view: &View) {
        let change = match &view.record {
            Some((record, _)) if record.status == Status::Closed => {
                Change::Closed { reason: record.reason().to_owned() }
            }
            Some((record, _)) if record.status == Status::Final => Change::Excluded,
            _ => Change::Left { node: String::new(), rank: None },
        };
        // Who was told that it must meet again learns nothing new, but for the end of the run.
        if !self.is_over() || matches!(change, Change::Closed { .. }) {
            self.tell(cx, change);
        }
        cx.out.watch(WatchId::Record, Watched::Record, view.next);
    }

    /// `in_doubt`: what was lost is being found out, and with it what it means that somebody is missing.
    pub(super) fn handle_reply(
        &mut self,
        cx: &mut Context,
        id: u64,
        reply: Result<Reply, Failure>,
        in_doubt: bool,
    ) -> Doubt {
        let Some(request) = self.asked.take(id) else { return Doubt::None };
        if let Ok(Reply::Members { members, .. }) = &reply {
            // Whatever else comes of it: it may be the only list from before a loss.
            self.torch.extend(torch_ranks(members));
        }
        match (self.look.clone(), reply) {
            (Look::Listing { .. } | Look::Asking(_), _) if in_doubt && !self.is_over() => {
                self.look = Look::Due { at: cx.out.now + SECOND_LOOK, sure: false };
            }
            (Look::Checking, Ok(Reply::Record(view))) => {
                self.look = Look::Rest;
                return self.checked(cx, &view);
            }
            (Look::Checking, _) => self.look = Look::Rest,
            (Look::Listing { sure }, Ok(Reply::Members { members, next })) => {
                self.backoff = Backoff::default();
                return self.listed(cx, &members, next, sure);
            }
            (Look::Listing { sure }, _) => {
                let at = cx.out.now + self.backoff.next(cx.out.random());
                self.look = Look::Due { at, sure };
            }
            (Look::Asking(missing), Ok(Reply::Ending(ending))) => self.ended(cx, missing, ending),
            (Look::Asking(_), _) => {
                let at = cx.out.now + self.backoff.next(cx.out.random());
                self.look = Look::Due { at, sure: true };
            }
            (Look::Calling { .. }, Ok(Reply::Record(view))) => {
                let doubt = if view.record.is_some() { self.record_is(cx, &view) } else { Doubt::Record };
                if doubt == Doubt::None && self.seen.0.waiting.unwrap_or(0) == 0 && !self.is_over() {
                    self.call(cx);
                } else {
                    self.look = Look::Rest;
                }
                return doubt;
            }
            (Look::Calling { .. }, Ok(Reply::Done { index })) => {
                if let Request::SwapRecord { record, .. } = request {
                    self.seen = (record, index);
                }
                self.look = Look::Rest;
            }
            (Look::Calling { .. }, _) => {
                let at = cx.out.now + self.backoff.next(cx.out.random());
                self.look = Look::Calling { at: Some(at) };
            }
            (Look::Rest | Look::Due { .. }, _) => {}
        }
        Doubt::None
    }

    fn record_is(&mut self, cx: &mut Context, view: &View) -> Doubt {
        let Some((record, index)) = &view.record else { return Doubt::Record };
        let later = record.version.is_some_and(|version| version > self.place.version);
        match record.status {
            Status::Closed => self.tell(cx, Change::Closed { reason: record.reason().to_owned() }),
            Status::Final if record.has_nodes_of(&self.seen.0) => {
                self.seen = (record.clone(), *index);
                self.waiting_changed(cx);
            }
            Status::Final if later => self.tell(cx, Change::Excluded),
            Status::Joinable | Status::Frozen if later => {
                self.tell(cx, Change::Left { node: String::new(), rank: None });
            }
            // Who has set up a new version has ended this one, and that was told; if not, etcd has lost something.
            _ if self.is_over() => {}
            _ => return Doubt::Record,
        }
        Doubt::None
    }

    /// The record was read without a reason: it is what was seen last, or what the watch has yet to tell of.
    fn checked(&mut self, cx: &mut Context, view: &View) -> Doubt {
        let behind = view.record.as_ref().is_none_or(|(_, index)| *index < self.seen.1);
        let doubt = if behind { Doubt::Record } else { self.record_is(cx, view) };
        if doubt == Doubt::None && self.look == Look::Rest && !self.is_over() {
            self.list(cx, false);
        }
        doubt
    }

    fn check_later(&mut self, cx: &mut Context) {
        let large = (self.seen.0.joined() as f64 / SMALL).max(1.0);
        self.check_at = cx.out.now + CHECK.mul_f64(large * (0.75 + 0.5 * cx.out.random()));
    }

    /// Whoever counted up the number has a reason.
    fn waiting_changed(&mut self, cx: &mut Context) {
        if self.seen.0.waiting.unwrap_or(0) > 0 && !matches!(self.look, Look::Calling { .. }) {
            self.look_at(cx.out.now, true);
            self.handle_timeout(cx);
        }
    }

    /// Looks at the members at that time, or earlier if that was wanted before.
    fn look_at(&mut self, at: Duration, sure: bool) {
        self.look = match self.look {
            Look::Due { at: before, sure: was } if before <= at => {
                Look::Due { at: before, sure: sure || was }
            }
            Look::Asking(_) | Look::Calling { .. } => return,
            _ => Look::Due { at, sure },
        };
    }

    fn list(&mut self, cx: &mut Context, sure: bool) {
        self.look = Look::Listing { sure };
        self.ask(cx, Request::ListMembers { version: self.place.version });
    }

    fn listed(&mut self, cx: &mut Context, members: &[KeepAlive], next: u64, sure: bool) -> Doubt {
        if !self.is_over() && !members.iter().any(|member| member.rank == self.place.rank) {
            // Whatever took this node's own keep-alive may have taken the others'.
            self.look = Look::Due { at: cx.out.now + SECOND_LOOK, sure };
            return Doubt::Record;
        }
        let there = |rank: usize| members.iter().find(|member| member.rank == rank);
        if matches!(self.neighbours, Neighbours::Unknown) {
            self.watch_neighbours(cx, members, next);
        }
        let waiting = usize::try_from(self.seen.0.waiting.unwrap_or(0)).unwrap_or(usize::MAX);
        let world = self.seen.0.joined();
        let Neighbours::Watched(watched) = &self.neighbours else { return Doubt::None };
        let excused = |rank: &usize| self.lost_all && self.torch.contains(rank);
        let gone = (0..world).find(|rank| {
            let counts = waiting > 0 || watched.iter().any(|(watched, _)| watched == rank);
            *rank != self.place.rank && counts && there(*rank).is_none() && !excused(rank)
        });
        self.look = Look::Rest;
        let Some(rank) = gone.filter(|_| !self.is_over()) else {
            if waiting > 0 {
                self.tell(cx, Change::Waiting(waiting));
            }
            return Doubt::None;
        };
        if !sure {
            self.look_at(cx.out.now + SECOND_LOOK, true);
            return Doubt::None;
        }
        let ended = watched.iter().find(|(watched, _)| *watched == rank).map(|(_, ended)| ended.clone());
        let node = ended.as_ref().map(|ended| ended.node.clone()).unwrap_or_default();
        match ended.map(|ended| ended.ending) {
            Some(ending @ (Ending::Expired | Ending::Deleted)) => {
                self.ended(cx, Missing { rank, node }, ending);
            }
            _ => {
                self.look = Look::Asking(Missing { rank, node });
                let place = VersionRank { rank, ..self.place };
                self.ask(cx, Request::ReadEnding { place, from: self.since });
            }
        }
        Doubt::None
    }

    fn ended(&mut self, cx: &mut Context, missing: Missing, ending: Ending) {
        self.look = Look::Rest;
        let Missing { rank, node } = missing;
        let waiting = usize::try_from(self.seen.0.waiting.unwrap_or(0)).unwrap_or(usize::MAX);
        if ending == Ending::Deleted {
            self.tell(cx, Change::Left { node, rank: Some(rank) });
        } else if cx.out.now < cx.silence.grace_until() {
            // Its keep-alive ended while etcd was away: it may find its way back.
            if waiting > 0 {
                self.tell(cx, Change::Waiting(waiting));
            }
            return self.look_at(cx.silence.grace_until(), true);
        } else {
            self.tell(cx, Change::Died { node, rank });
        }
        if waiting == 0 {
            self.call(cx);
        }
    }

    /// Adds one to the number waiting, so that all members come back.
    fn call(&mut self, cx: &mut Context) {
        let over = self.seen.clone();
        self.look = Look::Calling { at: None };
        self.ask(cx, Request::SwapRecord { record: over.0.with_waiting(), over, ttl: None });
    }

    fn watch_neighbours(&mut self, cx: &mut Context, members: &[KeepAlive], next: u64) {
        let ranks = neighbours(self.place.rank, self.seen.0.joined(), members);
        let name = |rank: usize| {
            let member = members.iter().find(|member| member.rank == rank);
            member.and_then(|member| member.node.clone()).unwrap_or_default()
        };
        let ended = |rank| (rank, Ended { node: name(rank), ending: Ending::Unknown });
        self.neighbours = Neighbours::Watched(ranks.iter().copied().map(ended).collect());
        if !ranks.is_empty() {
            let keys = Watched::Members { version: self.place.version, ranks };
            cx.out.watch(WatchId::Members, keys, next);
        }
    }

    /// Whether more was told than that nodes wait.
    fn is_over(&self) -> bool {
        self.told.as_ref().is_some_and(|told| !matches!(told, Change::Waiting(_)))
    }

    fn tell(&mut self, cx: &mut Context, change: Change) {
        if change.outweighs(self.told.as_ref()) {
            self.told = Some(change.clone());
            cx.out.event(NodeEvent::Changed(change));
        }
    }

    fn ask(&mut self, cx: &mut Context, request: Request) {
        self.asked.ask(&mut cx.out, Part::Group, request);
    }
}

/// The ranks that the node of `rank` watches: up to the next one of ours.
fn neighbours(rank: usize, world: usize, members: &[KeepAlive]) -> Vec<usize> {
    let ours = |rank: usize| members.iter().any(|member| member.rank == rank && member.node.is_some());
    let mut watched = Vec::new();
    for next in (1..world).map(|step| (rank + step) % world) {
        watched.push(next);
        if ours(next) {
            break;
        }
    }
    watched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_watched_by_one_of_ours() {
        let ours = [0, 2, 3, 7];
        let keep_alive = |rank| KeepAlive { rank, node: ours.contains(&rank).then(String::new) };
        let members: Vec<_> = (0..9).map(keep_alive).collect();
        let mut watched: Vec<usize> = ours.iter().flat_map(|rank| neighbours(*rank, 9, &members)).collect();
        watched.sort_unstable();
        assert_eq!(watched, (0..9).collect::<Vec<_>>());
        assert_eq!(neighbours(0, 1, &members), [] as [usize; 0]);
        assert_eq!(neighbours(7, 9, &members), [8, 0]);
    }
}
