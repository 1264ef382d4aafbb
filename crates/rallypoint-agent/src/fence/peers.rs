//! The members of a round that a node may ask: who they are, how they are reached, and the asking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::{Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::debug;
use uuid::Uuid;

use super::judge::{Answer, Member};
use super::pace::ASKING;
use super::wire::{ANSWER, MOST_NEWS, News, Question, Whereabouts, read_answer};

/// Where a member writes how it is asked; its rank follows.
const KEY: &str = "rallypoint/fence/";
/// In a round of up to so many others, all are asked.
pub(super) const ALL: usize = 16;
/// How long a member may take to write how it is asked; then it is one that cannot be.
pub(super) const TO_WRITE: Duration = Duration::from_secs(30);
/// Between tries to read what is not there.
const AGAIN: Duration = Duration::from_secs(1);

/// Who is asked by whom: all, or those at a distance of 1, 2, 4, 8, ... so that nobody asks or is asked by more than a few,
/// and whatever one of them knows reaches all in as many steps.
pub(super) fn asked_by(rank: usize, nodes: usize) -> Vec<usize> {
    if nodes <= ALL + 1 {
        return (0..nodes).filter(|other| *other != rank).collect();
    }
    std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|distance| *distance < nodes)
        .map(|distance| (rank + distance) % nodes)
        .collect()
}

/// A member that may be asked.
#[derive(Debug, Clone)]
pub(super) enum Peer {
    Unread,
    Mute,
    At(Arc<Reach>),
}

impl Peer {
    pub(super) fn member(&self) -> Member {
        match self {
            Peer::Unread => Member::Unread,
            Peer::Mute => Member::Mute,
            Peer::At(_) => Member::Known,
        }
    }
}

/// How it is asked.
#[derive(Debug)]
pub(super) struct Reach {
    addresses: Vec<SocketAddr>,
    question: Question,
    proof: Uuid,
}

impl Reach {
    /// Names are looked up now: who is cut off may have nobody to ask for them.
    pub(super) async fn read(text: &[u8]) -> Peer {
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

    /// What the member says of the round, and what it knows of its end.
    pub(super) async fn ask(&self) -> Option<(Answer, Option<News>)> {
        let asking = async {
            let mut stream = TcpStream::connect(&self.addresses[..]).await?;
            stream.write_all(&self.question.write()).await?;
            let mut answer = [0; ANSWER];
            stream.read_exact(&mut answer).await?;
            std::io::Result::Ok((read_answer(&answer, self.proof), stream))
        };
        let (answer, stream) = tokio::time::timeout(ASKING, asking).await.ok()?.ok()?;
        let answer = answer?;
        if !matches!(answer, Answer::Over { .. }) {
            return Some((answer, None));
        }
        let mut news = Vec::new();
        // The answer counts without them.
        let _ = tokio::time::timeout(ASKING, stream.take(MOST_NEWS).read_to_end(&mut news)).await;
        Some((answer, News::read(&news)))
    }

    /// Tells the member what this node knows, unasked. Whether it has taken that.
    pub(super) async fn tell(&self, news: &News) -> bool {
        self.send(&[&self.question.write_telling()[..], &news.write()].concat()).await
    }

    /// Tells the member that the node with this rank has finished.
    pub(super) async fn tell_finish(&self, rank: u32) -> bool {
        self.send(&self.question.write_finish(rank)).await
    }

    async fn send(&self, text: &[u8]) -> bool {
        let telling = async {
            let mut stream = TcpStream::connect(&self.addresses[..]).await?;
            stream.write_all(text).await?;
            stream.shutdown().await?;
            // It hangs up when it has read it.
            stream.read_to_end(&mut Vec::new()).await
        };
        let told = tokio::time::timeout(ASKING, telling).await;
        debug!(addresses = ?self.addresses, ?told, "a node was told directly");
        matches!(told, Ok(Ok(_)))
    }
}

/// Tells the others how this node is asked.
pub(super) async fn tell(store: &dyn Store, rank: usize, whereabouts: &Whereabouts) {
    let key = format!("{KEY}{rank}");
    while let Err(error) = store.set(key.as_bytes(), &whereabouts.write()).await {
        debug!(%error, "the other nodes cannot be told how this one is asked");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reads how the members of these ranks are asked, until all have said so.
pub(super) async fn find(store: &dyn Store, ranks: &[usize], found: &watch::Sender<Vec<Peer>>) {
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
