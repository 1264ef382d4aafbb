//! A node that is cut off from etcd stops its workers when its round is over, so that no two nodes work with one rank.
//!
//! While etcd is silent for this node, it asks other members of the round, which it can reach directly, whether the round
//! still stands. Each agent answers such questions on a port of its own ([`Witness`]), which it writes to the round's
//! store; the others read it while etcd is there. What follows from the answers is in `judge`.

mod judge;
mod pace;
mod peers;
mod wire;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{Rendezvous, RendezvousHandler};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub(crate) use self::judge::{CutOff, Limits};
use self::judge::{Judge, Member};
use self::pace::pace;
use self::peers::{ALL, Peer, TO_WRITE, asked_by, find, tell};
use self::witness::Seat;
pub(crate) use self::witness::Witness;

/// How long workers wait until this node knows how to ask.
const TO_BE_READY: Duration = Duration::from_millis(500);
/// Between looks at a lease that is not there yet.
const AGAIN: Duration = Duration::from_secs(1);
/// Who asks does so this often at least, so whoever has said something for this long has been heard.
const HEARD_BY_ALL: Duration = Duration::from_secs(3);

/// The watch over one round.
#[derive(Debug)]
pub(crate) struct Fence {
    seat: Option<Seat>,
    peers: watch::Receiver<Vec<Peer>>,
    cut_off: watch::Receiver<Option<CutOff>>,
    /// This node's own workers have ended.
    ended: watch::Sender<bool>,
    /// Those that find out; they end with this.
    _tasks: JoinSet<()>,
}

impl Fence {
    /// A round in which there is nothing to ask.
    pub(crate) fn none() -> Self {
        let (peers, cut_off) = (watch::channel(Vec::new()).1, watch::channel(None).1);
        Fence { seat: None, peers, cut_off, ended: watch::Sender::new(false), _tasks: JoinSet::new() }
    }

    /// Watches over the round that this node is in now.
    pub(crate) fn start(
        witness: &Witness,
        handler: Arc<dyn RendezvousHandler>,
        met: &Rendezvous,
        limits: Limits,
    ) -> Self {
        let (seat, whereabouts) = witness.sit();
        let ranks = asked_by(met.rank, met.world_size);
        let (found, peers) = watch::channel(vec![Peer::Unread; ranks.len()]);
        let (sender, cut_off) = watch::channel(None);
        let (rank, ended) = (met.rank, watch::Sender::new(false));
        let store = met.store.clone_store();
        store.set_timeout(TO_WRITE);
        // Thousands of nodes that begin together need not do this together.
        let turn = Duration::from_millis(fastrand::u64(..=met.world_size as u64));
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let ranks = ranks.clone();
            async move {
                tokio::time::sleep(turn).await;
                tell(&*store, rank, &whereabouts).await;
                find(&*store, &ranks, &found).await;
            }
        });
        tasks.spawn({
            let (peers, ended) = (peers.clone(), ended.subscribe());
            async move {
                let why = watch_over(&*handler, &ranks, &peers, &ended, limits).await;
                sender.send_replace(Some(why));
            }
        });
        Fence { seat: Some(seat), peers, cut_off, ended, _tasks: tasks }
    }

    /// Waits until this node knows how to ask the others, so that an etcd that is lost right after finds it prepared. Not
    /// for long: the work matters more. In a large round it takes its time beside the work.
    pub(crate) async fn ready(&mut self, nodes: usize) {
        let small = nodes <= ALL + 1;
        let known = self.peers.wait_for(|peers| peers.iter().all(|peer| !matches!(peer, Peer::Unread)));
        if small && tokio::time::timeout(TO_BE_READY, known).await.is_err() {
            debug!("not all nodes have said yet how they are asked");
        }
    }

    /// Waits until the workers are to be stopped.
    pub(crate) async fn cut_off(&mut self) -> CutOff {
        match self.cut_off.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(why)) => *why,
            _ => std::future::pending().await,
        }
    }

    /// The round is over for this node, and whoever asks is told so. `known`: it heard that from somebody whom etcd answers.
    pub(crate) fn over(&mut self, known: bool) {
        self.ended.send_replace(true);
        if let Some(seat) = self.seat.take() {
            seat.give_up(known);
        }
    }

    /// This node has ended well, and nobody could be told through etcd. Those who still work are told before it is gone:
    /// they would take its silence for a reason to stop.
    pub(crate) async fn done(&self) {
        if let Some(seat) = &self.seat {
            seat.done();
            tokio::time::sleep(HEARD_BY_ALL).await;
        }
    }
}

/// Waits until the round is over, as far as this node can know while etcd does not answer it.
async fn watch_over(
    handler: &dyn RendezvousHandler,
    ranks: &[usize],
    peers: &watch::Receiver<Vec<Peer>>,
    ended: &watch::Receiver<bool>,
    limits: Limits,
) -> CutOff {
    let began = Instant::now();
    let mut judge = Judge::new(ranks.len(), limits);
    let mut asking = false;
    loop {
        let Some(contact) = handler.contact() else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        judge.contact(contact.at.saturating_duration_since(began));
        if !contact.is_silent() {
            if std::mem::take(&mut asking) {
                info!("etcd answers this node again");
            }
            tokio::time::sleep_until(contact.silent_at()).await;
            continue;
        }
        if !std::mem::replace(&mut asking, true) {
            let seconds = contact.at.elapsed().as_secs();
            warn!(
                "etcd has not answered for {seconds} s; asking other nodes whether this round still stands"
            );
        }
        let next = Instant::now() + pace(contact.lease);
        let peers = peers.borrow().clone();
        let members: Vec<Member> = peers.iter().map(Peer::member).collect();
        let mut questions = JoinSet::new();
        for (at, peer) in peers.into_iter().enumerate().filter(|(at, _)| judge.is_open(*at)) {
            if let Peer::At(reach) = peer {
                questions.spawn(async move { (at, reach.ask().await) });
            }
        }
        while let Some(asked) = questions.join_next().await {
            let Ok((at, Some(answer))) = asked else { continue };
            debug!(rank = ranks[at], ?answer, "a node has answered");
            judge.answered(at, began.elapsed(), answer);
            if judge.verdict(began.elapsed(), ranks, &members, *ended.borrow()).is_some_and(CutOff::is_over) {
                break;
            }
        }
        if let Some(contact) = handler.contact() {
            judge.contact(contact.at.saturating_duration_since(began));
        }
        if let Some(why) = judge.verdict(began.elapsed(), ranks, &members, *ended.borrow()) {
            return why;
        }
        tokio::time::sleep_until(next).await;
    }
}
