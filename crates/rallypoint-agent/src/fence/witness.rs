//! Answers the other agents' questions about the round that this node is in.

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
use super::wire::{QUESTION, Question, Whereabouts, write_answer};

/// Questions that are answered at a time; who comes on top is turned away, and asks again.
const MOST: usize = 64;
/// Between tries to accept, where the system has no more sockets.
const AGAIN: Duration = Duration::from_millis(100);

/// The agent's side of others' questions, from its first round to its end.
#[derive(Debug)]
pub(crate) struct Witness {
    address: String,
    port: u16,
    key: Uuid,
    proof: Uuid,
    standing: watch::Sender<Standing>,
    task: JoinHandle<()>,
}

/// Where this node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// In no round: its last one is over for it; whether that is known from etcd.
    Out {
        seat: Option<Uuid>,
        known: bool,
    },
    In(Uuid),
    /// It has ended well.
    Done(Uuid),
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
        let (standing, stands) = watch::channel(Standing::Out { seat: None, known: true });
        let task = tokio::spawn(answer_all(listener, Desk { key, proof, stands, handler }));
        Ok(Some(Witness { address, port, key, proof, standing, task }))
    }

    /// This node is in a round, for as long as the seat is held.
    pub(super) fn sit(&self) -> (Seat, Whereabouts) {
        let seat = Uuid::new_v4();
        self.standing.send_replace(Standing::In(seat));
        let question = Question { key: self.key, seat };
        let whereabouts = Whereabouts::new(&self.address, self.port, question, self.proof);
        (Seat { id: seat, known: true, standing: self.standing.clone() }, whereabouts)
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
    id: Uuid,
    /// How others are told that it is over.
    known: bool,
    standing: watch::Sender<Standing>,
}

impl Seat {
    /// The round is over for the node, because somebody whom etcd answers has said so, or not.
    pub(super) fn give_up(mut self, known: bool) {
        self.known = known;
    }

    /// The node has ended well, whatever becomes of the others.
    pub(super) fn done(&self) {
        self.standing.send_replace(Standing::Done(self.id));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.standing.send_if_modified(|standing| {
            let ours = *standing == Standing::In(self.id);
            if ours {
                *standing = Standing::Out { seat: Some(self.id), known: self.known };
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
    stands: watch::Receiver<Standing>,
    handler: Arc<dyn RendezvousHandler>,
}

impl Desk {
    fn answer(&self, seat: Uuid) -> Answer {
        match *self.stands.borrow() {
            Standing::In(ours) if ours == seat => match self.handler.contact() {
                Some(contact) if !contact.is_silent() => {
                    Answer::Stands { age: Instant::now().saturating_duration_since(contact.at) }
                }
                _ => Answer::Away,
            },
            Standing::Done(ours) if ours == seat => Answer::Done,
            Standing::Out { seat: Some(ours), known } if ours == seat => Answer::Over { known },
            // A round before the last one: there is no later round without an etcd.
            Standing::In(_) | Standing::Done(_) | Standing::Out { .. } => Answer::Over { known: true },
        }
    }

    async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut bytes = [0; QUESTION];
        stream.read_exact(&mut bytes).await?;
        match Question::read(&bytes).filter(|question| question.key == self.key) {
            Some(question) => stream.write_all(&write_answer(self.proof, self.answer(question.seat))).await,
            // A stranger is told nothing.
            None => Ok(()),
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
    use rallypoint_rendezvous::native::{NativeHandler, NativeSettings};
    use rallypoint_testkit::{Etcd, Version};

    use super::super::peers::{Peer, Reach};
    use super::*;

    async fn asks(whereabouts: &Whereabouts) -> Option<Answer> {
        match Reach::read(&whereabouts.write()).await {
            Peer::At(reach) => reach.ask().await,
            other => panic!("{other:?}"),
        }
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

        second.give_up(false);
        assert_eq!(asks(&later).await, Some(Answer::Over { known: false }));
        assert_eq!(
            asks(&whereabouts).await,
            Some(Answer::Over { known: true }),
            "of the last round alone it is not known"
        );
        let (third, later) = witness.sit();

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
        third.done();
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
