//! A node that is cut off from etcd stops its workers when its round is over, so that no two nodes work with one rank.
//!
//! While etcd is silent for this node, it asks other members of the round, which it can reach directly, whether the round
//! still stands. Each agent answers such questions on a port of its own ([`Witness`]), which it writes to the round's
//! store; the others read it while etcd is there. What follows from the answers is in `judge`.
//!
//! Nodes tell each other of failures through etcd. While that is silent, an agent for whom the round is over also says what
//! it knows of the reason, its own or heard from others, so that all who can reach each other name the same one. An etcd that
//! answers and takes nothing, since it is full, is another matter: nobody asks then, so who knows something tells the others.
//! So does one that goes. One that is cut off alone answers directly what it has heard so, and whoever hears that passes it on
//! to etcd: it lived then, and its death, of which etcd will tell, came after.

mod judge;
mod pace;
mod peers;
mod wire;
mod witness;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rallypoint_rendezvous::{Contact, Rendezvous, RendezvousHandler};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub(crate) use self::judge::{CutOff, Limits};
use self::judge::{Judge, Member};
use self::pace::pace;
use self::peers::{ALL, Peer, Reach, TO_WRITE, asked_by, find, tell};
use self::wire::News;
pub(crate) use self::witness::Witness;
use self::witness::{Notes, Seat};
use crate::notice::Notice;

/// How long workers wait until this node knows how to ask.
const TO_BE_READY: Duration = Duration::from_millis(500);
/// Between looks at a lease that is not there yet.
const AGAIN: Duration = Duration::from_secs(1);

/// The watch over one round.
#[derive(Debug)]
pub(crate) struct Fence {
    seat: Option<Seat>,
    notes: Option<Notes>,
    peers: watch::Receiver<Vec<Peer>>,
    cut_off: watch::Receiver<Option<CutOff>>,
    /// This node's own workers have ended.
    ended: watch::Sender<bool>,
    /// When another node first took this one's own answer directly.
    answered: OnceLock<Instant>,
    /// Those that find out; they end with this.
    _tasks: JoinSet<()>,
}

impl Fence {
    /// A round in which there is nothing to ask.
    pub(crate) fn none() -> Self {
        let (peers, cut_off) = (watch::channel(Vec::new()).1, watch::channel(None).1);
        let (ended, _tasks) = (watch::Sender::new(false), JoinSet::new());
        Fence { seat: None, notes: None, peers, cut_off, ended, answered: OnceLock::new(), _tasks }
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
        let notes = seat.notes();
        tasks.spawn({
            let (peers, notes, ended) = (peers.clone(), notes.clone(), ended.subscribe());
            async move { watch_over(&*handler, &ranks, &peers, &notes, &ended, &sender, limits).await }
        });
        let answered = OnceLock::new();
        Fence { seat: Some(seat), notes: Some(notes), peers, cut_off, ended, answered, _tasks: tasks }
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
    pub(crate) async fn cut_off(&self) -> CutOff {
        let mut cut_off = self.cut_off.clone();
        match cut_off.wait_for(Option::is_some).await.as_deref() {
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

    /// Whoever asks why the round is over is told this, unless something earlier is known.
    pub(crate) fn tell(&self, notice: Notice) {
        if let Some(notes) = &self.notes {
            notes.learn(News { notice, closes: false, answered: None });
        }
    }

    /// What is known to have come first.
    pub(crate) fn first(&self) -> Option<Notice> {
        self.notes.as_ref().and_then(Notes::all).map(|news| news.notice)
    }

    /// Tells the other nodes directly what is known to have come first: etcd has not taken it.
    pub(crate) async fn spread(&self) {
        if let Some(news) = self.notes.as_ref().and_then(Notes::all) {
            self.tell_directly(&news).await;
        }
    }

    /// The same, and that this node, in this place, has heard of it.
    pub(crate) async fn answer(&self, node: usize) {
        if let Some(news) = self.notes.as_ref().and_then(Notes::all) {
            self.tell_directly(&News { answered: Some(node), ..news }).await;
        }
    }

    /// Tells the other nodes directly that somebody leaves or meets again. This node, in this place, gives no other answer.
    pub(crate) async fn say(&self, node: usize, notice: &Notice) {
        self.tell_directly(&News { notice: notice.clone(), closes: false, answered: Some(node) }).await;
    }

    async fn tell_directly(&self, news: &News) {
        let told = self.to_all(|reach| {
            let news = news.clone();
            async move { reach.tell(&news).await }
        });
        if told.await && news.answered.is_some() {
            self.answered.get_or_init(Instant::now);
        }
    }

    /// Whether this node's own answer has reached another directly by then.
    pub(crate) fn has_answered_before(&self, time: Instant) -> bool {
        self.answered.get().is_some_and(|answered| *answered < time)
    }

    /// Tells the other nodes directly that this one, with this rank, has finished: etcd may not be able to.
    pub(crate) async fn say_finished(&self, rank: usize) {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        self.to_all(|reach| async move { reach.tell_finish(rank).await }).await;
    }

    /// To all at the same time, as far as it is known how they are reached. Whether any of them was.
    async fn to_all<T: Future<Output = bool> + Send + 'static>(&self, say: impl Fn(Arc<Reach>) -> T) -> bool {
        let mut saying = JoinSet::new();
        for peer in self.peers.borrow().iter() {
            if let Peer::At(reach) = peer {
                saying.spawn(say(Arc::clone(reach)));
            }
        }
        saying.join_all().await.contains(&true)
    }

    /// Whether the node with this rank has said so.
    pub(crate) fn has_finished(&self, rank: usize) -> bool {
        self.notes.as_ref().is_some_and(|notes| notes.has_finished(rank))
    }

    /// Tells them the same as [`spread`](Self::spread), and that the run is closed because of it.
    pub(crate) async fn spread_close(&self) {
        if let Some(notes) = &self.notes {
            notes.close();
        }
        self.spread().await;
    }

    /// Waits until something other than this is known, from this node or from others, to have come first.
    pub(crate) async fn told(&self, known: Option<&Notice>) -> Notice {
        match &self.notes {
            Some(notes) => notes.other_than(known).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until a node other than these has answered this one directly.
    pub(crate) async fn answered_by_other_than(&self, known: &BTreeSet<usize>) -> usize {
        match &self.notes {
            Some(notes) => notes.answered_by_other_than(known).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until this node has answered directly.
    pub(crate) async fn has_answered(&self, node: usize) {
        match &self.notes {
            Some(notes) => notes.answered(|answered| answered.contains(&node)).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until all nodes of the round but these have.
    pub(crate) async fn answered_by_all(&self, but: [usize; 2], nodes: usize) {
        match &self.notes {
            Some(notes) => {
                let all = |answered: &BTreeSet<usize>| {
                    (0..nodes).all(|node| but.contains(&node) || answered.contains(&node))
                };
                notes.answered(all).await;
            }
            None => std::future::pending().await,
        }
    }

    /// The failure that came first, if this node has answered it directly.
    pub(crate) fn answered_by(&self, node: usize) -> Option<Notice> {
        self.notes.as_ref()?.answered_by(node).filter(Notice::is_failure)
    }

    /// Waits until another node says that it has closed the run; because of what.
    pub(crate) async fn closed(&self) -> Notice {
        match &self.notes {
            Some(notes) => notes.closed().await,
            None => std::future::pending().await,
        }
    }

    /// This node has ended well, and nobody could be told through etcd.
    pub(crate) async fn done(&self) {
        if let Some(seat) = &self.seat {
            seat.done().await;
        }
    }
}

/// Says when the round is over, as far as this node can know while etcd does not answer it. It goes on asking then: others
/// may come to know the reason.
async fn watch_over(
    handler: &dyn RendezvousHandler,
    ranks: &[usize],
    peers: &watch::Receiver<Vec<Peer>>,
    notes: &Notes,
    ended: &watch::Receiver<bool>,
    cut_off: &watch::Sender<Option<CutOff>>,
    limits: Limits,
) {
    let began = Instant::now();
    let mut judge = Judge::new(ranks.len(), limits);
    let mut asking = false;
    loop {
        let Some(contact) = handler.contact() else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        // This round was met through etcd. Its silence before that is over.
        let contact = Contact { at: contact.at.max(began), ..contact };
        judge.contact(contact.at.saturating_duration_since(began));
        if !contact.is_silent() {
            if std::mem::take(&mut asking) && !*ended.borrow() {
                info!("etcd renews this node's lease again");
            }
            tokio::time::sleep_until(contact.silent_at()).await;
            continue;
        }
        if !std::mem::replace(&mut asking, true) && !*ended.borrow() {
            let seconds = contact.at.elapsed().as_secs();
            if ranks.is_empty() {
                warn!("etcd has not renewed this node's lease for {seconds} s");
            } else {
                warn!(
                    "etcd has not renewed this node's lease for {seconds} s; asking other nodes whether this round still stands"
                );
            }
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
        let (mut answers, mut closed) = (Vec::new(), Vec::new());
        while let Some(asked) = questions.join_next().await {
            let Ok((at, Some((answer, news)))) = asked else { continue };
            debug!(rank = ranks[at], ?answer, ?news, "a node has answered");
            answers.push(answer);
            if let Some(news) = news {
                notes.learn(News { closes: false, ..news.clone() });
                closed.extend(Some(news).filter(|news| news.closes));
            }
            judge.answered(at, began.elapsed(), answer);
            let failed = *ended.borrow() || notes.has_any();
            let verdict = judge.verdict(began.elapsed(), ranks, &members, failed);
            if cut_off.borrow().is_none() && verdict.is_some_and(CutOff::is_over) {
                break;
            }
        }
        if !answers.iter().any(|answer| answer.is_by_etcd()) {
            closed.into_iter().for_each(|news| notes.learn(news));
        }
        if let Some(contact) = handler.contact() {
            judge.contact(contact.at.saturating_duration_since(began));
        }
        let failed = *ended.borrow() || notes.has_any();
        if let Some(why) = judge.verdict(began.elapsed(), ranks, &members, failed) {
            cut_off.send_if_modified(|known| known.is_none() && known.replace(why).is_none());
        }
        tokio::time::sleep_until(next).await;
    }
}
