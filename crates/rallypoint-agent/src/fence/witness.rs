//! Answers the other agents' questions about the round that this node is in.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_rendezvous::RendezvousHandler;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::debug;
use uuid::Uuid;

use super::judge::Answer;
use super::pace::ASKING;
use super::wire::{MOST_NEWS, News, QUESTION, Question, Request, Whereabouts, write_answer};
use crate::notice::Notice;

/// Questions that are answered at a time; who comes on top is turned away, and asks again.
const MOST: usize = 64;
/// Between tries to accept, where the system has no more sockets.
const AGAIN: Duration = Duration::from_millis(100);
/// Who asks does so this often at least, so whoever has said something for this long has been heard.
const HEARD_BY_ALL: Duration = Duration::from_secs(3);

/// The agent's side of others' questions, from its first round to its end.
#[derive(Debug)]
pub(crate) struct Witness {
    address: String,
    port: u16,
    key: Uuid,
    proof: Uuid,
    standing: watch::Sender<Standing>,
    handler: Arc<dyn RendezvousHandler>,
    task: JoinHandle<()>,
}

/// Where this node stands.
#[derive(Debug, Clone, PartialEq)]
struct Standing {
    /// Its place in its last round.
    seat: Option<Uuid>,
    state: State,
    /// What it knows of that round's end.
    news: Option<News>,
    /// Who has said directly that it has finished, by rank.
    finished: BTreeSet<usize>,
    /// The nodes that have answered this one directly: they lived after that.
    answered: BTreeSet<usize>,
}

impl Standing {
    fn new(seat: Option<Uuid>, state: State) -> Self {
        Standing { seat, state, news: None, finished: BTreeSet::new(), answered: BTreeSet::new() }
    }

    /// The run is closed because of what came first, where something is known to have.
    fn close(&mut self) {
        if let Some(news) = &mut self.news {
            news.closes = true;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    In,
    /// The round is over for it; whether that is known from etcd.
    Out {
        known: bool,
    },
    /// It has ended well.
    Done,
}

impl Witness {
    /// Listens at this node's address; none where the backend does not know it.
    pub(crate) async fn open(handler: Arc<dyn RendezvousHandler>) -> io::Result<Option<Self>> {
        let Some(address) = handler.address().map(str::to_owned) else { return Ok(None) };
        // An address that is not this machine's own is what others know it by.
        let listener = match TcpListener::bind((address.as_str(), 0)).await {
            Ok(listener) => listener,
            Err(_) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await {
                Ok(listener) => listener,
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
            },
        };
        let port = listener.local_addr()?.port();
        let (key, proof) = (Uuid::new_v4(), Uuid::new_v4());
        let standing = watch::Sender::new(Standing::new(None, State::Out { known: true }));
        let desk = Desk { key, proof, standing: standing.clone(), handler: Arc::clone(&handler) };
        let task = tokio::spawn(answer_all(listener, desk));
        Ok(Some(Witness { address, port, key, proof, standing, handler, task }))
    }

    /// This node is in a round, for as long as the seat is held.
    pub(super) fn sit(&self) -> (Seat, Whereabouts) {
        let seat = Uuid::new_v4();
        self.standing.send_replace(Standing::new(Some(seat), State::In));
        let question = Question { key: self.key, seat };
        let whereabouts = Whereabouts::new(&self.address, self.port, question, self.proof);
        (Seat { known: true, notes: Notes { seat, standing: self.standing.clone() } }, whereabouts)
    }

    /// The run is closed because of what came first in the last round. While etcd is silent, only this node can tell the
    /// others: it is there for them for a while.
    pub(crate) async fn close(&self) {
        self.standing.send_modify(Standing::close);
        let silent = self.handler.contact().is_some_and(|contact| contact.is_silent());
        // Who has heard it from another tells it on.
        if silent && self.standing.borrow().news.as_ref().is_some_and(|news| news.closes) {
            tokio::time::sleep(HEARD_BY_ALL).await;
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A node's place in a round. When it is dropped, the round is over for the node.
#[derive(Debug)]
pub(super) struct Seat {
    /// How others are told that it is over.
    known: bool,
    notes: Notes,
}

impl Seat {
    /// What is known of the round's end.
    pub(super) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    /// The round is over for the node, because somebody whom etcd answers has said so, or not.
    pub(super) fn give_up(mut self, known: bool) {
        self.known = known;
    }

    /// The node has ended well, whatever becomes of the others. They are told before it is gone: they would take its
    /// silence for a reason to stop.
    pub(super) async fn done(&self) {
        self.notes.change(|standing| standing.state = State::Done);
        tokio::time::sleep(HEARD_BY_ALL).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let out = State::Out { known: self.known };
        self.notes.change(|standing| {
            if standing.state == State::In {
                standing.state = out;
            }
        });
    }
}

/// What a node knows of the end of one round, its own or from others, and tells who asks.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    seat: Uuid,
    standing: watch::Sender<Standing>,
}

impl Notes {
    /// Takes note of what somebody knows. What came first stays, and who lived after something lived after what came before
    /// that, too.
    pub(super) fn learn(&self, mut news: News) {
        self.change(|standing| {
            standing.answered.extend(news.answered.take());
            standing.news = Some(match standing.news.take() {
                Some(known) => known.and(news),
                None => news,
            });
        });
    }

    /// The run is closed because of what came first, where something is known to have. Others may not be able to hear it from
    /// etcd.
    pub(super) fn close(&self) {
        self.change(Standing::close);
    }

    /// All that is known.
    pub(super) fn all(&self) -> Option<News> {
        let standing = self.standing.borrow();
        standing.news.clone().filter(|_| standing.seat == Some(self.seat))
    }

    /// The node with this rank has finished its part of the round.
    pub(super) fn finish(&self, rank: usize) {
        self.change(|standing| {
            standing.finished.insert(rank);
        });
    }

    pub(super) fn has_finished(&self, rank: usize) -> bool {
        let standing = self.standing.borrow();
        standing.seat == Some(self.seat) && standing.finished.contains(&rank)
    }

    pub(super) fn has_any(&self) -> bool {
        self.news(|_| true).is_some()
    }

    /// Waits until something other than this is known to have come first.
    pub(super) async fn other_than(&self, known: Option<&Notice>) -> Notice {
        self.wait(|news| known != Some(&news.notice)).await
    }

    /// Waits until a node other than these has answered directly.
    pub(super) async fn answered_by_other_than(&self, known: &BTreeSet<usize>) -> usize {
        let other = |standing: &Standing| {
            let mut others = standing.answered.iter().filter(|node| !known.contains(node));
            others.next().copied().filter(|_| standing.seat == Some(self.seat))
        };
        self.first_that(other).await
    }

    /// Waits until the nodes that have answered directly are enough.
    pub(super) async fn answered(&self, enough: impl Fn(&BTreeSet<usize>) -> bool) {
        let is_so = |standing: &Standing| {
            (standing.seat == Some(self.seat) && enough(&standing.answered)).then_some(())
        };
        self.first_that(is_so).await;
    }

    /// What came first, if this node has answered it, or something after it, directly.
    pub(super) fn answered_by(&self, node: usize) -> Option<Notice> {
        let standing = self.standing.borrow();
        let has_answered = standing.seat == Some(self.seat) && standing.answered.contains(&node);
        standing.news.as_ref().filter(|_| has_answered).map(|news| news.notice.clone())
    }

    /// Waits until the run is known to be closed; because of what.
    pub(super) async fn closed(&self) -> Notice {
        self.wait(|news| news.closes).await
    }

    async fn wait(&self, wanted: impl Fn(&News) -> bool) -> Notice {
        self.first_that(|standing| self.news_of(standing, &wanted)).await
    }

    /// Waits until there is something.
    async fn first_that<T>(&self, look: impl Fn(&Standing) -> Option<T>) -> T {
        let mut changes = self.standing.subscribe();
        loop {
            // Nobody may hold on to it beyond this line.
            let found = look(&self.standing.borrow());
            if let Some(found) = found {
                return found;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn news(&self, wanted: impl Fn(&News) -> bool) -> Option<Notice> {
        self.news_of(&self.standing.borrow(), wanted)
    }

    fn news_of(&self, standing: &Standing, wanted: impl Fn(&News) -> bool) -> Option<Notice> {
        let news = standing.news.as_ref().filter(|_| standing.seat == Some(self.seat));
        news.filter(|news| wanted(news)).map(|news| news.notice.clone())
    }

    /// Only while the node is in no later round.
    fn change(&self, change: impl FnOnce(&mut Standing)) {
        self.standing.send_if_modified(|standing| {
            let ours = standing.seat == Some(self.seat);
            if ours {
                change(standing);
            }
            ours
        });
    }
}

/// What it takes to answer.
#[derive(Debug)]
struct Desk {
    key: Uuid,
    proof: Uuid,
    standing: watch::Sender<Standing>,
    handler: Arc<dyn RendezvousHandler>,
}

impl Desk {
    fn answer(&self, seat: Uuid) -> (Answer, Option<News>) {
        let standing = self.standing.borrow();
        if standing.seat != Some(seat) {
            // A round before the last one: there is no later round without an etcd.
            return (Answer::Over { known: true }, None);
        }
        match standing.state {
            State::In => match self.handler.contact() {
                Some(contact) if !contact.is_silent() => {
                    let age = Instant::now().saturating_duration_since(contact.at);
                    (Answer::Stands { age }, None)
                }
                _ => (Answer::Away, None),
            },
            State::Done => (Answer::Done, None),
            State::Out { known } => (Answer::Over { known }, standing.news.clone()),
        }
    }

    async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut bytes = [0; QUESTION];
        stream.read_exact(&mut bytes).await?;
        match Request::read(&bytes) {
            Some(Request::Ask(question)) if question.key == self.key => {
                let (answer, news) = self.answer(question.seat);
                let mut said = write_answer(self.proof, answer).to_vec();
                said.extend(news.iter().flat_map(News::write));
                stream.write_all(&said).await?;
                stream.shutdown().await
            }
            Some(Request::Tell(question)) if question.key == self.key => {
                let mut text = Vec::new();
                (&mut stream).take(MOST_NEWS).read_to_end(&mut text).await?;
                if let Some(news) = News::read(&text) {
                    // Of a round that is over for this node it is nothing new.
                    Notes { seat: question.seat, standing: self.standing.clone() }.learn(news);
                }
                Ok(())
            }
            Some(Request::Finish(question)) if question.key == self.key => {
                let rank = stream.read_u32().await?;
                Notes { seat: question.seat, standing: self.standing.clone() }
                    .finish(usize::try_from(rank).unwrap_or(usize::MAX));
                Ok(())
            }
            // A stranger is told nothing, and tells nothing.
            _ => Ok(()),
        }
    }
}

async fn answer_all(listener: TcpListener, desk: Desk) {
    let (desk, turns) = (Arc::new(desk), Arc::new(Semaphore::new(MOST)));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Ok(turn) = Arc::clone(&turns).try_acquire_owned() else { continue };
                let desk = Arc::clone(&desk);
                tokio::spawn(async move {
                    let served = tokio::time::timeout(ASKING, desk.serve(stream)).await;
                    debug!(%from, ?served, "a node asked about the round");
                    drop(turn);
                });
            }
            Err(error) => {
                debug!(%error, "questions of other nodes cannot be taken");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::SystemTime;

    use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
    use rallypoint_testkit::{Etcd, Version};

    use super::super::peers::{Peer, Reach};
    use super::super::wire::{ANSWER, read_answer};
    use super::*;
    use crate::notice::Leaving;

    async fn hears(whereabouts: &Whereabouts) -> Option<(Answer, Option<News>)> {
        match Reach::read(&whereabouts.write()).await {
            Peer::At(reach) => reach.ask().await,
            other => panic!("{other:?}"),
        }
    }

    async fn asks(whereabouts: &Whereabouts) -> Option<Answer> {
        hears(whereabouts).await.map(|(answer, _)| answer)
    }

    /// One that reads no news.
    async fn asks_in_older_words(whereabouts: &Whereabouts) -> Option<Answer> {
        let mut stream = TcpStream::connect((whereabouts.address.as_str(), whereabouts.port)).await.unwrap();
        stream.write_all(&whereabouts.question().unwrap().write()).await.unwrap();
        let mut answer = [0; ANSWER];
        stream.read_exact(&mut answer).await.unwrap();
        read_answer(&answer, whereabouts.proof().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_may_ask_hears_how_the_node_stands_and_a_stranger_hears_nothing() {
        let mut etcd = Etcd::start(Version::V35);
        let mut settings = NativeSettings::new(&etcd.endpoint(), "job", 1, 1).unwrap();
        settings.lease = Duration::from_secs(2);
        let handler = Arc::new(NativeHandler::connect(settings).await.unwrap());
        let _met = handler.next_rendezvous().await.unwrap();
        let witness = Witness::open(handler).await.unwrap().unwrap();

        let (first, whereabouts) = witness.sit();
        assert!(matches!(asks(&whereabouts).await, Some(Answer::Stands { .. })));
        first.give_up(false);
        assert_eq!(asks(&whereabouts).await, Some(Answer::Over { known: false }));
        let (second, later) = witness.sit();
        assert_eq!(
            asks(&whereabouts).await,
            Some(Answer::Over { known: true }),
            "a round that is over stays over"
        );

        let news = |at, closes| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            News { notice: Notice { at, ..Notice::leaves(0, "a", Leaving::Asked) }, closes, answered: None }
        };
        let notes = second.notes();
        notes.learn(news(3, false));
        notes.learn(news(2, false));
        notes.learn(news(4, false));
        assert!(matches!(hears(&later).await, Some((Answer::Stands { .. }, None))), "it is in the round");
        second.give_up(false);
        let over = Answer::Over { known: false };
        assert_eq!(hears(&later).await, Some((over, Some(news(2, false)))), "what came first");
        witness.close().await;
        notes.learn(news(1, false));
        assert_eq!(hears(&later).await, Some((over, Some(news(2, true)))), "that is why it was closed");
        assert_eq!(notes.closed().await, news(2, true).notice);
        assert_eq!(asks_in_older_words(&later).await, Some(over));
        assert_eq!(
            asks(&whereabouts).await,
            Some(Answer::Over { known: true }),
            "of the last round alone it is not known"
        );
        let (third, later) = witness.sit();
        notes.learn(news(0, true));
        assert!(!third.notes().has_any(), "that was another round");

        let notes = third.notes();
        notes.learn(news(3, false));
        let Peer::At(reach) = Reach::read(&later.write()).await else { panic!("it is somewhere") };
        reach.tell(&News { answered: Some(2), ..news(4, false) }).await;
        let known = BTreeSet::from([1]);
        assert_eq!(notes.answered_by_other_than(&known).await, 2);
        assert_eq!(notes.answered_by(2), Some(news(3, false).notice), "it lived after what came before that");
        assert_eq!(notes.answered_by(1), None);

        let stranger = Question { key: Uuid::new_v4(), seat: later.question().unwrap().seat };
        let stranger = Whereabouts::new(&later.address, later.port, stranger, later.proof().unwrap());
        assert_eq!(asks(&stranger).await, None);
        let mut rude = TcpStream::connect((later.address.as_str(), later.port)).await.unwrap();
        rude.write_all(&[b'x'; 2 * QUESTION]).await.unwrap();
        let mut said = Vec::new();
        // Whatever was not read makes it a reset.
        let _ = rude.read_to_end(&mut said).await;
        assert!(said.is_empty());

        etcd.kill();
        while asks(&later).await != Some(Answer::Away) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        third.done().await;
        drop(third);
        assert_eq!(asks(&later).await, Some(Answer::Done), "what has ended well stays so");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn those_who_only_connect_keep_nobody_out_for_long() {
        let etcd = Etcd::start(Version::V35);
        let settings = NativeSettings::new(&etcd.endpoint(), "job", 1, 1).unwrap();
        let handler = Arc::new(NativeHandler::connect(settings).await.unwrap());
        let witness = Witness::open(handler).await.unwrap().unwrap();
        let (_seat, whereabouts) = witness.sit();
        let mut silent = Vec::new();
        for _ in 0..2 * MOST {
            silent.push(TcpStream::connect((whereabouts.address.as_str(), whereabouts.port)).await.unwrap());
        }
        while asks(&whereabouts).await.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
