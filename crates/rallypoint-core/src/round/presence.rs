//! A node's key in etcd: registered, kept, and registered again when it was lost.
//!
//! ```text
//!              granted              registered
//!   no lease ──────────▶ no key ────────────────▶ Ours
//!      ▲                  ▲  ▲    the key is gone   │
//!      │                  │  └──────────────────────┤   somebody else's key is there: it is taken over,
//!      │                  └──── Others ◀────────────┤   or this process was replaced by its owner
//!      └────────────────── the lease is lost ───────┘
//! ```

use super::context::{Context, Retry, Task};
use super::etcd::{Condition, Entry, Failure, Op, OpReply, Reply, Request, Txn, TxnReply};
use super::output::{Output, Refusal};
use super::record::{NodeRecord, RoundRecord, json, parse};
use super::view::{Sight, found, got};

/// How many earlier processes of its name a node tells that they were replaced.
const EVICTIONS: usize = 8;

#[derive(Debug)]
pub(super) struct Presence {
    lease: Lease,
    key: OwnKey,
    registering: bool,
    /// When this process last wrote its key: whoever has it instead has replaced it.
    established: Option<i64>,
    /// A registration was never answered: this process may have been in a round that it does not know of.
    unanswered: bool,
    /// The leases of earlier processes of this name, to be ended.
    inherited: Vec<i64>,
    evicting: bool,
    retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    None,
    Granting,
    Held(i64),
}

/// What stands in etcd under this node's name, as far as this process knows.
#[derive(Debug)]
enum OwnKey {
    Missing,
    Ours { record: Box<NodeRecord>, key: KeyAt, lease: i64, said: Said, epoch: u64 },
    Others(KeyAt),
}

/// Whether what stands there is the last that this process has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Last,
    /// It may be: an answer was lost. Or it is something from before, and etcd has lost the rest.
    Earlier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyAt {
    pub(super) created: i64,
    pub(super) modified: i64,
}

/// What became of a registration, or what a look at the key has shown.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing that concerns others.
    Nothing,
    /// It tells how things stand with the group.
    Registered(Box<Sight>),
    /// Another process has the name, there.
    Replaced {
        by: String,
    },
    /// The run is not one for this node.
    Mismatch(Refusal),
    LeaseLost,
}

impl Presence {
    pub(super) fn new() -> Self {
        Presence {
            lease: Lease::None,
            key: OwnKey::Missing,
            registering: false,
            established: None,
            unanswered: false,
            inherited: Vec::new(),
            evicting: false,
            retry: Retry::default(),
        }
    }

    pub(super) fn lease(&self) -> Option<i64> {
        if let Lease::Held(lease) = self.lease { Some(lease) } else { None }
    }

    /// The node's key, if it is this process's and hangs on its lease.
    pub(super) fn stands(&self) -> Option<KeyAt> {
        match &self.key {
            OwnKey::Ours { key, lease, .. } if self.lease == Lease::Held(*lease) => Some(*key),
            _ => None,
        }
    }

    /// Whether what stands in etcd is the last that this process has said, and `enough`.
    pub(super) fn has_said(&self, enough: impl FnOnce(&NodeRecord) -> bool) -> bool {
        !self.registering
            && matches!(&self.key, OwnKey::Ours { record, said: Said::Last, .. } if enough(record))
    }

    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// A grant or a registration is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.registering || self.lease == Lease::Granting
    }

    pub(super) fn retry(&mut self) -> &mut Retry {
        &mut self.retry
    }

    pub(super) fn retries_at(&self) -> Option<std::time::Duration> {
        self.retry.at()
    }

    /// Gets a lease. True once it is there.
    pub(super) fn hold_lease(&mut self, context: &mut Context<'_>) -> bool {
        if self.lease == Lease::None && !self.retry.waits() {
            self.lease = Lease::Granting;
            context.out.request(Task::Grant, Request::Grant(context.config.lease_ttl));
        }
        matches!(self.lease, Lease::Held(_))
    }

    /// Registers, unless what stands in etcd is `enough`. True if it is.
    pub(super) fn register(
        &mut self,
        context: &mut Context<'_>,
        record: impl Fn() -> NodeRecord,
        enough: impl FnOnce(&NodeRecord) -> bool,
    ) -> bool {
        let Lease::Held(lease) = self.lease else { return false };
        if self.registering || self.retry.waits() {
            return false;
        }
        if let OwnKey::Ours { record: stands, lease: on, said, .. } = &mut self.key
            && *on == lease
        {
            let is_said = match said {
                Said::Last => enough(stands),
                // Said again it would be another request to whoever plans, and this one may have been planned with.
                Said::Earlier => **stands == record(),
            };
            if is_said {
                *said = Said::Last;
                self.evict(context);
                return true;
            }
        }
        self.registering = true;
        let record = record();
        let request = self.registration(context, lease, &record);
        let created = match &self.key {
            OwnKey::Missing => None,
            OwnKey::Ours { key, .. } | OwnKey::Others(key) => Some(key.created),
        };
        context.out.request(Task::Register { lease, record, created }, request);
        false
    }

    /// One request to join, whatever is there: the node's key, the leader's where there is none, and a look at the
    /// round, at this node's place, as an earlier try may have got through, and been planned with, and at who is kept out.
    fn registration(&self, context: &Context<'_>, lease: i64, record: &NodeRecord) -> Request {
        let keys = context.keys;
        let own = keys.node(&context.config.id);
        let when = match &self.key {
            OwnKey::Missing => Condition::Missing(own.clone()),
            OwnKey::Ours { key, .. } | OwnKey::Others(key) => {
                Condition::ModifiedAt(own.clone(), key.modified)
            }
        };
        let lead = Txn {
            when: vec![Condition::Missing(keys.leader())],
            then: vec![put_leader(context, lease)],
            otherwise: vec![Op::Get(keys.leader())],
        };
        let then = vec![
            Op::Put { key: own.clone(), value: json(record), lease },
            Op::Txn(lead),
            Op::Get(keys.round()),
            Op::Get(keys.rank(&context.config.id)),
            Op::Range(keys.exclusions()),
        ];
        Request::Txn(Txn { when: vec![when], then, otherwise: vec![Op::Get(own), Op::Get(keys.round())] })
    }

    fn evict(&mut self, context: &mut Context<'_>) {
        if let Some(lease) = self.inherited.last()
            && !self.evicting
        {
            self.evicting = true;
            context.out.request(Task::Evict, Request::Revoke(*lease));
        }
    }

    pub(super) fn evicted(&mut self, context: &mut Context<'_>, reply: &Result<Reply, Failure>) {
        self.evicting = false;
        match reply {
            Err(Failure::Unknown | Failure::Refused | Failure::Denied) => self.retry.failed(context),
            _ => drop(self.inherited.pop()),
        }
    }

    /// A lease was granted, or not; `wanted` is false if this node wants to be gone by now.
    pub(super) fn granted(
        &mut self,
        context: &mut Context<'_>,
        reply: &Result<Reply, Failure>,
        wanted: bool,
    ) {
        self.lease = Lease::None;
        match reply {
            Ok(Reply::Granted(lease)) if wanted => {
                self.lease = Lease::Held(*lease);
                context.out.push(Output::Keep(*lease));
            }
            Ok(Reply::Granted(lease)) => context.out.request(Task::Forgotten, Request::Revoke(*lease)),
            _ => self.retry.failed(context),
        }
    }

    pub(super) fn registered(
        &mut self,
        context: &mut Context<'_>,
        lease: i64,
        record: NodeRecord,
        created: Option<i64>,
        reply: Result<Reply, Failure>,
    ) -> Found {
        self.registering = false;
        let reply = match reply {
            Ok(Reply::Txn(reply)) => reply,
            Err(Failure::LeaseGone) => return self.lose_if_held(context, lease),
            Err(Failure::Refused | Failure::Denied) => {
                self.retry.failed(context);
                return Found::Nothing;
            }
            _ => {
                self.unanswered = true;
                self.retry.failed(context);
                return Found::Nothing;
            }
        };
        if !reply.held {
            let mut results = reply.results.into_iter().map(got);
            let (own, round) = (results.next().flatten(), results.next().flatten());
            self.retry.refused(context);
            return self.found(context, own.as_ref(), round.as_ref());
        }
        self.retry.succeeded();
        if self.lease != Lease::Held(lease) {
            // Lost while the reply was under way, and the key with it.
            self.key = OwnKey::Missing;
            return Found::Nothing;
        }
        let key = KeyAt { created: created.unwrap_or(reply.revision), modified: reply.revision };
        let (record, said, epoch) = (Box::new(record), Said::Last, context.out.epoch());
        self.key = OwnKey::Ours { record, key, lease, said, epoch };
        self.established = Some(key.modified);
        Found::Registered(Box::new(registration_saw(reply, lease)))
    }

    /// What stands in etcd under this node's name.
    pub(super) fn found(
        &mut self,
        context: &Context<'_>,
        own: Option<&Entry>,
        round: Option<&Entry>,
    ) -> Found {
        let Some(entry) = own else {
            self.key = OwnKey::Missing;
            return Found::Nothing;
        };
        let key = KeyAt { created: entry.create_revision, modified: entry.mod_revision };
        let Ok(record) = parse::<NodeRecord>(entry) else {
            // No process has written that. It is written over.
            self.key = OwnKey::Others(key);
            return Found::Nothing;
        };
        if record.incarnation == context.config.incarnation {
            let (record, lease, said) = (Box::new(record), entry.lease, Said::Earlier);
            self.key = OwnKey::Ours { record, key, lease, said, epoch: context.out.epoch() };
            return Found::Nothing;
        }
        if self.established.is_some_and(|at| !is_of_the_past(context, at, key.modified, &record)) {
            return Found::Replaced { by: record.address };
        }
        // Whoever has no place in this run must not take the place of one who has.
        if let Some(RoundRecord { settings: Some(theirs), .. }) = round.and_then(|entry| parse(entry).ok())
            && let Some((setting, ours, theirs)) = context.config.settings.difference(&theirs)
        {
            return Found::Mismatch(Refusal::Mismatch { setting, ours, theirs });
        }
        if !self.inherited.contains(&entry.lease) {
            // First in, so that the one whose end is under way stays the last. Where many processes fight for a name, the
            // rest find out by themselves.
            self.inherited.insert(0, entry.lease);
            self.inherited.truncate(EVICTIONS);
        }
        self.key = OwnKey::Others(key);
        Found::Nothing
    }

    /// A look has shown this node's own key.
    pub(super) fn looked(&mut self, context: &Context<'_>, sight: &Sight) -> Found {
        // What was written after the look. Revisions of different epochs cannot be compared.
        let later = |key: &KeyAt, epoch| epoch == context.out.epoch() && key.modified > sight.revision;
        if matches!(&self.key, OwnKey::Ours { key, epoch, .. } if later(key, *epoch)) {
            return Found::Nothing;
        }
        if self.registering {
            // What comes of that tells the rest. But what is not there does not stand until then.
            if sight.own.is_none() {
                self.key = OwnKey::Missing;
            }
            return Found::Nothing;
        }
        let ours = |entry: &Entry| {
            parse::<NodeRecord>(entry).is_ok_and(|record| record.incarnation == context.config.incarnation)
        };
        match (&self.key, &sight.own) {
            // Another process's key may have been written at the same revision of another history.
            (OwnKey::Ours { key, .. }, Some(entry)) if entry.mod_revision == key.modified && ours(entry) => {
                Found::Nothing
            }
            (_, own) => self.found(context, own.as_ref(), None),
        }
    }

    /// This node leads, and sees another process's key under its name. Whether that one has replaced it. If not, a
    /// registration will find the key, and take it over. One that is older than this node's own is told of late, or stands
    /// there again: of that the other watches tell.
    pub(super) fn is_taken(&mut self, context: &Context<'_>, modified: i64, record: &NodeRecord) -> bool {
        let taken = !is_of_the_past(context, self.established.unwrap_or(0), modified, record);
        if taken || self.established.is_none_or(|at| at < modified) {
            self.key = OwnKey::Missing;
        }
        taken
    }

    /// The leader misses the key, and has asked whether this node is there.
    pub(super) fn is_missed(&mut self) {
        if !self.registering {
            self.key = OwnKey::Missing;
            self.retry.succeeded();
        }
    }

    /// The key is gone, or another process's.
    pub(super) fn key_is_gone(&mut self) {
        self.key = OwnKey::Missing;
    }

    fn lose_if_held(&mut self, context: &mut Context<'_>, lease: i64) -> Found {
        if self.lease != Lease::Held(lease) {
            return Found::Nothing;
        }
        self.lose_lease(context);
        Found::LeaseLost
    }

    /// Gives the lease back, and with it all that hangs on it. Others can lead then; but they miss this node, and take it for dead
    /// unless it is back soon, however often it has asked in vain.
    pub(super) fn give_up_lease(&mut self, context: &mut Context<'_>) {
        if let Lease::Held(lease) = self.lease {
            context.out.request(Task::Forgotten, Request::Revoke(lease));
        }
        self.lose_lease(context);
        self.retry.succeeded();
        self.retry.refused(context);
    }

    /// The lease is gone, and with it the key.
    pub(super) fn lose_lease(&mut self, context: &mut Context<'_>) {
        if let Lease::Held(lease) = self.lease {
            context.out.push(Output::Forget(lease));
            self.lease = Lease::None;
        }
        self.key = OwnKey::Missing;
    }
}

/// Whether a key is what an earlier process of this name has left, and stands there again because etcd was restored
/// from a snapshot. A process that was started before this one has not taken its name away. Nor has one whose key was
/// modified before this process wrote its own (`written`), also if it was started later: it may have left before this one
/// came to register. Where etcd counts from the beginning again that may be wrong; the later one then takes the name back.
fn is_of_the_past(context: &Context<'_>, written: i64, modified: i64, record: &NodeRecord) -> bool {
    record.since < context.config.since || modified < written
}

pub(super) fn put_leader(context: &Context<'_>, lease: i64) -> Op {
    Op::Put { key: context.keys.leader(), value: context.config.leader_value(), lease }
}

/// What a registration that held has seen.
fn registration_saw(reply: TxnReply, lease: i64) -> Sight {
    let revision = reply.revision;
    let mut results = reply.results.into_iter().skip(1);
    let leader = match results.next() {
        Some(OpReply::Txn(TxnReply { held: true, .. })) => Some(Entry {
            key: String::new(),
            value: String::new(),
            create_revision: revision,
            mod_revision: revision,
            lease,
        }),
        Some(OpReply::Txn(TxnReply { results, .. })) => results.into_iter().next().and_then(got),
        _ => None,
    };
    let mut next = || results.next().and_then(got);
    let (round, place) = (next(), next());
    let exclusions = found(results.next());
    Sight { revision, leader, round, place, exclusions, own: None }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::context::tests::Bench;
    use super::super::membership::Membership;
    use super::*;

    /// Says with that port what it wants.
    fn says(presence: &mut Presence, context: &mut Context<'_>, port: u16) {
        let mut membership = Membership::new();
        membership.join(port);
        let config = context.config;
        presence.register(context, || membership.record(config), |record| membership.is_said_by(record));
    }

    /// Seed 3604090966: a leader that was denied everything gave its lease up, and asked for another up to two seconds later. By then
    /// it was dead.
    #[test]
    fn who_gives_its_lease_up_is_back_before_it_is_taken_for_dead() {
        let (mut bench, mut presence) = (Bench::new(), Presence::new());
        let context = &mut bench.context();
        presence.granted(context, &Ok(Reply::Granted(7)), true);
        for _ in 0..8 {
            presence.retry.failed(context);
            assert!(presence.retry.is_due(Duration::MAX));
        }
        presence.retry.failed(context);
        presence.give_up_lease(context);
        let pause = presence.retries_at().expect("it asks for another") - context.now;
        // Whoever leads then asks for it, and looks twice, a quarter of a second apart.
        assert!(pause > Duration::ZERO && pause < Duration::from_millis(250), "{pause:?}");
    }

    /// A look that finds nothing.
    fn sight(revision: i64) -> Sight {
        let exclusions = Vec::new();
        Sight { revision, leader: None, round: None, place: None, exclusions, own: None }
    }

    /// Seed 3000441805: etcd was restored to before the key was written. A node that looks has just asked for another round. The
    /// look does not find the key, and the node took itself for a member until it heard what came of that request.
    #[test]
    fn a_key_that_a_look_does_not_find_does_not_stand_while_a_registration_is_under_way() {
        let (mut bench, mut presence) = (Bench::new(), Presence::new());
        let context = &mut bench.context();
        let record = Membership::new().record(context.config);
        let reply = |held, revision, found| Ok(Reply::Txn(TxnReply { held, revision, results: vec![found] }));
        presence.granted(context, &Ok(Reply::Granted(7)), true);
        says(&mut presence, context, 1);
        presence.registered(context, 7, record.clone(), None, reply(true, 3, OpReply::Done));
        assert_eq!(presence.stands(), Some(KeyAt { created: 3, modified: 3 }));
        context.out.begin_epoch();
        says(&mut presence, context, 2);
        presence.looked(context, &sight(5));
        assert_eq!(presence.stands(), None);
        presence.registered(context, 7, record.clone(), Some(3), reply(false, 5, OpReply::Got(None)));
        assert_eq!(presence.stands(), None);
        presence.retry().succeeded();
        says(&mut presence, context, 2);
        presence.registered(context, 7, record, None, reply(true, 6, OpReply::Done));
        says(&mut presence, context, 3);
        presence.looked(context, &sight(5));
        assert_eq!(
            presence.stands(),
            Some(KeyAt { created: 6, modified: 6 }),
            "it was written after the look"
        );
    }
}
