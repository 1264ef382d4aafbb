//! What is left on a disk whose power was cut: all that was synced before, and of the rest some, in any order.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use redb::{Database, StorageBackend};

use super::change::{Batch, Ids, Loaded, V2Batch, V3Batch};
use super::engine::{Engine, EngineError};
use super::journal::Journal;
use super::writer::Writer;
use crate::mvcc::{Retention, Span, Store};
use crate::state::{Limits, State};
use crate::v2;

/// What a disk writes at once, or not at all.
const SECTOR: usize = 512;

/// A disk that remembers what was not synced.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Clone, Default)]
struct Content {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// What was written since the last sync.
    unsynced: Vec<Range<usize>>,
    /// How many syncs there were.
    syncs: usize,
    /// Writes until the power goes; none ever after.
    left: Option<usize>,
}

impl Content {
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => return Err(io::Error::other("the power is cut")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl Disk {
    /// What it has after the cut: each sector that was not synced is the old or the new one.
    fn after_cut(&self, random: &mut fastrand::Rng) -> Disk {
        let Content { synced, now, unsynced, .. } = &*self.0.lock().unwrap();
        let mut left = synced.clone();
        // The length is as it was, or as it is.
        if random.bool() {
            left.resize(now.len(), 0);
        }
        let whole = random.u8(..3);
        for range in unsynced {
            for sector in (range.start / SECTOR)..range.end.div_ceil(SECTOR) {
                let sector = sector * SECTOR..((sector + 1) * SECTOR).min(now.len()).min(left.len());
                let is_written = match whole {
                    0 => false,
                    1 => random.bool(),
                    _ => random.u8(..10) > 0,
                };
                if is_written && !sector.is_empty() {
                    left[sector.clone()].copy_from_slice(&now[sector]);
                }
            }
        }
        Disk(Arc::new(Mutex::new(Content { synced: left.clone(), now: left, ..Content::default() })))
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let content = self.0.lock().unwrap();
        let found = content.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.spend()?;
        let (was, len) = (content.now.len(), usize::try_from(len).unwrap());
        content.now.resize(len, 0);
        if len > was {
            content.unsynced.push(was..len);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.spend()?;
        let Content { synced, now, unsynced, .. } = &mut *content;
        synced.resize(now.len(), 0);
        for range in unsynced.drain(..) {
            let end = range.end.min(now.len());
            if range.start < end {
                synced[range.start..end].copy_from_slice(&now[range.start..end]);
            }
        }
        content.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.0.lock().unwrap();
        content.spend()?;
        let at = usize::try_from(offset).unwrap();
        let range = at..at + data.len();
        content.now.get_mut(range.clone()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        content.unsynced.push(range);
        Ok(())
    }
}

fn open(disk: &Disk) -> Result<Database, EngineError> {
    Ok(Engine::builder().create_with_backend(disk.clone())?)
}

const RETENTION: Retention = Retention { changes: 40, bytes: usize::MAX };
const LIMITS: Limits = Limits { request_bytes: 1 << 20, txn_ops: 128, quota_bytes: 1 << 30 };
const IDS: Ids = Ids { cluster: 1, member: 2 };

/// All that can be asked of a state, as text.
fn seen(state: &State, tree: &v2::Store) -> String {
    let now = Instant::now();
    let store = &state.store;
    let everything = Span::From(&b""[..]);
    let keys: Vec<_> = store.iter_at(&everything, store.revision()).collect();
    let past: Vec<_> = store.changes_from(store.compacted()).collect();
    let mut leases: Vec<_> = state.leases.ids().collect();
    leases.sort_unstable();
    let leases =
        leases.into_iter().map(|id| state.time_to_live(now, id, true).map(|it| (it.granted, it.keys)));
    format!(
        "{:?}",
        (
            (store.revision(), store.compacted(), store.weight(), store.all()),
            (keys, past, leases.collect::<Vec<_>>()),
            (tree.index(), tree.raft_index(), tree.nodes(), tree.weight(), tree.listing()),
        )
    )
}

fn restored(loaded: Loaded) -> (State, v2::Store) {
    assert_eq!(loaded.ids, IDS);
    let state = State::restored(LIMITS, RETENTION, Instant::now(), loaded.v3);
    (state, v2::Store::restored(v2::Limits::default(), loaded.v2))
}

fn keep(state: &mut State, tree: &mut v2::Store) {
    let (bell, _) = Writer::bell();
    state.keep(Journal::new(bell.clone()));
    tree.keep(bell);
}

/// Some requests of any kind.
fn change(state: &mut State, tree: &mut v2::Store, random: &mut fastrand::Rng) {
    for _ in 0..random.u32(1..6) {
        let name = |random: &mut fastrand::Rng| format!("k{}", random.u32(..8));
        let lease = state.leases.ids().next().filter(|_| random.bool());
        match random.u32(..10) {
            0..4 => {
                let (key, value) = (name(random).into(), vec![b'v'; random.usize(..3000)]);
                let lease = lease.unwrap_or(0);
                let put = etcd_client::proto::PbPutRequest { key, value, lease, ..Default::default() };
                state.put(put, |_| Ok(())).unwrap();
            }
            4 => {
                let key = name(random).into();
                let (range_end, prev_kv) = (if random.bool() { b"k9".to_vec() } else { vec![] }, false);
                let delete = etcd_client::proto::PbDeleteRequest { key, range_end, prev_kv };
                state.delete(&delete, |_| Ok(())).unwrap();
            }
            5 => drop(state.grant(Instant::now(), 0, 1000)),
            6 => drop(lease.map(|id| state.revoke(id))),
            7 => drop(state.compact(state.store.visible() - random.i64(..5))),
            _ => {
                let path = format!("/d{}/f{}", random.u32(..3), random.u32(..3));
                let (method, path, form) = match random.u32(..5) {
                    0 => (http::Method::DELETE, "/d0".to_owned(), "recursive=true"),
                    1 => (http::Method::POST, "/d1".to_owned(), "value=posted"),
                    2 => (http::Method::PUT, path, "value=2&prevExist=true&ttl=100000"),
                    _ => (http::Method::PUT, path, "value=1"),
                };
                let path = v2::Path::clean(path.as_bytes());
                let request = v2::Request::parse(&method, path, form.as_bytes(), b"").unwrap();
                let now = v2::Time::since_epoch(std::time::Duration::from_secs(1_800_000_000));
                let _ = tree.apply(now, &request.path, request.op);
            }
        }
    }
}

#[test]
fn what_was_written_is_there_after_a_power_cut_and_nothing_else() {
    let cuts = std::env::var("RALLYPOINT_POWER_CUTS").map_or(12, |cuts| cuts.parse().unwrap());
    for seed in 0..cuts {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = Disk::default();
        let first = |revision| V3Batch { changes: Vec::new(), revision, compacted: -1 };
        let v2_first = V2Batch { changes: Vec::new(), index: 3, raft_index: 3 };
        let mut engine = Engine::create(open(&disk).unwrap(), IDS, &first(1), &v2_first).unwrap();
        let mut state = State::new(LIMITS, Store::new(RETENTION));
        let mut tree = v2::Store::new(v2::Limits::default());
        keep(&mut state, &mut tree);
        // As it was promised, and as it will be once the next batch is written.
        let mut promised = seen(&state, &tree);
        disk.0.lock().unwrap().left = Some(random.usize(20..400));
        let next = loop {
            change(&mut state, &mut tree, &mut random);
            let (v3, v2) = (state.take_changes(), tree.take_changes());
            if v3.is_none() && v2.is_none() {
                continue;
            }
            let v3 = v3.map(|(batch, _)| batch);
            let (revision, index, raft_index) = (state.store.revision(), tree.index(), tree.raft_index());
            let v2 = v2.map(|(taken, _)| V2Batch { changes: taken.changes, index, raft_index });
            let syncs = disk.0.lock().unwrap().syncs;
            let written = engine.write(&Batch { v3, v2 });
            state.settle(revision);
            tree.settle(Vec::new());
            let next = seen(&state, &tree);
            if written.is_err() {
                break next;
            }
            assert!(disk.0.lock().unwrap().syncs > syncs, "it was not synced");
            promised = next;
        };
        drop(engine);
        for _ in 0..4 {
            let (_, loaded) = Engine::load(open(&disk.after_cut(&mut random)).unwrap()).unwrap();
            let (state, tree) = restored(loaded);
            let found = seen(&state, &tree);
            assert!(found == promised || found == next, "seed {seed}:\n{found}\n{promised}\n{next}");
        }
    }
}

#[test]
fn a_damaged_page_is_seen() {
    let disk = Disk::default();
    let key = Bytes::from("a key that is easy to find");
    let v3 = V3Batch { changes: Vec::new(), revision: 1, compacted: -1 };
    let v2 = V2Batch { changes: Vec::new(), index: 3, raft_index: 3 };
    let mut engine = Engine::create(open(&disk).unwrap(), IDS, &v3, &v2).unwrap();
    let mut state = State::new(LIMITS, Store::new(RETENTION));
    keep(&mut state, &mut v2::Store::new(v2::Limits::default()));
    let put = etcd_client::proto::PbPutRequest { key: key.to_vec(), ..Default::default() };
    state.put(put, |_| Ok(())).unwrap();
    let v3 = state.take_changes().map(|(batch, _)| batch);
    engine.write(&Batch { v3, v2: None }).unwrap();
    drop(engine);
    let mut content = disk.0.lock().unwrap();
    let at = content.now.windows(key.len()).rposition(|window| window == key).unwrap();
    content.now[at] ^= 1;
    drop(content);
    let Err(error) = open(&disk).and_then(Engine::load) else { panic!("it was taken") };
    assert!(matches!(error, EngineError::Damaged(_)), "{error:?}");
}
