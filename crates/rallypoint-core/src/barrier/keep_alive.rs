//! A node's keep-alive, and what is done when it, or more, is gone from etcd.
//!
//! ```text
//!             due                   gone               the version stands
//!        ┌──────────► Renewing ──────────► Returning ──────────────────────► Kept (recovered)
//! Off ─► Kept ◄──────────┘  the record or a watch is in doubt ─►  │ ▲
//!                                                                 │ └ record put back, where the folder is gone
//!                                                                 └ the version is over ──► Off (superseded)
//! ```
//!
//! etcd 3.5 cannot put off the end of a folder with a TTL, so on it a run's folder goes two hours after it was made,
//! with everything in it, while the group is well; and a server that is started again empty has lost it, too.
//! Whoever sees it first puts the record back.

use std::collections::BTreeSet;
use std::time::Duration;

use super::KEEP_ALIVE_TTL;
use super::context::Context;
use super::etcd::{Failure, Reply, Request, VersionRank, View, torch_ranks};
use super::outbox::{Asked, Part};
use super::output::Loss;
use super::record::{Record, Status};
use crate::Backoff;

/// How long a folder without a record may be one that another node is putting back; and how long a version may
/// be set up.
const PUTTING_BACK: Duration = Duration::from_secs(5);

/// How often what is being put back is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// When it is due again. Twice missed, it is still there.
const INTERVAL: Duration = Duration::from_millis(KEEP_ALIVE_TTL.as_millis() as u64 / 3);

#[derive(Debug, Default)]
pub(super) struct Keeper {
    state: State,
    asked: Asked,
    backoff: Backoff,
}

#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Off,
    Kept {
        place: VersionRank,
        group: Option<Record>,
        due: Duration,
    },
    Renewing {
        place: VersionRank,
        group: Option<Record>,
    },
    Returning(Box<Returning>),
}

/// On the way back.
#[derive(Debug, Clone)]
struct Returning {
    place: VersionRank,
    /// The record of the group, once it is final.
    group: Option<Record>,
    /// The folder is there without a record, or with one that is being set up.
    missing: Option<Missing>,
    /// It was there when it was asked for just before, and the record missing for too long.
    last_look: bool,
    lost: Option<Loss>,
    /// The record as it was read last, and when that was asked for.
    view: View,
    asked_at: Duration,
    /// The ranks at which keep-alives of PyTorch's nodes were seen.
    torch: BTreeSet<usize>,
    /// When to read it again.
    pause: Option<Duration>,
}

/// Since when the record is missing, as far as it was looked for.
#[derive(Debug, Clone, Copy)]
struct Missing {
    since: Duration,
    seen: Duration,
}

impl Returning {
    /// Whether another node may be putting the record back, or setting one up.
    fn may_return(&self) -> bool {
        self.missing.is_none_or(|missing| self.asked_at < missing.since + PUTTING_BACK)
    }

    /// It is missing. Where this node has not looked for long, it can have been there meanwhile.
    fn seen_missing(&mut self, now: Duration) {
        let before = self.missing.filter(|before| now <= before.seen + PUTTING_BACK);
        self.missing = Some(Missing { since: before.map_or(now, |before| before.since), seen: now });
    }
}

/// What became of a doubt.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub(super) enum Verdict {
    /// Not known yet, or there was none.
    None,
    /// The version stands, and the keep-alive is there: what was lost, the record, and where PyTorch's nodes were seen.
    Recovered(Option<Loss>, View, BTreeSet<usize>),
    /// The version is over.
    Superseded(View),
}

impl Keeper {
    /// Keeps the keep-alive of this place, which was written just now, or none.
    pub(super) fn keep(&mut self, now: Duration, place: Option<VersionRank>) {
        if self.place() != place {
            self.asked.forget();
            self.backoff = Backoff::default();
            self.state = match place {
                Some(place) => State::Kept { place, group: None, due: now + INTERVAL },
                None => State::Off,
            };
        }
    }

    /// The version is final, with this record, which is put back if etcd loses it.
    pub(super) fn group_is(&mut self, cx: &mut Context, record: Option<&Record>) {
        let group = match &mut self.state {
            State::Off => return,
            State::Kept { group, .. } | State::Renewing { group, .. } => group,
            // What was read before it was final is not the record of the group.
            State::Returning(returning) if returning.group.is_none() && record.is_some() => {
                let (place, lost) = (returning.place, returning.lost);
                return self.returns(cx, place, record.cloned(), lost);
            }
            State::Returning(returning) => &mut returning.group,
        };
        if group.as_ref() != record {
            *group = record.cloned();
        }
    }

    /// The record may not be what it was: looks, and comes to a [`Verdict`].
    pub(super) fn doubt(&mut self, cx: &mut Context, lost: Option<Loss>) {
        match std::mem::take(&mut self.state) {
            State::Kept { place, group, .. } | State::Renewing { place, group } => {
                self.asked.forget();
                self.returns(cx, place, group, lost);
            }
            state => self.state = state,
        }
    }

    /// The same after a failure, so not at once.
    pub(super) fn doubt_soon(&mut self, cx: &mut Context) {
        self.doubt(cx, None);
        self.asked.forget();
        let pause = cx.out.now + self.backoff.next(cx.out.random());
        if let State::Returning(returning) = &mut self.state {
            returning.pause = Some(pause);
        }
    }

    /// Whether there is a keep-alive to keep.
    pub(super) fn is_on(&self) -> bool {
        self.place().is_some()
    }

    /// Whether what was lost, and whether the version stands, is being found out.
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Returning(_))
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        match &self.state {
            State::Kept { due, .. } => Some(*due),
            State::Returning(returning) => returning.pause,
            State::Off | State::Renewing { .. } => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        match &mut self.state {
            State::Kept { place, group, due } if *due <= cx.out.now => {
                let place = *place;
                self.state = State::Renewing { place, group: group.take() };
                self.ask(cx, Request::RenewKeepAlive(place));
            }
            State::Returning(returning) if returning.pause.is_some_and(|pause| pause <= cx.out.now) => {
                (returning.pause, returning.last_look) = (None, false);
                self.ask(cx, Request::ReadRecord);
            }
            _ => {}
        }
    }

    pub(super) fn handle_reply(
        &mut self,
        cx: &mut Context,
        id: u64,
        reply: Result<Reply, Failure>,
    ) -> Verdict {
        let Some(request) = self.asked.take(id) else { return Verdict::None };
        match (std::mem::take(&mut self.state), reply) {
            (State::Renewing { place, group }, Ok(Reply::Done { .. })) => self.kept(cx, place, group),
            (State::Renewing { place, group }, Ok(Reply::Refused)) => {
                self.returns(cx, place, group, Some(Loss::KeepAlive));
            }
            // Whatever the error: as long as the key is there, the place is ours.
            (State::Renewing { place, group }, _) => {
                let due = cx.out.now + self.backoff.next(cx.out.random());
                self.state = State::Kept { place, group, due };
            }
            (State::Returning(returning), Ok(reply)) => return self.step(cx, *returning, &request, reply),
            (State::Returning(returning), Err(Failure::Unknown)) => self.look_again(cx, *returning),
            (state, _) => self.state = state,
        }
        Verdict::None
    }

    fn step(&mut self, cx: &mut Context, mut way: Returning, request: &Request, reply: Reply) -> Verdict {
        let place = way.place;
        let next = match (request, reply) {
            (_, Reply::Record(view)) => {
                way.view = view;
                match self.judge(cx, &mut way) {
                    Ok(Some(request)) => request,
                    Ok(None) => {
                        self.look_again(cx, way);
                        return Verdict::None;
                    }
                    Err(()) => return Verdict::Superseded(way.view),
                }
            }
            (_, Reply::Run(false)) => {
                way.lost = Some(Loss::Everything);
                Request::MakeRun { counter: place.version }
            }
            (Request::MakeRun { .. }, Reply::Done { .. }) => match way.group.clone() {
                Some(record) => Request::CreateRecord { record, ttl: None },
                None => return Verdict::Superseded(way.view),
            },
            // This node has seen that all was lost, and has begun to put it back.
            (_, Reply::Run(true)) if way.lost == Some(Loss::Everything) => {
                Request::MakeRun { counter: place.version }
            }
            (_, Reply::Run(true)) => {
                way.seen_missing(cx.out.now);
                if way.may_return() {
                    // Another node is about to write the record.
                    self.look_again(cx, way);
                    return Verdict::None;
                }
                // It may have done so since the record was read.
                way.last_look = true;
                Request::ReadRecord
            }
            (_, Reply::Members { members, .. }) => {
                way.torch.extend(torch_ranks(&members));
                match members.into_iter().find(|member| member.rank == place.rank) {
                    // Until the group has met, that it is there tells this node's place from another's.
                    None if way.group.is_none() => return Verdict::Superseded(way.view),
                    None => {
                        way.lost = way.lost.or(Some(Loss::KeepAlive));
                        Request::WriteKeepAlive(place)
                    }
                    // It may be about to end.
                    Some(own) if own.node.as_ref() == Some(&cx.settings.node) => {
                        Request::RenewKeepAlive(place)
                    }
                    // After a loss of data, other nodes can have made a version of the same number.
                    Some(_) => return Verdict::Superseded(way.view),
                }
            }
            (Request::WriteKeepAlive(_) | Request::RenewKeepAlive(_), Reply::Done { .. }) => {
                return self.recovered(cx, way);
            }
            (Request::CreateRecord { .. } | Request::SwapRecord { .. }, Reply::Done { .. }) => {
                Request::ReadRecord
            }
            _ => {
                self.look_again(cx, way);
                return Verdict::None;
            }
        };
        self.state = State::Returning(Box::new(way));
        self.ask(cx, next);
        Verdict::None
    }

    /// What to do about the record as it was read: ask for something, look again, or take it for the end.
    fn judge(&self, cx: &Context, way: &mut Returning) -> Result<Option<Request>, ()> {
        let version = way.place.version;
        let last_look = std::mem::take(&mut way.last_look);
        match &way.view.record {
            Some((now, _)) if now.status == Status::Setup => {
                way.seen_missing(cx.out.now);
            }
            Some(_) => way.missing = None,
            None => {}
        }
        match (&way.view.record, &way.group) {
            (Some((now, _)), Some(group)) if now.is(Status::Final, version) => {
                if now.has_nodes_of(group) {
                    Ok(Some(Request::ListMembers { version }))
                } else {
                    Err(())
                }
            }
            (Some((now, _)), None) if now.is(Status::Final, version) || now.is(Status::Frozen, version) => {
                Ok(Some(Request::ListMembers { version }))
            }
            // Versions only grow: one that takes nodes, and is not later than ours, is of a server that lost what
            // came after it, and of nodes that do not know of the group. They will wait for it.
            (Some(over), Some(group))
                if over.0.status == Status::Joinable && over.0.version.is_some_and(|now| now <= version) =>
            {
                way.lost = Some(Loss::Latest);
                Ok(Some(Request::SwapRecord { record: group.clone(), over: over.clone(), ttl: None }))
            }
            // Its nodes may have the ranks of ours, so it is let be: it becomes final, or ends by itself.
            (Some((now, _)), Some(_))
                if now.status == Status::Frozen && now.version.is_some_and(|now| now <= version) =>
            {
                Ok(None)
            }
            (Some((now, _)), Some(_)) if now.status == Status::Setup && way.may_return() => Ok(None),
            (None, Some(_)) if !last_look => Ok(Some(Request::FindRun)),
            _ => Err(()),
        }
    }

    fn recovered(&mut self, cx: &mut Context, way: Returning) -> Verdict {
        self.kept(cx, way.place, way.group);
        Verdict::Recovered(way.lost, way.view, way.torch)
    }

    fn returns(&mut self, cx: &mut Context, place: VersionRank, group: Option<Record>, lost: Option<Loss>) {
        self.state = State::Returning(Box::new(Returning {
            place,
            group,
            missing: None,
            last_look: false,
            lost,
            view: View::default(),
            torch: BTreeSet::new(),
            asked_at: cx.out.now,
            pause: None,
        }));
        self.ask(cx, Request::ReadRecord);
    }

    fn look_again(&mut self, cx: &mut Context, returning: Returning) {
        let pause = Some(cx.out.now + LOOK + self.backoff.next(cx.out.random()) / 4);
        self.state = State::Returning(Box::new(Returning { pause, ..returning }));
    }

    fn kept(&mut self, cx: &mut Context, place: VersionRank, group: Option<Record>) {
        self.backoff = Backoff::default();
        self.state = State::Kept { place, group, due: cx.out.now + INTERVAL };
    }

    fn place(&self) -> Option<VersionRank> {
        match &self.state {
            State::Off => None,
            State::Kept { place, .. } | State::Renewing { place, .. } => Some(*place),
            State::Returning(returning) => Some(returning.place),
        }
    }

    fn ask(&mut self, cx: &mut Context, request: Request) {
        if let (Request::ReadRecord, State::Returning(returning)) = (&request, &mut self.state) {
            returning.asked_at = cx.out.now;
        }
        self.asked.ask(&mut cx.out, Part::KeepAlive, request);
    }
}
