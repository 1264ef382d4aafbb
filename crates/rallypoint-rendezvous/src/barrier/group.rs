//! A group that has met: who is in it, and whether it still is.
//!
//! Each node watches two things: the record, and the keep-alive of the next node of ours by rank, with those of
//! PyTorch's nodes in between. Who sees one end tells the others through the number waiting, which PyTorch's
//! nodes look at, too. So nobody watches everybody, and no death goes unseen.

use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_core::barrier::{Place, Record, Status, View};
use rallypoint_etcd::v2::{Get, Watched};
use tokio::sync::watch;
use tracing::{debug, info};

use super::keeper::{Task, take_back};
use super::wire::{Mark, Wire, expired, same};
use crate::error::Result;
use crate::handler::GroupChange;

/// A keep-alive that ended while etcd was away is there again after this time.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Where it is told that a group is not as it was.
#[derive(Debug, Clone)]
pub(super) struct Told(watch::Sender<Option<GroupChange>>);

impl Told {
    pub(super) fn new() -> Self {
        Told(watch::Sender::new(None))
    }

    /// A new group is whole.
    pub(super) fn forget(&self) {
        self.0.send_replace(None);
    }

    pub(super) fn now(&self) -> Option<GroupChange> {
        self.0.borrow().clone()
    }

    /// Tells what happened, unless something worse is told already.
    pub(super) fn tell(&self, change: GroupChange) {
        let weight = |change: &GroupChange| match change {
            GroupChange::Waiting { .. } => 1,
            GroupChange::Left { rank: None, .. } => 2,
            GroupChange::Left { .. } | GroupChange::Died { .. } => 3,
            GroupChange::Excluded
            | GroupChange::Replaced { .. }
            | GroupChange::StateLost
            | GroupChange::Corrupt { .. } => 4,
            GroupChange::Closed { .. } => 5,
        };
        self.0.send_if_modified(|told| {
            let news = told.as_ref().is_none_or(|before| {
                weight(&change) > weight(before)
                    || weight(&change) == 1 && weight(before) == 1 && *before != change
            });
            if news {
                info!(?change, "the group is not as it was");
                *told = Some(change);
            }
            news
        });
    }

    pub(super) async fn wait(&self) -> GroupChange {
        let mut told = self.0.subscribe();
        loop {
            if let Some(change) = told.borrow_and_update().clone() {
                return change;
            }
            if told.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// What is watched while a group is together.
#[derive(Debug)]
pub(super) struct Group {
    _record: Task,
    _neighbours: Task,
}

/// What the two watches need.
#[derive(Clone)]
struct Watch {
    wire: Wire,
    place: Place,
    record: Record,
    /// The index from which on the group is final.
    from: u64,
    told: Told,
}

impl Group {
    /// Begins to watch a group whose record became final at `from`.
    pub(super) fn watch(wire: &Wire, place: Place, record: &Record, from: u64, told: Told) -> Self {
        let watch = Watch { wire: wire.clone(), place, record: record.clone(), from, told };
        Group { _record: Task::spawn(watch.clone().record()), _neighbours: Task::spawn(watch.neighbours()) }
    }
}

impl Watch {
    async fn record(self) {
        let mut watcher = self.wire.client.watch(&self.wire.state(), self.from);
        let mut backoff = Backoff::default();
        // Somebody may have come before this node saw that the group was complete.
        let seen = View { record: Some((self.record.clone(), self.from - 1)), next: self.from };
        if let Err(error) = self.judge(&seen).await {
            debug!(run = self.wire.run_id, %error, "who waits is looked at again soon");
        }
        loop {
            let outcome = match watcher.next().await {
                Ok(Watched::Event(event))
                    if event.action.removes() && !same(&event.node.key, &self.wire.state()) =>
                {
                    self.folder_gone().await.map(Some)
                }
                Ok(Watched::Event(event)) => match self.wire.after(&event) {
                    Ok(view) => self.judge(&view).await.map(|()| None),
                    Err(error) => Err(error),
                },
                Ok(Watched::Cleared) => self.look().await.map(Some),
                Err(error) => Err(self.wire.failed(error)),
            };
            match outcome {
                Ok(next) => {
                    backoff = Backoff::default();
                    if let Some(next) = next {
                        watcher = self.wire.client.watch(&self.wire.state(), next);
                    }
                }
                Err(error) => {
                    debug!(run = self.wire.run_id, %error, "the record is watched again soon");
                    tokio::time::sleep(backoff.next(fastrand::f64())).await;
                    if let Ok(next) = self.look().await {
                        watcher = self.wire.client.watch(&self.wire.state(), next);
                    }
                }
            }
        }
    }

    async fn look(&self) -> Result<u64> {
        let view = self.wire.read().await?;
        self.judge(&view).await?;
        Ok(view.next)
    }

    async fn folder_gone(&self) -> Result<u64> {
        take_back(&self.wire, self.place, Some(&self.record)).await?;
        self.look().await
    }

    async fn judge(&self, view: &View) -> Result<()> {
        let asks = || GroupChange::Left { node: String::new(), rank: None };
        let change = match &view.record {
            None => asks(),
            Some((record, _)) if record.status == Status::Closed => {
                GroupChange::Closed { reason: String::new() }
            }
            Some((record, _)) if record.is(Status::Final, self.place.version) => {
                let count = usize::try_from(record.waiting.unwrap_or(0)).unwrap_or(usize::MAX);
                if count == 0 {
                    return Ok(());
                }
                self.missing().await?.unwrap_or(GroupChange::Waiting { count })
            }
            Some((record, _)) if record.status == Status::Final => GroupChange::Excluded,
            Some(_) => asks(),
        };
        self.told.tell(change);
        Ok(())
    }

    /// The member that is gone, and how, if one is.
    async fn missing(&self) -> Result<Option<GroupChange>> {
        let members = self.wire.list(self.place.version).await?;
        let gone = (0..self.record.joined())
            .find(|rank| *rank != self.place.rank && !members.iter().any(|(there, _)| there == rank));
        match gone {
            Some(rank) => Ok(Some(self.how(rank, "").await?)),
            None => Ok(None),
        }
    }

    /// How the node of `rank` went: etcd's history says.
    async fn how(&self, rank: usize, node: &str) -> Result<GroupChange> {
        let key = self.wire.keep_alive(Place { rank, ..self.place });
        let event = self.wire.client.watch(&key, self.from).past().await;
        let (node, rank) = (node.to_owned(), Some(rank));
        Ok(match event.map_err(|error| self.wire.failed(error))? {
            Some(Watched::Event(event)) if !expired(&event) => GroupChange::Left { node, rank },
            _ => GroupChange::Died { node, rank },
        })
    }

    async fn neighbours(self) {
        let mut backoff = Backoff::default();
        // All nodes of a group begin at the same moment; the list is as long as the group.
        let spread = Duration::from_millis(5) * u32::try_from(self.record.joined()).unwrap_or(u32::MAX);
        tokio::time::sleep(spread.min(Duration::from_secs(2)).mul_f64(fastrand::f64())).await;
        while let Err(error) = self.watch_neighbours().await {
            debug!(run = self.wire.run_id, %error, "the neighbours are watched again soon");
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        }
    }

    async fn watch_neighbours(&self) -> Result<()> {
        let version = self.place.version;
        let members = self.wire.list(version).await?;
        let watched = neighbours(self.place.rank, self.record.joined(), &members);
        let names: Vec<String> = watched
            .iter()
            .map(|rank| {
                let mark =
                    members.iter().find(|(there, _)| there == rank).and_then(|(_, mark)| mark.as_ref());
                mark.map(|mark| mark.node.clone()).unwrap_or_default()
            })
            .collect();
        let [first, rest @ ..] = watched.as_slice() else { return Ok(()) };
        let key = |rank| self.wire.keep_alive(Place { version, rank });
        let watch = |from| {
            if rest.is_empty() {
                self.wire.client.watch(&key(*first), from)
            } else {
                self.wire.client.watch(&self.wire.version(version), from).recursive()
            }
        };
        let mut watcher = watch(self.from);
        let absent = |there: &[(usize, Option<Mark>)]| {
            watched.iter().position(|rank| !there.iter().any(|(one, _)| one == rank))
        };
        let mut gone = absent(&members);
        loop {
            if let Some(at) = gone {
                tokio::time::sleep(SECOND_LOOK).await;
                let found = self.wire.client.find(&key(watched[at]), Get::new()).await;
                if found.map_err(|error| self.wire.failed(error))?.node.is_none() {
                    self.told.tell(self.how(watched[at], &names[at]).await?);
                    return self.wire.call_back(version).await;
                }
            }
            gone = match watcher.next().await {
                Ok(Watched::Event(event)) if event.action.removes() => {
                    watched.iter().position(|rank| same(&key(*rank), &event.node.key))
                }
                Ok(Watched::Event(_)) => None,
                // Too much happened: see who is there.
                Ok(Watched::Cleared) => {
                    let next = self.wire.read().await?.next;
                    watcher = watch(next);
                    absent(&self.wire.list(version).await?)
                }
                Err(error) => return Err(self.wire.failed(error)),
            };
        }
    }
}

/// The ranks that the node of `rank` watches: up to the next one of ours.
fn neighbours(rank: usize, world: usize, members: &[(usize, Option<Mark>)]) -> Vec<usize> {
    let ours = |rank: usize| members.iter().any(|(there, mark)| *there == rank && mark.is_some());
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
        let members: Vec<_> = (0..9).map(|rank| (rank, ours.contains(&rank).then(Mark::default))).collect();
        let mut watched: Vec<usize> = ours.iter().flat_map(|rank| neighbours(*rank, 9, &members)).collect();
        watched.sort_unstable();
        assert_eq!(watched, (0..9).collect::<Vec<_>>());
        assert_eq!(neighbours(0, 1, &members), [] as [usize; 0]);
        assert_eq!(neighbours(7, 9, &members), [8, 0]);
    }

    #[test]
    fn what_is_worse_stays_told() {
        let told = Told::new();
        let died = GroupChange::Died { node: "n".into(), rank: Some(1) };
        for (change, now) in [
            (GroupChange::Waiting { count: 1 }, GroupChange::Waiting { count: 1 }),
            (GroupChange::Waiting { count: 2 }, GroupChange::Waiting { count: 2 }),
            (died.clone(), died.clone()),
            (GroupChange::Left { node: String::new(), rank: None }, died.clone()),
            (GroupChange::Closed { reason: String::new() }, GroupChange::Closed { reason: String::new() }),
        ] {
            told.tell(change);
            assert_eq!(told.now(), Some(now));
        }
    }
}
