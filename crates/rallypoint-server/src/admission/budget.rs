//! The budget, and who has what of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::accounts::{Accounts, Holder};

/// How often in a row a connection may be refused.
const MAX_REFUSALS: usize = 1000;
/// Of the budget one part in so many is for those who hold little: they are served while others make room.
const KEPT: usize = 16;
/// Who holds one part of that in so many, or less, holds little.
const LITTLE: usize = 16;

/// What a connection takes by itself once it has said something, in any protocol: the buffers and the state of hyper. Measured are
/// 25 to 31 KiB.
const CONNECTION: usize = 32 << 10;
/// So many take nothing of the budget. What more of them take, others cannot have, down to half of it.
const FREE: usize = 8192;

/// Bytes that may be held for all clients together.
#[derive(Debug)]
pub(crate) struct Budget {
    /// While there are few connections.
    capacity: usize,
    /// Of that, what those who hold much cannot have.
    kept: usize,
    /// Connections at a time.
    max_accounts: usize,
    held: AtomicUsize,
    /// Connections that are open.
    open: AtomicUsize,
    /// Counts what is asked for; the one that asked last has the highest.
    asked: AtomicUsize,
    /// Who holds less than this cannot hold the most when there is no room: together they have half of the least of it at most.
    unranked: usize,
    accounts: Mutex<Accounts>,
    /// For those who watch over the server: connections that were turned away, those that were closed to make room, and
    /// requests for more that were refused.
    turned_away: AtomicU64,
    pushed_out: AtomicU64,
    refused: AtomicU64,
}

/// What there is to say of a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) connections: usize,
    pub(crate) max_connections: usize,
    pub(crate) held: usize,
    pub(crate) capacity: usize,
    pub(crate) turned_away: u64,
    pub(crate) pushed_out: u64,
    pub(crate) refused: u64,
}

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// What to do with a request for more when the budget is used up.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// There is room, or will be when those who are leaving have left.
    Room,
    Refuse,
    /// There will be room when this one has left.
    PushOut(usize),
}

impl Budget {
    pub(crate) fn new(capacity: usize, max_accounts: usize) -> Arc<Self> {
        Arc::new(Self::keeping(capacity / KEPT, capacity, max_accounts))
    }

    fn keeping(kept: usize, capacity: usize, max_accounts: usize) -> Self {
        Budget {
            capacity,
            kept,
            max_accounts,
            held: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            unranked: ((capacity / 2 - kept) / (2 * max_accounts.max(1))).max(1),
            accounts: Mutex::default(),
            turned_away: AtomicU64::new(0),
            pushed_out: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// An account for a connection. If there are too many, one that holds nothing makes room: the one that has asked for
    /// nothing for the longest.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Account, Full> {
        let holder = Arc::<Holder>::default();
        let mut accounts = self.accounts();
        if accounts.staying() >= self.max_accounts {
            let Some(idle) = accounts.idle() else {
                self.turned_away.fetch_add(1, Ordering::Relaxed);
                return Err(Full);
            };
            accounts.push_out(idle);
            self.pushed_out.fetch_add(1, Ordering::Relaxed);
        }
        let key = accounts.all.insert(Arc::clone(&holder));
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Account(Arc::new(Opened { budget: Arc::clone(self), holder, key, turn: Semaphore::new(1) })))
    }

    /// What may be held now, beside what the connections take by themselves.
    fn room(&self) -> usize {
        let more = self.open.load(Ordering::Relaxed).saturating_sub(FREE);
        self.capacity - (more * CONNECTION).min(self.capacity / 2)
    }

    /// What may be held by those who hold much.
    fn ordinary(&self) -> usize {
        self.room() - self.kept
    }

    /// What may be held for one that would have so much then.
    fn limit(&self, own: usize) -> usize {
        if own <= self.kept / LITTLE { self.room() } else { self.ordinary() }
    }

    /// Holds so many bytes more, if no more are held then than the limit.
    fn hold(&self, bytes: usize, limit: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|held| *held <= limit);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// For those who watch over the server.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers {
            connections: self.accounts().all.len(),
            max_connections: self.max_accounts,
            held: self.held(),
            capacity: self.capacity,
            turned_away: self.turned_away.load(Ordering::Relaxed),
            pushed_out: self.pushed_out.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Bytes that are held.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranks one that holds something else than before, if it holds much, or did.
    fn held_by(&self, holder: &Holder, key: usize) {
        if holder.is_ranked() || holder.is_leaving() || holder.held() >= self.unranked {
            self.accounts().rank(key, self.unranked);
        }
    }

    /// Decides when there is no room, and has one go if that helps: see [`decide`].
    fn make_room(&self, asking: usize, bytes: usize) -> Result<(), Full> {
        let mut accounts = self.accounts();
        let own = accounts.all[asking].held();
        let staying = self.held().saturating_sub(accounts.leaving_bytes);
        match decide(self.ordinary(), staying, own, bytes, accounts.largest_but(asking)) {
            Verdict::Room => Ok(()),
            Verdict::Refuse => Err(Full),
            Verdict::PushOut(key) => {
                let bytes = accounts.all[key].held();
                accounts.push_out(key);
                drop(accounts);
                tracing::info!(bytes, "a connection that holds the most is closed, to make room");
                self.pushed_out.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// Longest queue drop: the largest holder makes room, be it the one who asks.
///
/// `staying` is what is held by those who are not about to give it back. Until these have, it is no room: but nobody else
/// has to go for it. `largest` is what the other holds that holds the most, and its key.
fn decide(
    capacity: usize,
    staying: usize,
    own: usize,
    more: usize,
    largest: Option<(usize, usize)>,
) -> Verdict {
    if staying.saturating_add(more) <= capacity {
        return Verdict::Room;
    }
    match largest {
        // One that goes must make room enough, or it would go for nothing.
        Some((most, key)) if most > own.saturating_add(more) => Verdict::PushOut(key),
        _ => Verdict::Refuse,
    }
}

/// A connection's part of the budget.
#[derive(Debug, Clone)]
pub(crate) struct Account(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    budget: Arc<Budget>,
    holder: Arc<Holder>,
    key: usize,
    turn: Semaphore,
}

impl Account {
    /// An account on a budget of its own.
    pub(crate) fn alone(capacity: usize) -> Self {
        Arc::new(Budget::keeping(0, capacity, 1)).open().expect("it is the first")
    }

    /// Takes so many bytes, if there is room or room can be made.
    pub(crate) fn take(&self, bytes: usize) -> Result<Share, Full> {
        let mut share = Share { account: self.clone(), bytes: 0 };
        share.grow(bytes)?;
        Ok(share)
    }

    /// The same for one that waits if there is none, and asks again: it is not told so, and that costs nothing.
    pub(crate) fn take_or_wait(&self, bytes: usize) -> Result<Share, Full> {
        self.add(bytes)?;
        Ok(Share { account: self.clone(), bytes })
    }

    /// The most that one can hold, while there are few connections.
    pub(crate) fn capacity(&self) -> usize {
        self.0.budget.capacity - self.0.budget.kept
    }

    /// Whether it has ever asked for something.
    pub(crate) fn has_asked(&self) -> bool {
        self.0.holder.asked.load(Ordering::Relaxed) > 0
    }

    /// Waits for the connection's one turn at what takes long.
    pub(crate) async fn turn(&self) -> SemaphorePermit<'_> {
        self.0.turn.acquire().await.expect("it is never closed")
    }

    /// Waits until the connection is to go, to make room for others.
    pub(crate) async fn pushed_out(&self) {
        self.0.holder.pushed_out.notified().await;
    }

    fn add(&self, bytes: usize) -> Result<(), Full> {
        let Opened { budget, holder, key, .. } = &*self.0;
        holder.asked.store(budget.asked.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        if holder.is_leaving() {
            return Err(Full);
        }
        if !budget.hold(bytes, budget.ordinary()) {
            budget.make_room(*key, bytes)?;
            // Who leaves holds it until then. Who asks for little has room all the same.
            if !budget.hold(bytes, budget.limit(holder.held().saturating_add(bytes))) {
                return Err(Full);
            }
        }
        holder.add(bytes);
        budget.held_by(holder, *key);
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let Opened { budget, holder, key, .. } = &*self.0;
        holder.give_back(bytes);
        budget.held.fetch_sub(bytes, Ordering::Relaxed);
        budget.held_by(holder, *key);
    }

    /// Counts what it is told. To refuse costs memory too, if the answers are not read.
    fn answered(&self, answer: Result<(), Full>) -> Result<(), Full> {
        let Opened { budget, holder, key, .. } = &*self.0;
        if answer.is_ok() {
            holder.refused.store(0, Ordering::Relaxed);
            return answer;
        }
        budget.refused.fetch_add(1, Ordering::Relaxed);
        if holder.refused.fetch_add(1, Ordering::Relaxed) == MAX_REFUSALS {
            tracing::info!("a connection that is refused and goes on is closed");
            budget.accounts().push_out(*key);
        }
        answer
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.budget.open.fetch_sub(1, Ordering::Relaxed);
        self.budget.accounts().remove(self.key);
    }
}

/// Bytes that were taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    account: Account,
    bytes: usize,
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        self.account.answered(self.account.add(bytes))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Becomes as large as this.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Full> {
        self.shrink_to(bytes);
        self.grow(bytes - self.bytes)
    }

    /// Gives back what is over this.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let over = self.bytes.saturating_sub(bytes);
        self.bytes -= over;
        self.account.give_back(over);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_may_have_all_that_is_not_kept_for_others_and_no_more() {
        let budget = Budget::new(1600, 10);
        let one = budget.open().unwrap();
        let mut share = one.take(1000).unwrap();
        assert_eq!(one.take(501).unwrap_err(), Full);
        share.grow(500).unwrap();
        assert_eq!((share.grow(1), one.capacity()), (Err(Full), 1500));
        share.shrink_to(10);
        assert_eq!(budget.held(), 10);
        drop(share);
        assert_eq!((budget.held(), one.0.holder.held()), (0, 0));
    }

    #[test]
    fn who_holds_the_most_makes_room() {
        let budget = Budget::new(1600, 10);
        let (large, small, new) = (budget.open().unwrap(), budget.open().unwrap(), budget.open().unwrap());
        let most = large.take(1100).unwrap();
        let some = small.take(350).unwrap();
        // Would become the largest itself.
        assert_eq!(small.take(800).unwrap_err(), Full);
        assert!(!large.0.holder.is_leaving());
        // There is no room until the other has left; for one that asks for little there is.
        assert_eq!(new.take(150).unwrap_err(), Full);
        assert!(large.0.holder.is_leaving());
        assert_eq!(large.take(0).unwrap_err(), Full, "it gets nothing more");
        let fits = small.take(50).unwrap();
        let little = new.take(6).unwrap();
        assert_eq!((budget.held(), new.take(1).unwrap_err()), (1506, Full));
        // Nobody else has to go for what will be room.
        assert_eq!(small.take(600).unwrap_err(), Full);
        assert!(!small.0.holder.is_leaving() && !new.0.holder.is_leaving());
        drop(most);
        let more = (small.take(600).unwrap(), new.take(150).unwrap());
        drop((some, little, more, fits));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn however_many_hold_much_it_is_never_more_than_there_is() {
        const EACH: usize = 5_000;
        let budget = Budget::new(10 * EACH, 1000);
        let accounts: Vec<_> = (0..500).map(|_| budget.open().unwrap()).collect();
        let mut shares = Vec::new();
        for (at, account) in accounts.iter().enumerate() {
            shares.extend(account.take(EACH + at));
            assert!(budget.held() <= budget.ordinary(), "who was asked to go has not gone");
            shares.extend(account.take(1));
            assert!(budget.held() <= budget.capacity);
        }
    }

    #[test]
    fn very_many_connections_leave_less_for_what_they_ask() {
        let budget = Budget::new(1 << 20, 20_000);
        let mut accounts: Vec<_> = (0..FREE).map(|_| budget.open().unwrap()).collect();
        assert_eq!(budget.room(), 1 << 20);
        let _much = accounts[0].take(700 << 10).unwrap();
        accounts.extend((0..4).map(|_| budget.open().unwrap()));
        assert_eq!((budget.room(), accounts[1].take(1).map(drop)), ((1 << 20) - 4 * CONNECTION, Ok(())));
        accounts.extend((0..100).map(|_| budget.open().unwrap()));
        assert_eq!((budget.room(), accounts[1].take(80 << 10).unwrap_err()), (1 << 19, Full));
        assert!(accounts[0].0.holder.is_leaving(), "and who holds the most makes room");
        accounts.truncate(FREE);
        assert_eq!(budget.room(), 1 << 20);
    }

    #[test]
    fn however_many_are_greedy_a_newcomer_gets_its_part() {
        const GREEDY: usize = 50;
        let budget = Budget::new(10_000, 100);
        let accounts: Vec<_> = (0..GREEDY).map(|_| budget.open().unwrap()).collect();
        let mut shares = Vec::new();
        // They take turns, in small steps, until each is refused or gone.
        for _ in 0..200 {
            shares.extend(accounts.iter().filter_map(|account| account.take(10).ok()));
        }
        let newcomer = budget.open().unwrap();
        let _little = newcomer.take(30).unwrap();
        let part = 10_000 / (GREEDY + 1) / 2;
        newcomer.take(part).unwrap_err();
        shares.retain(|share| !share.account.0.holder.is_leaving());
        let _share = newcomer.take(part).unwrap();
    }

    #[test]
    fn nothing_is_left_of_an_account_that_is_closed() {
        let budget = Budget::new(100, 10);
        let account = budget.open().unwrap();
        let share = account.take(1).unwrap();
        drop(account);
        assert_eq!(budget.accounts().all.len(), 1, "its share is still held");
        drop(share);
        assert!(budget.accounts().all.is_empty() && budget.held() == 0);
    }

    #[test]
    fn of_too_many_the_one_that_was_idle_for_the_longest_makes_room() {
        let budget = Budget::new(100, 3);
        let (silent, idle, busy) = (budget.open().unwrap(), budget.open().unwrap(), budget.open().unwrap());
        let _open = busy.take(1).unwrap();
        idle.take(1).unwrap();
        let fourth = budget.open().unwrap();
        assert!(silent.0.holder.is_leaving() && !idle.0.holder.is_leaving(), "it has never asked");
        drop(silent);
        fourth.take(1).unwrap();
        let fifth = budget.open().unwrap();
        assert!(idle.0.holder.is_leaving() && !fourth.0.holder.is_leaving());
        drop(idle);
        let _both = (fourth.take(1).unwrap(), fifth.take(1).unwrap());
        assert_eq!(budget.open().unwrap_err(), Full, "nobody is idle");
    }

    #[test]
    fn one_that_is_refused_and_goes_on_is_closed() {
        let account = Budget::new(10, 1).open().unwrap();
        let all = account.take(10).unwrap();
        for _ in 0..MAX_REFUSALS {
            account.take(1).unwrap_err();
        }
        drop(all);
        let all = account.take(10).unwrap();
        for _ in 0..=MAX_REFUSALS {
            assert!(!account.0.holder.is_leaving());
            account.take(1).unwrap_err();
        }
        assert!(account.0.holder.is_leaving());
        drop(all);
    }
}
