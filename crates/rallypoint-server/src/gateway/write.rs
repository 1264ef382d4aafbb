//! Reads and writes: a look, a decision, and a transaction on the condition that what was seen is still so.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_etcd::v3::api::Txn;
use rallypoint_etcd::v3::{Client, revision_of};
use rallypoint_etcd::{Error as EtcdError, ErrorKind, Repeat};
use tokio::join;
use tokio::time::{Instant, timeout, timeout_at};

use super::Gateway;
use super::once::unique;
use super::plan::{Decision, Plan, decide};
use super::refusal::refused;
use super::seen::{Look, Seen};
use crate::v2::{Answer, Answered, Code, Error, Event, Op, Request};

/// A lease is no shorter, in seconds.
const SHORTEST: u64 = 2;
/// How long a request may lose against others, or wait for an etcd that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The least time to find out what became of a write whose answer was lost.
const TO_SETTLE: Duration = Duration::from_secs(5);

/// A lease that was granted for a request.
#[derive(Debug, Clone, Copy)]
struct Granted {
    id: i64,
    ttl: u64,
}

/// The leases of a request.
#[derive(Debug, Default)]
struct Leases {
    granted: Option<Granted>,
    /// One that etcd does not have any more, or never had.
    ended: Option<i64>,
}

impl Leases {
    /// Something hangs on this one, or may.
    fn is_used(&mut self, lease: i64) {
        self.granted.take_if(|granted| granted.id == lease);
    }
}

/// What became of a transaction.
enum Sent {
    /// At this revision, and on this lease.
    Done(u64, i64),
    /// Something else was first.
    Lost(Seen),
    /// No answer came, and it was not carried out.
    Unanswered(Seen, EtcdError),
}

impl Gateway {
    pub(super) async fn carry_out(&self, client: &Client, request: &Request) -> Result<Answered, Error> {
        let mut leases = Leases::default();
        let answered = self.try_until_done(client, request, &mut leases).await;
        if let Some(Granted { id, .. }) = leases.granted {
            // Not needed after all.
            self.revoke(client, id);
        }
        answered
    }

    async fn try_until_done(
        &self,
        client: &Client,
        request: &Request,
        leases: &mut Leases,
    ) -> Result<Answered, Error> {
        let look = Look::of(request);
        let until = Instant::now() + PATIENCE;
        let _turn = match request.op {
            Op::Get { .. } | Op::Watch { .. } => None,
            _ => {
                let turn = timeout_at(until, self.queue.turn(&request.path)).await;
                let late = |_| Error::new(Code::Internal, "others that write the same key get no answer", 0);
                Some(turn.map_err(late)?)
            }
        };
        // Each is in memory several times over, as it was read and as it is told.
        let _listing = match request.op {
            Op::Get { recursive: true } => {
                let turn = timeout_at(until, self.listings.acquire()).await;
                let late = |_| Error::new(Code::Internal, "too many others read whole trees", 0);
                Some(turn.map_err(late)?)
            }
            _ => None,
        };
        let mut seen = match self.guess(request) {
            Some(seen) => seen,
            None => self.look(&client.retrying_for(left(until)), &look).await?,
        };
        loop {
            let client = &client.retrying_for(left(until));
            let plan = match decide(&seen, request, self.clock.now())? {
                Decision::Answer(event) => return Ok(answered(event, seen.index, seen.raft_term)),
                Decision::Write(plan) => plan,
            };
            match self.send(client, &plan, &look, &seen, leases, until).await? {
                Sent::Done(revision, lease) => {
                    leases.is_used(lease);
                    self.tidy_up(client, &plan, revision, lease);
                    let (event, raft_term) = (Arc::new(plan.event_at(revision)), seen.raft_term);
                    self.recent.note(&request.path, plan.seen_after(seen, revision, lease));
                    return Ok(answered(event, revision, raft_term));
                }
                Sent::Lost(now) if Instant::now() >= until => {
                    return Err(Error::new(Code::Internal, "too many others write the same key", now.index));
                }
                // Nobody has written anything since, so it is the name of the in-order key that is taken.
                Sent::Lost(now) if matches!(request.op, Op::Append(_)) && now.index == seen.index => {
                    return Err(Error::new(Code::KeyExists, plan.path().as_bytes(), now.index));
                }
                Sent::Unanswered(_, error) if Instant::now() >= until => return Err(refused(&error)),
                Sent::Lost(now) | Sent::Unanswered(now, _) => seen = now,
            }
        }
    }

    /// What was seen last, if the request is to write on it. What would be refused is looked at first.
    fn guess(&self, request: &Request) -> Option<Seen> {
        let seen = self.recent.guess(&request.path, &request.op)?;
        let decided = decide(&seen, request, self.clock.now());
        matches!(decided, Ok(Decision::Write(_))).then_some(seen)
    }

    async fn look(&self, client: &Client, look: &Look) -> Result<Seen, Error> {
        let read = client.txn(b"", Repeat::Safe, || Txn::new().and_then(look.reads())).await;
        let seen = look.read(&read.map_err(|error| refused(&error))?)?;
        self.heard_of(seen.cluster_id);
        Ok(seen)
    }

    async fn send(
        &self,
        client: &Client,
        plan: &Plan,
        look: &Look,
        seen: &Seen,
        leases: &mut Leases,
        until: Instant,
    ) -> Result<Sent, Error> {
        let lease = self.lease(client, plan, leases, until).await;
        let (lease, goes_on) = lease.map_err(|error| refused(&error))?;
        let client = &client.retrying_for(left(until));
        let (id, fence) = (unique(), self.fence.name());
        // It can only come after what has been told already.
        let after = seen.index.max(self.feed.last().unwrap_or(0));
        let key = super::layout::node(plan.path());
        if plan.removes_directory() {
            self.loose.expect(&id);
        }
        let sent = client.txn(&key, Repeat::Unsafe, || plan.txn(&id, &fence, lease, look.reads()));
        let (sent, renewed) = match goes_on {
            true => join!(sent, client.lease_renew(lease)),
            false => (sent.await, Ok(())),
        };
        let revision = match sent {
            Ok(answer) if answer.succeeded() => {
                revision_of(answer.header()).map_err(|error| refused(&error))?.unsigned_abs()
            }
            Ok(answer) => {
                self.loose.forget(&id);
                return Ok(Sent::Lost(look.read(&answer)?));
            }
            // It has ended between its grant and now.
            Err(error) if error.kind() == ErrorKind::LeaseNotFound => {
                leases.is_used(lease);
                leases.ended = Some(lease);
                return self.look(client, look).await.map(Sent::Lost);
            }
            Err(error) if error.may_have_applied() => {
                let own = self.client.retrying_for(left(until));
                let settled = self.fence.settle(&own, &fence, &id, after);
                match timeout(left(until), settled).await {
                    Ok(Ok(Some(revision))) => revision,
                    Ok(Ok(None)) => {
                        self.loose.forget(&id);
                        return self.look(client, look).await.map(|now| Sent::Unanswered(now, error));
                    }
                    Ok(Err(_)) | Err(_) => {
                        leases.is_used(lease);
                        return Err(refused(&error));
                    }
                }
            }
            Err(error) => return Err(refused(&error)),
        };
        // Whoever gets an answer counts on the whole of the time.
        if renewed.is_err()
            && let Err(error) = client.lease_renew(lease).await
        {
            leases.is_used(lease);
            if error.kind() == ErrorKind::LeaseNotFound {
                // It ended just after, and took with it what was written.
                leases.ended = Some(lease);
                return self.look(client, look).await.map(Sent::Lost);
            }
            return Err(refused(&error));
        }
        Ok(Sent::Done(revision, lease))
    }

    /// The lease for a write, 0 for none. One for the same time goes on, which costs etcd no write: then it is still to
    /// be renewed, beside the write.
    async fn lease(
        &self,
        client: &Client,
        plan: &Plan,
        leases: &mut Leases,
        until: Instant,
    ) -> Result<(i64, bool), EtcdError> {
        let Some(ttl) = plan.ttl else { return Ok((0, false)) };
        if let Some(granted) = leases.granted.filter(|granted| granted.ttl == ttl) {
            // It was granted for a write that was not carried out, and its time runs.
            return Ok((granted.id, true));
        }
        let goes_on = plan.unconditional && plan.is_file() && ttl >= SHORTEST;
        let old = plan.old.filter(|old| goes_on && old.ttl == ttl && leases.ended != Some(old.id));
        if let Some(old) = old {
            // One that is about to end may end between the write and its renewal, and take with it what was written.
            if !old.nears_its_end {
                return Ok((old.id, true));
            }
            if client.lease_renew(old.id).await.is_ok() {
                return Ok((old.id, false));
            }
        }
        if let Some(Granted { id, .. }) = leases.granted.take() {
            self.revoke(client, id);
        }
        let client = client.retrying_for(left(until));
        let (id, _) = client.lease_grant(Duration::from_secs(ttl.max(1))).await?;
        leases.granted = Some(Granted { id, ttl });
        Ok((id, false))
    }

    /// What is left to do after a write.
    fn tidy_up(&self, client: &Client, plan: &Plan, revision: u64, lease: i64) {
        if let Some(old) = plan.old.filter(|old| old.id != lease) {
            self.revoke(client, old.id);
        }
        if let Some(ttl) = plan.ttl.filter(|ttl| *ttl < SHORTEST)
            && let Some(me) = self.me.upgrade()
        {
            me.end_soon(plan.path().clone(), revision, ttl);
        }
    }

    /// Ends a lease that nothing hangs on. If that fails, it ends by itself.
    fn revoke(&self, client: &Client, lease: i64) {
        let client = client.clone();
        tokio::spawn(async move { client.lease_revoke(lease).await });
    }
}

/// The time that a request to etcd may take, of one that is to end then.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(TO_SETTLE)
}

fn answered(event: Arc<Event>, index: u64, raft_term: u64) -> Answered {
    Answered { answer: Answer::Event(event), index, raft_index: index, raft_term }
}
