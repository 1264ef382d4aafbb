//! Leases: grants, the keys attached to them, and their end by a clock from outside.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::mvcc::Error;

/// Seconds that etcd grants at least: no lease may end during one election, and its elections take this long.
const MIN_TTL: i64 = 2;
/// Seconds that etcd grants at most.
const MAX_TTL: i64 = 9_000_000_000;
/// Roughly the memory of a lease, and of the place of a key in it.
const WEIGHT: usize = 256;

/// All leases.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_id: HashMap<i64, Lease>,
    by_deadline: BTreeSet<(Instant, i64)>,
    /// The lease of each key that has one.
    of_key: HashMap<Bytes, i64>,
}

/// One lease. With very many keys it is much to drop.
#[derive(Debug)]
pub(crate) struct Lease {
    ttl: i64,
    deadline: Instant,
    keys: BTreeSet<Bytes>,
}

/// What is known of one lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TimeToLive {
    /// Seconds left.
    pub(crate) ttl: i64,
    /// Seconds granted.
    pub(crate) granted: i64,
    pub(crate) keys: Vec<Bytes>,
}

impl Leases {
    /// Grants a lease of this id, or of a random one when it is 0; the id and the TTL it got.
    pub(crate) fn grant(&mut self, now: Instant, id: i64, ttl: i64) -> Result<(i64, i64), Error> {
        if ttl > MAX_TTL {
            return Err(Error::LeaseTtlTooLarge);
        }
        let id = if id == 0 { self.free_id() } else { id };
        if self.by_id.contains_key(&id) {
            return Err(Error::LeaseExists);
        }
        let ttl = ttl.max(MIN_TTL);
        let deadline = now + seconds(ttl);
        self.by_id.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
        self.by_deadline.insert((deadline, id));
        Ok((id, ttl))
    }

    /// Leases as they were, each with its id and its TTL, which begins anew.
    pub(crate) fn restored(now: Instant, leases: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut restored = Leases::default();
        for (id, ttl) in leases {
            let deadline = now + seconds(ttl);
            restored.by_id.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
            restored.by_deadline.insert((deadline, id));
        }
        restored
    }

    /// Leases that were there before go on as they did then.
    pub(crate) fn go_on_from(&mut self, before: &Leases) {
        for (id, lease) in &mut self.by_id {
            if let Some(Lease { deadline, .. }) = before.by_id.get(id) {
                self.by_deadline.remove(&(lease.deadline, *id));
                lease.deadline = *deadline;
                self.by_deadline.insert((*deadline, *id));
            }
        }
    }

    fn free_id(&self) -> i64 {
        std::iter::repeat_with(|| fastrand::i64(1..))
            .find(|id| !self.by_id.contains_key(id))
            .expect("an endless iterator ends only with a find")
    }

    /// Forgets a lease; its keys, which the caller deletes.
    pub(crate) fn revoke(&mut self, id: i64) -> Result<BTreeSet<Bytes>, Error> {
        let lease = self.take(id).ok_or(Error::LeaseNotFound)?;
        for key in &lease.keys {
            self.of_key.remove(key);
        }
        Ok(lease.keys)
    }

    /// Forgets a lease, and leaves the places of its keys to [`Leases::attach`].
    pub(crate) fn take(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_deadline.remove(&(lease.deadline, id));
        Some(lease)
    }

    /// Starts the TTL of a lease anew; the TTL, or nothing if there is no such lease.
    pub(crate) fn keep_alive(&mut self, now: Instant, id: i64) -> Option<i64> {
        let lease = self.by_id.get_mut(&id)?;
        self.by_deadline.remove(&(lease.deadline, id));
        lease.deadline = now + seconds(lease.ttl);
        self.by_deadline.insert((lease.deadline, id));
        Some(lease.ttl)
    }

    pub(crate) fn time_to_live(&self, now: Instant, id: i64, with_keys: bool) -> Option<TimeToLive> {
        let lease = self.by_id.get(&id)?;
        let left = lease.deadline.saturating_duration_since(now).as_secs();
        Some(TimeToLive {
            ttl: i64::try_from(left).unwrap_or(i64::MAX),
            granted: lease.ttl,
            keys: if with_keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
        })
    }

    pub(crate) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// The keys that hang on a lease, if there is one.
    pub(crate) fn keys_of(&self, id: i64) -> impl Iterator<Item = &Bytes> {
        self.by_id.get(&id).into_iter().flat_map(|lease| &lease.keys)
    }

    /// The same, in order, from after a key on.
    pub(crate) fn keys_after(&self, id: i64, after: Option<&Bytes>) -> impl Iterator<Item = &Bytes> {
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        self.by_id
            .get(&id)
            .into_iter()
            .flat_map(move |lease| lease.keys.range((start.clone(), Bound::Unbounded)))
    }

    /// How many keys hang on a lease.
    pub(crate) fn key_count(&self, id: i64) -> usize {
        self.by_id.get(&id).map_or(0, |lease| lease.keys.len())
    }

    /// The keys that hang on any lease, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.of_key.keys()
    }

    /// All ids with their TTLs.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i64, i64)> {
        self.by_id.iter().map(|(id, lease)| (*id, lease.ttl))
    }

    /// All ids, the one that ends first first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = i64> {
        self.by_deadline.iter().map(|(_, id)| *id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Roughly their memory.
    pub(crate) fn weight(&self) -> usize {
        (self.by_id.len() + self.of_key.len()) * WEIGHT
    }

    /// Attaches a key to a lease, or to none when that is 0, and detaches it from the one it had.
    pub(crate) fn attach(&mut self, key: &Bytes, id: i64) {
        if let Some(old) = self.of_key.remove(key)
            && let Some(lease) = self.by_id.get_mut(&old)
        {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.insert(key.clone());
            self.of_key.insert(key.clone(), id);
        }
    }

    /// When the next lease ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// A lease whose time is up.
    pub(crate) fn expired(&self, now: Instant) -> Option<i64> {
        self.by_deadline.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, secs: u64) -> Instant {
        start + Duration::from_secs(secs)
    }

    #[test]
    fn no_lease_is_shorter_than_two_seconds_or_longer_than_etcd_allows() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        for ttl in [i64::MIN, -1, 0, 1, 2] {
            assert_eq!(leases.grant(now, 0, ttl).unwrap().1, 2);
        }
        assert_eq!(leases.grant(now, 7, MAX_TTL), Ok((7, MAX_TTL)));
        assert_eq!(leases.grant(now, 8, MAX_TTL + 1), Err(Error::LeaseTtlTooLarge));
        assert_eq!(leases.grant(now, 7, 5), Err(Error::LeaseExists));
    }

    #[test]
    fn a_lease_ends_when_its_time_is_up_unless_kept_alive() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        leases.grant(now, 1, 5).unwrap();
        leases.grant(now, 2, 10).unwrap();
        assert_eq!(leases.next_deadline(), Some(after(now, 5)));
        assert_eq!(leases.keep_alive(after(now, 4), 1), Some(5));
        assert_eq!(leases.expired(after(now, 8)), None);
        assert_eq!(leases.ids().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(leases.expired(after(now, 9)), Some(1));
        leases.revoke(1).unwrap();
        assert_eq!(leases.expired(after(now, 9)), None);
        assert_eq!(leases.expired(after(now, 10)), Some(2));
        assert_eq!(leases.keep_alive(after(now, 10), 1), None);
        assert_eq!(leases.revoke(1), Err(Error::LeaseNotFound));
    }

    #[test]
    fn a_key_has_one_lease() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        leases.grant(now, 1, 5).unwrap();
        leases.grant(now, 2, 5).unwrap();
        let key = Bytes::from("k");
        leases.attach(&key, 1);
        leases.attach(&key, 2);
        assert!(leases.time_to_live(now, 1, true).unwrap().keys.is_empty());
        let two = leases.time_to_live(after(now, 2), 2, true).unwrap();
        assert_eq!(two, TimeToLive { ttl: 3, granted: 5, keys: vec![key.clone()] });
        leases.attach(&key, 0);
        assert!(leases.revoke(2).unwrap().is_empty());
        assert!(leases.of_key.is_empty());
    }
}
