//! Who has a part of the budget, and who of them holds the most.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use slab::Slab;
use tokio::sync::Notify;

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) all: Slab<Arc<Holder>>,
    /// Those who hold much and stay, by what they hold and their key: nobody has to look at all of them.
    ranked: BTreeSet<(usize, usize)>,
    /// How many are about to go, and what they hold until then.
    leaving: usize,
    pub(super) leaving_bytes: usize,
}

/// What one connection holds.
#[derive(Debug, Default)]
pub(super) struct Holder {
    held: AtomicUsize,
    /// What it held when it was ranked, or told to go; 0 if it is not ranked. Only who has the accounts changes it.
    ranked_at: AtomicUsize,
    /// When it asked for something last, in the budget's count; 0 if never.
    pub(super) asked: AtomicUsize,
    /// How often it was refused since it was let the last time.
    pub(super) refused: AtomicUsize,
    /// It was told to go, to make room.
    is_pushed_out: AtomicBool,
    pub(super) pushed_out: Notify,
}

impl Accounts {
    /// How many are not about to go.
    pub(super) fn staying(&self) -> usize {
        self.all.len() - self.leaving
    }

    /// The one that holds nothing and has asked for nothing for the longest.
    pub(super) fn idle(&self) -> Option<usize> {
        let idle = self.all.iter().filter(|(_, holder)| holder.held() == 0 && !holder.is_leaving());
        let longest = idle.min_by_key(|(_, holder)| holder.asked.load(Ordering::Relaxed));
        longest.map(|(key, _)| key)
    }

    /// Of those who stay, the other one that holds the most: that, and its key.
    pub(super) fn largest_but(&self, asking: usize) -> Option<(usize, usize)> {
        self.ranked.iter().rev().find(|(_, key)| *key != asking).copied()
    }

    /// Ranks one by what it holds now, if that is so much.
    pub(super) fn rank(&mut self, key: usize, much: usize) {
        let holder = &self.all[key];
        // Who changes it meanwhile sees that it is ranked and comes here, or is seen here.
        loop {
            let held = holder.held();
            let before = holder.ranked_at.swap(held, Ordering::SeqCst);
            if holder.is_leaving() {
                self.leaving_bytes = self.leaving_bytes + held - before;
            } else {
                self.ranked.remove(&(before, key));
                if held >= much {
                    self.ranked.insert((held, key));
                } else {
                    holder.ranked_at.store(0, Ordering::SeqCst);
                }
            }
            if holder.held() == held {
                return;
            }
        }
    }

    /// Tells one to go, to make room.
    pub(super) fn push_out(&mut self, key: usize) {
        let holder = &self.all[key];
        if holder.is_leaving() {
            return;
        }
        self.ranked.remove(&(holder.ranked_at.swap(0, Ordering::SeqCst), key));
        holder.is_pushed_out.store(true, Ordering::SeqCst);
        holder.pushed_out.notify_one();
        self.leaving += 1;
        self.rank(key, 0);
    }

    pub(super) fn remove(&mut self, key: usize) {
        let holder = self.all.remove(key);
        let ranked_at = holder.ranked_at.load(Ordering::SeqCst);
        self.ranked.remove(&(ranked_at, key));
        if holder.is_leaving() {
            self.leaving -= 1;
            self.leaving_bytes -= ranked_at;
        }
    }
}

impl Holder {
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::SeqCst);
    }

    pub(super) fn is_ranked(&self) -> bool {
        self.ranked_at.load(Ordering::SeqCst) > 0
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_pushed_out.load(Ordering::SeqCst)
    }
}
