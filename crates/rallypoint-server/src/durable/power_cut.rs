//! What is left on a disk whose power was cut: all that was synced before, and of the rest some, in any order.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bytes::Bytes;
use redb::{Database, StorageBackend};

use super::change::{Batch, Ids, Loaded, V2Batch, V3Batch};
use super::engine::{Engine, EngineError};
use super::frame::PAGE;
use super::journal::Journal;
use super::ledger::{Ledger, Way};
use super::log::Log;
use super::writer::Writer;
use crate::auth::{Caller, Permission};
use crate::mvcc::{Record, Retention, Span, Store};
use crate::state::{Limits, State};
use crate::v2;

/// What a disk writes at once, or not at all.
const SECTOR: usize = 512;

/// Writes until the power goes, if it does; none ever after. All files have the same.
type Power = Arc<Mutex<Option<usize>>>;

/// A file on a disk that remembers what was not synced.
#[derive(Debug, Clone)]
struct Disk {
    content: Arc<Mutex<Content>>,
    power: Power,
}

#[derive(Debug, Clone, Default)]
struct Content {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// What was written since the last sync.
    unsynced: Vec<Range<usize>>,
    /// How many syncs there were.
    syncs: usize,
    /// Nothing can be written.
    is_full: bool,
}

impl Disk {
    fn new(content: Content, power: &Power) -> Self {
        Disk { content: Arc::new(Mutex::new(content)), power: Arc::clone(power) }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    fn spend(&self) -> io::Result<()> {
        match &mut *self.power.lock().unwrap() {
            Some(0) => return Err(io::Error::other("the power is cut")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    /// What it has after the cut: each sector that was not synced is the old or the new one.
    fn after_cut(&self, random: &mut fastrand::Rng, power: &Power) -> Disk {
        let Content { synced, now, unsynced, .. } = &*self.content();
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
        Disk::new(Content { synced: left.clone(), now: left, ..Content::default() }, power)
    }

    /// What it has when the process that wrote is killed: all, and what was not synced is not synced.
    fn after_kill(&self, power: &Power) -> Disk {
        Disk::new(self.content().clone(), power)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.content().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let content = self.content();
        let found = content.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.spend()?;
        let mut content = self.content();
        let (was, len) = (content.now.len(), usize::try_from(len).unwrap());
        content.now.resize(len, 0);
        if len > was {
            content.unsynced.push(was..len);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.spend()?;
        let mut content = self.content();
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
        self.spend()?;
        let mut content = self.content();
        if content.is_full {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let at = usize::try_from(offset).unwrap();
        let range = at..at + data.len();
        content.now.get_mut(range.clone()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        content.unsynced.push(range);
        Ok(())
    }
}

/// The two files of a folder.
#[derive(Debug)]
struct Disks {
    database: Disk,
    log: Disk,
}

impl Disks {
    fn new() -> Self {
        Disks::with_power(|power| {
            [Disk::new(Content::default(), power), Disk::new(Content::default(), power)]
        })
    }

    fn after_cut(&self, random: &mut fastrand::Rng) -> Self {
        Disks::with_power(|power| [&self.database, &self.log].map(|disk| disk.after_cut(random, power)))
    }

    fn after_kill(&self) -> Self {
        Disks::with_power(|power| [&self.database, &self.log].map(|disk| disk.after_kill(power)))
    }

    fn with_power(files: impl FnOnce(&Power) -> [Disk; 2]) -> Self {
        let [database, log] = files(&Power::default());
        Disks { database, log }
    }

    fn cut_after(&self, writes: usize) {
        *self.database.power.lock().unwrap() = Some(writes);
    }

    fn syncs(&self) -> usize {
        self.database.content().syncs + self.log.content().syncs
    }

    fn create(&self) -> Ledger {
        let v3 = V3Batch { changes: Vec::new(), revision: 1, compacted: -1 };
        let v2 = V2Batch { changes: Vec::new(), index: 3, raft_index: 3 };
        Ledger::create(self.open_database().unwrap(), IDS, &v3, &v2).unwrap()
    }

    fn open(&self) -> Result<(Ledger, Loaded), EngineError> {
        Ledger::open(self.open_database()?, || Ok(Box::new(self.log.clone())))
    }

    fn open_database(&self) -> Result<Database, EngineError> {
        Ok(Engine::builder().create_with_backend(self.database.clone())?)
    }

    /// A new log, in place of one that is of no use any more.
    fn make_log(&self, pages: usize) -> io::Result<Log> {
        *self.log.content() = Content::default();
        Log::create(Box::new(self.log.clone()), pages * PAGE)
    }
}

const RETENTION: Retention = Retention { changes: 40, bytes: usize::MAX };
const LIMITS: Limits = Limits { request_bytes: 1 << 20, txn_ops: 128, quota_bytes: 1 << 30 };
const IDS: Ids = Ids { cluster: 1, member: 2 };

/// All that can be asked of a state, as text.
fn seen(state: &State, tree: &v2::Store) -> String {
    let now = Instant::now();
    let (store, auth) = (&state.store, &state.auth);
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
            (store.revision(), store.compacted(), store.all()),
            (keys, past, leases.collect::<Vec<_>>()),
            (
                auth.revision(),
                auth.weight(),
                auth.users().collect::<Vec<_>>(),
                auth.roles().collect::<Vec<_>>()
            ),
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
        match random.u32(..11) {
            0..4 => {
                let (key, value) = (name(random).into(), vec![b'v'; random.usize(..3000)]);
                let lease = lease.unwrap_or(0);
                let put = etcd_client::proto::PbPutRequest { key, value, lease, ..Default::default() };
                state.put(&Caller::default(), put, |_| Ok(())).unwrap();
            }
            4 => {
                let key = name(random).into();
                let (range_end, prev_kv) = (if random.bool() { b"k9".to_vec() } else { vec![] }, false);
                let delete = etcd_client::proto::PbDeleteRequest { key, range_end, prev_kv };
                state.delete(&Caller::default(), &delete, |_| Ok(())).unwrap();
            }
            5 => drop(state.grant(Instant::now(), 0, 1000)),
            6 => drop(lease.map(|id| state.revoke(id))),
            7 => {
                let _ = state.compact(state.store.visible() - random.i64(..5));
                // What it forgets may reach the disk with it, later, or never.
                if random.bool() {
                    state.forget_some();
                }
            }
            8 => manage(state, random),
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

/// A change of users and roles, which may be none.
fn manage(state: &mut State, random: &mut fastrand::Rng) {
    let (user, role) = (format!("u{}", random.u32(..3)), format!("r{}", random.u32(..3)));
    let kind = random.u32(..6);
    let granted = Permission { kind: 2, key: user.clone().into(), range_end: b"z".to_vec() };
    let _ = state.manage(&Caller::default(), |auth| match kind {
        0 => auth.user_add(&user, None),
        1 => auth.user_delete(&user),
        2 => auth.role_add(&role),
        3 => auth.role_delete(&role),
        4 => auth.grant_role(&user, &role),
        _ => auth.grant_permission(&role, Some(granted)),
    });
}

/// What is kept and asked, and where.
struct Keeping {
    disks: Disks,
    ledger: Ledger,
    state: State,
    tree: v2::Store,
    random: fastrand::Rng,
}

impl Keeping {
    fn new(seed: u64) -> Self {
        let disks = Disks::new();
        let ledger = disks.create();
        let mut state = State::new(LIMITS, Store::new(RETENTION));
        let mut tree = v2::Store::new(v2::Limits::default());
        keep(&mut state, &mut tree);
        Keeping { disks, ledger, state, tree, random: fastrand::Rng::with_seed(seed) }
    }

    /// Does with the log what a server does with it now and then; and is killed now and then.
    fn tend(&mut self, promised: &str) -> Result<(), EngineError> {
        match self.random.u32(..20) {
            0 => self.ledger.end_log()?,
            1..4 if !self.ledger.has_log() => {
                let log = self.disks.make_log(self.random.usize(2..20))?;
                self.ledger.begin_log(log);
            }
            4 => {
                let (disks, left) = (self.disks.after_kill(), *self.disks.database.power.lock().unwrap());
                let (ledger, loaded) = disks.open()?;
                let (state, tree) = restored(loaded);
                assert_eq!(seen(&state, &tree), promised);
                disks.cut_after(left.unwrap());
                (self.disks, self.ledger) = (disks, ledger);
            }
            _ => {}
        }
        Ok(())
    }

    /// Some requests, and whether what they have changed is on disk.
    fn change(&mut self) -> Result<(), EngineError> {
        let (v3, v2) = loop {
            change(&mut self.state, &mut self.tree, &mut self.random);
            let (v3, v2) = (self.state.take_changes(), self.tree.take_changes());
            if v3.is_some() || v2.is_some() {
                break (v3, v2);
            }
        };
        let v3 = v3.map(|(batch, _)| batch);
        let (index, raft_index) = (self.tree.index(), self.tree.raft_index());
        let v2 = v2.map(|(taken, _)| V2Batch { changes: taken.changes, index, raft_index });
        let syncs = self.disks.syncs();
        let way = if self.random.u8(..8) == 0 { Way::Engine } else { Way::Log };
        let written = self.ledger.write(&Arc::new(Batch { v3, v2 }), way);
        let revision = self.state.store.revision();
        while !self.state.settle(revision) {}
        self.tree.settle(Vec::new());
        assert!(written.is_err() || self.disks.syncs() > syncs, "it was not synced");
        written
    }
}

#[test]
fn what_was_written_is_there_after_a_power_cut_and_nothing_else() {
    let cuts = std::env::var("RALLYPOINT_POWER_CUTS").map_or(12, |cuts| cuts.parse().unwrap());
    for seed in 0..cuts {
        let mut keeping = Keeping::new(seed);
        // As it was promised, and as it will be once the next batch is written.
        let mut promised = seen(&keeping.state, &keeping.tree);
        keeping.disks.cut_after(keeping.random.usize(20..400));
        let next = loop {
            if keeping.tend(&promised).is_err() {
                break promised.clone();
            }
            let written = keeping.change();
            let next = seen(&keeping.state, &keeping.tree);
            if written.is_err() {
                break next;
            }
            promised = next;
        };
        let Keeping { disks, ledger, mut random, .. } = keeping;
        drop(ledger);
        for _ in 0..4 {
            let mut left = disks.after_cut(&mut random);
            if random.bool() {
                left = disks.after_kill();
            }
            let (ledger, loaded) = left.open().unwrap();
            let mut rows: Vec<_> = loaded.v3.records.iter().map(Record::at).collect();
            let (mut state, tree) = restored(loaded);
            let found = seen(&state, &tree);
            // What nobody can ask for goes from the disk too.
            let forgotten = state.store.take_forgotten();
            rows.retain(|row| !forgotten.contains(row));
            assert_eq!(rows, state.store.all(), "seed {seed}");
            assert!(found == promised || found == next, "seed {seed}:\n{found}\n{promised}\n{next}");

            // Somebody may have seen that, and nothing closes it in order.
            let left = left.after_cut(&mut random);
            drop(ledger);
            let (_, loaded) = left.open().unwrap();
            let (state, tree) = restored(loaded);
            assert_eq!(seen(&state, &tree), found, "seed {seed}, after the next cut");
        }
    }
}

#[test]
fn a_log_that_finds_no_room_is_given_up_and_what_it_has_is_kept() {
    for engine_is_full in [false, true] {
        let mut keeping = Keeping::new(1);
        keeping.ledger.begin_log(keeping.disks.make_log(20).unwrap());
        let write = |keeping: &mut Keeping, name: &str| {
            let put = etcd_client::proto::PbPutRequest { key: name.into(), ..Default::default() };
            keeping.state.put(&Caller::default(), put, |_| Ok(())).unwrap();
            let v3 = keeping.state.take_changes().map(|(batch, _)| batch);
            keeping.ledger.write(&Arc::new(Batch { v3, v2: None }), Way::Log)
        };
        for name in ["engine", "log"] {
            write(&mut keeping, name).unwrap();
        }
        keeping.disks.log.content().is_full = true;
        keeping.disks.database.content().is_full = engine_is_full;
        let written = write(&mut keeping, "full");
        assert_eq!(written.as_ref().is_err_and(EngineError::is_full), engine_is_full, "{written:?}");
        assert!(!keeping.ledger.has_log());
        let disks = keeping.disks.after_kill();
        disks.database.content().is_full = false;
        let (ledger, loaded) = disks.open().unwrap();
        // What was refused has not come back, and nothing else is lost.
        assert_eq!((ledger.batches(), loaded.v3.revision), if engine_is_full { (2, 3) } else { (3, 4) });
        assert_eq!(ledger.has_log(), engine_is_full);
    }
}

#[test]
fn a_damaged_page_is_seen() {
    let disks = Disks::new();
    let key = Bytes::from("a key that is easy to find");
    let mut ledger = disks.create();
    let mut state = State::new(LIMITS, Store::new(RETENTION));
    keep(&mut state, &mut v2::Store::new(v2::Limits::default()));
    let put = etcd_client::proto::PbPutRequest { key: key.to_vec(), ..Default::default() };
    state.put(&Caller::default(), put, |_| Ok(())).unwrap();
    let v3 = state.take_changes().map(|(batch, _)| batch);
    ledger.write(&Arc::new(Batch { v3, v2: None }), Way::Engine).unwrap();
    drop(ledger);
    let mut content = disks.database.content();
    let at = content.now.windows(key.len()).rposition(|window| window == key).unwrap();
    content.now[at] ^= 1;
    drop(content);
    let Err(error) = disks.open() else { panic!("it was taken") };
    assert!(matches!(error, EngineError::Damaged(_)), "{error:?}");
}
