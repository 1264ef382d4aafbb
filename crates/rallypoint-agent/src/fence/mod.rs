//! A node that is cut off from etcd stops its workers when its round is over, so that no two nodes work with one rank.
//!
//! While etcd is silent for this node, it asks other members of the round, which it can reach directly, whether the round
//! still stands. Each agent answers such questions on a port of its own ([`Witness`]), which it writes to the round's
//! store; the others read it while etcd is there. What follows from the answers is in `judge`.

mod judge;
mod wire;
mod witness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::{Contact, Rendezvous, RendezvousHandler};
use rallypoint_store::{Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use uuid::Uuid;

use self::judge::{Answer, Judge, Member};
pub(crate) use self::judge::{CutOff, Limits};
use self::wire::{ANSWER, Question, Whereabouts, read_answer};
use self::witness::Seat;
pub(crate) use self::witness::Witness;

/// Where a member writes how it is asked; its rank follows.
const KEY: &str = "rallypoint/fence/";
/// In a round of up to so many others, all are asked.
const ALL: usize = 16;
/// For a question and its answer.
const ASKING: Duration = Duration::from_secs(1);
/// How long a member may take to write how it is asked; then it is one that cannot be.
const TO_WRITE: Duration = Duration::from_secs(30);
/// How long workers wait for that.
const TO_BE_READY: Duration = Duration::from_millis(500);
/// Between tries to read what is not there.
const AGAIN: Duration = Duration::from_secs(1);
/// Who asks does so this often at least, so whoever has said something for this long has been heard.
const HEARD_BY_ALL: Duration = Duration::from_secs(3);

/// A lease is refreshed several times within its time: if it was not for this part of it, something is wrong.
fn silent_at(contact: &Contact) -> Instant {
    contact.at + contact.lease.mul_f64(0.6)
}

fn is_silent(contact: &Contact) -> bool {
    silent_at(contact) <= Instant::now()
}

/// The time from one question to the next.
fn pace(lease: Duration) -> Duration {
    (lease / 5).clamp(Duration::from_millis(200), Duration::from_secs(1))
}

/// Who is asked by whom: all, or those at a distance of 1, 2, 4, 8, ... so that nobody asks or is asked by more than a few,
/// and whatever one of them knows reaches all in as many steps.
fn asked_by(rank: usize, nodes: usize) -> Vec<usize> {
    if nodes <= ALL + 1 {
        return (0..nodes).filter(|other| *other != rank).collect();
    }
    std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < nodes)
        .map(|distance| (rank + distance) % nodes)
        .collect()
}

/// The watch over one round.
#[derive(Debug)]
pub(crate) struct Fence {
    seat: Option<Seat>,
    peers: watch::Receiver<Vec<Peer>>,
    cut_off: watch::Receiver<Option<CutOff>>,
    /// Those that find out; they end with this.
    _tasks: JoinSet<()>,
}

impl Fence {
    /// A round in which there is nothing to ask.
    pub(crate) fn none() -> Self {
        let (peers, cut_off) = (watch::channel(Vec::new()).1, watch::channel(None).1);
        Fence { seat: None, peers, cut_off, _tasks: JoinSet::new() }
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
        let key = format!("{KEY}{}", met.rank);
        let store = met.store.clone_store();
        store.set_timeout(TO_WRITE);
        // Thousands of nodes that begin together need not do this together.
        let turn = Duration::from_millis(fastrand::u64(..=met.world_size as u64));
        let mut tasks = JoinSet::new();
        tasks.spawn({
            let ranks = ranks.clone();
            async move {
                tokio::time::sleep(turn).await;
                while let Err(error) = store.set(key.as_bytes(), &whereabouts.write()).await {
                    debug!(%error, "the other nodes cannot be told how this one is asked");
                    tokio::time::sleep(AGAIN).await;
                }
                find(&*store, &ranks, &found).await;
            }
        });
        tasks.spawn({
            let peers = peers.clone();
            async move {
                let why = watch_over(&*handler, &ranks, &peers, limits).await;
                sender.send_replace(Some(why));
            }
        });
        Fence { seat: Some(seat), peers, cut_off, _tasks: tasks }
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

    /// The round is over for this node, and whoever asks is told so.
    pub(crate) fn over(&mut self) {
        self.seat = None;
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

/// A member that may be asked.
#[derive(Debug, Clone)]
enum Peer {
    Unread,
    Mute,
    At(Arc<Reach>),
}

impl Peer {
    fn member(&self) -> Member {
        match self {
            Peer::Unread => Member::Unread,
            Peer::Mute => Member::Mute,
            Peer::At(_) => Member::Known,
        }
    }
}

/// How it is asked.
#[derive(Debug)]
struct Reach {
    addresses: Vec<SocketAddr>,
    question: Question,
    proof: Uuid,
}

impl Reach {
    /// Names are looked up now: who is cut off may have nobody to ask for them.
    async fn read(text: &[u8]) -> Peer {
        let Some(told) = Whereabouts::read(text) else { return Peer::Mute };
        let (Some(question), Some(proof)) = (told.question(), told.proof()) else { return Peer::Mute };
        match tokio::net::lookup_host((told.address.as_str(), told.port)).await {
            Ok(addresses) => Peer::At(Arc::new(Reach { addresses: addresses.collect(), question, proof })),
            Err(error) => {
                debug!(%error, address = told.address, "no address of another node");
                Peer::Unread
            }
        }
    }

    async fn ask(&self) -> Option<Answer> {
        let asking = async {
            let mut stream = TcpStream::connect(&self.addresses[..]).await?;
            stream.write_all(&self.question.write()).await?;
            let mut answer = [0; ANSWER];
            stream.read_exact(&mut answer).await?;
            std::io::Result::Ok(read_answer(&answer, self.proof))
        };
        tokio::time::timeout(ASKING, asking).await.ok()?.ok()?
    }
}

/// Reads how the members of these ranks are asked, until all have said so.
async fn find(store: &dyn Store, ranks: &[usize], found: &watch::Sender<Vec<Peer>>) {
    loop {
        let open = |(at, peer): (usize, &Peer)| (!matches!(peer, Peer::At(_))).then_some(at);
        let open: Vec<usize> = found.borrow().iter().enumerate().filter_map(open).collect();
        if open.is_empty() {
            return;
        }
        let keys: Vec<String> = open.iter().map(|at| format!("{KEY}{}", ranks[*at])).collect();
        let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        // All at once where all are there; one by one where some are not.
        let texts = match store.multi_get(&keys).await {
            Ok(texts) => texts.into_iter().map(|text| Ok(Some(text))).collect(),
            Err(StoreError::Timeout { .. }) => read_each(store, &keys).await,
            Err(error) => vec![Err(error)],
        };
        for (at, text) in open.iter().zip(texts) {
            let peer = match text {
                Ok(Some(text)) => Reach::read(&text).await,
                Ok(None) => Peer::Mute,
                Err(error) => {
                    debug!(%error, "how another node is asked cannot be read");
                    continue;
                }
            };
            found.send_modify(|peers| peers[*at] = peer);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn read_each(store: &dyn Store, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, StoreError>> {
    let mut texts = Vec::new();
    for key in keys {
        texts.push(match store.check(&[key]).await {
            Ok(true) => store.get(key).await.map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        });
    }
    texts
}

/// Waits until the round is over, as far as this node can know while etcd does not answer it.
async fn watch_over(
    handler: &dyn RendezvousHandler,
    ranks: &[usize],
    peers: &watch::Receiver<Vec<Peer>>,
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
        if !is_silent(&contact) {
            if std::mem::take(&mut asking) {
                info!("etcd answers this node again");
            }
            tokio::time::sleep_until(silent_at(&contact)).await;
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
            if answer == Answer::Over {
                break;
            }
        }
        if let Some(contact) = handler.contact() {
            judge.contact(contact.at.saturating_duration_since(began));
        }
        if let Some(why) = judge.verdict(began.elapsed(), ranks, &members) {
            return why;
        }
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn in_a_small_round_all_are_asked_and_in_a_large_one_a_few() {
        assert_eq!(asked_by(1, 3), [0, 2]);
        assert!(asked_by(0, 1).is_empty());
        assert_eq!(asked_by(5, 17).len(), 16);
        assert_eq!(asked_by(17, 18), [0, 1, 3, 7, 15]);
        assert_eq!(asked_by(9_999, 10_000).len(), 14);
    }

    #[test]
    fn the_word_reaches_all_in_as_many_steps_as_are_asked() {
        for nodes in [2, 17, 18, 100, 1023, 1024, 1025] {
            let mut know = BTreeSet::from([nodes / 3]);
            let steps = asked_by(0, nodes).len();
            for _ in 0..steps {
                let heard =
                    (0..nodes).filter(|rank| asked_by(*rank, nodes).iter().any(|at| know.contains(at)));
                know.extend(heard.collect::<Vec<_>>());
            }
            assert_eq!(know.len(), nodes);
        }
    }
}
