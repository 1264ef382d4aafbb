//! Whom the group of the last round has lost, and how that is told.

use std::collections::BTreeSet;

use super::super::super::record::{Lost, NAMED_LOSSES, News, Wants, Why};
use super::{Class, Member, Present, Roster};

#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The dead before all others: a death is the cause of what fails with it, also where somebody left before it was
    /// noticed. Of the others the first few. The group is told of no more than that: some of the dead may be taken back.
    named: Vec<Lost>,
    /// So many are known to be lost.
    known: usize,
    /// So many of them without a name, who have not come back.
    unnamed: usize,
    /// So many an earlier leader, or this one before it read all anew, has told of. Those without a name are found again.
    told_before: usize,
    /// Those who are there no more, the first few: in a large group, who asks for a round takes the places in `named`
    /// before them.
    gone: Vec<Lost>,
    /// The dead whom the group's record does not name, as far as it is known. Who was told of so many without a name was not
    /// told that these have died.
    untold: BTreeSet<String>,
    /// A request that tells of them is under way.
    being_told: bool,
    /// When the record was written by which the others were told.
    told_at: i64,
}

impl Losses {
    /// Those that the members of a round were told of.
    pub(super) fn told(news: &News) -> Self {
        Losses {
            named: news.lost.clone(),
            known: news.lost.len(),
            told_before: news.lost_count,
            gone: news.lost.iter().filter(|lost| is_gone(lost.why)).cloned().collect(),
            ..Losses::default()
        }
    }

    /// So many the group has lost.
    pub(super) fn count(&self) -> usize {
        self.known.max(self.told_before)
    }

    fn add(&mut self, lost: Lost) {
        if lost.why == Why::Died {
            self.untold.insert(lost.node.clone());
        }
        self.known += 1;
        if self.gone.len() < NAMED_LOSSES && is_gone(lost.why) {
            self.gone.push(lost.clone());
        }
        let deaths = self.named.iter().take_while(|lost| lost.why == Why::Died).count();
        if lost.why == Why::Died {
            self.named.insert(deaths, lost);
        } else if self.named.len() - deaths < NAMED_LOSSES {
            self.named.push(lost);
        }
    }

    /// Those of whom the group is told by name, the first few.
    pub(super) fn first_named(&self) -> Vec<Lost> {
        self.named.iter().take(NAMED_LOSSES).cloned().collect()
    }

    /// Somebody is there who was not known by name. Whether it was counted as lost by then.
    pub(super) fn name_one(&mut self) -> bool {
        let counted = self.unnamed > 0;
        self.unnamed -= usize::from(counted);
        counted
    }

    /// Who was taken for dead is back, and nobody was told of that. False if somebody was, or is being told.
    fn take_back(&mut self, id: &str) -> bool {
        let untold = !self.being_told && self.untold.remove(id);
        if untold {
            self.known -= 1;
            for lost in [&mut self.named, &mut self.gone] {
                lost.retain(|lost| lost.node != id);
            }
        }
        untold
    }
}

impl Roster {
    /// Tells whether the group has lost a member that has left, or whose key is there.
    pub(super) fn look_at(&mut self, id: &str) {
        let Some(member) = self.members.get(id) else { return };
        // Also if it has come back since.
        if member.has_left() {
            return self.lose(id, Why::Left);
        }
        if self.is_kept_out(id) {
            return self.lose(id, Why::Excluded);
        }
        let Some(node) = self.nodes.get(id) else { return };
        let record = &node.record;
        let why = if record.wants == Wants::Leave {
            Why::Left
        } else if record.incarnation != member.incarnation {
            Why::Replaced
        } else if self.class(id) == Class::Survivor {
            Why::Again
        } else {
            return;
        };
        // Another process by its name has left nothing that was its own.
        if why == Why::Left && record.incarnation == member.incarnation {
            self.change(id, |roster| {
                roster.members.entry(id.to_owned()).and_modify(Member::leaves);
            });
        }
        self.lose(id, why);
    }

    /// The group is being told of all losses.
    pub(in super::super) fn losses_are_being_told(&mut self) {
        self.losses.being_told = true;
    }

    /// No request is under way that tells of losses, and this is what the group's record of that revision tells. A line that had
    /// no answer stands there, or it does not: who is back and is not named there was not told of.
    pub(in super::super) fn losses_were_told(&mut self, modified: i64, news: &News) {
        let known = std::mem::replace(&mut self.losses.told_at, modified) == modified;
        if !std::mem::take(&mut self.losses.being_told) && known {
            return;
        }
        for dead in news.lost.iter().filter(|lost| lost.why == Why::Died) {
            self.lose(&dead.node, Why::Died);
            self.losses.untold.remove(&dead.node);
        }
        for id in self.losses.untold.clone() {
            self.take_back(&id);
            self.look_at(&id);
        }
    }

    /// A member that was taken for dead is there, as the process that it was, or has left since. Of one of whom nobody was told
    /// that he died nobody is told so any more: etcd was full, or has denied the leader that.
    pub(super) fn take_back(&mut self, id: &str) {
        let Some(member) = self.members.get(id) else { return };
        let is_it = |node: &Present| node.record.incarnation == member.incarnation;
        let has_lived = member.has_left() || self.nodes.get(id).is_some_and(is_it);
        if has_lived && self.losses.take_back(id) {
            self.change(id, |roster| {
                roster.members.entry(id.to_owned()).and_modify(Member::is_back);
            });
        }
    }

    /// Members that nobody can ask, since etcd has lost their places, are dead if they have not come back.
    pub(in super::super) fn lose_unnamed(&mut self) {
        let unnamed = std::mem::take(&mut self.unnamed);
        self.losses.known += unnamed;
        self.losses.unnamed += unnamed;
    }

    /// Looks at all members anew.
    pub(in super::super) fn look_at_all(&mut self) {
        let mut members: Vec<_> = self.members.iter().map(|(id, member)| (member.rank, id.clone())).collect();
        members.sort();
        for (_, id) in members {
            self.look_at(&id);
        }
    }

    pub(super) fn lose(&mut self, id: &str, why: Why) {
        let Some(Member { rank, .. }) = self.members.get(id).filter(|member| !member.is_told()).copied()
        else {
            return;
        };
        let gone = !self.nodes.contains_key(id);
        self.change(id, |roster| {
            roster.members.entry(id.to_owned()).and_modify(|member| member.is_lost(gone));
        });
        self.losses.add(Lost { node: id.to_owned(), rank, why });
    }

    /// Members of the last round that are there no more, the first few. A process that was taken for dead may be back.
    pub(in super::super) fn gone(&self) -> Vec<Lost> {
        let is_back = |id: &str| match (self.members.get(id), self.nodes.get(id)) {
            (Some(member), Some(node)) => {
                let stays = node.record.wants != Wants::Leave && !self.is_kept_out(id);
                node.record.incarnation == member.incarnation && stays
            }
            _ => false,
        };
        self.losses.gone.iter().filter(|lost| !is_back(&lost.node)).cloned().collect()
    }

    /// Members of the last round that do not come to the next, and of whom that was not told, the first few: who had asked for
    /// it, and whose key is gone since; and who is there, and has not asked.
    pub(in super::super) fn absent(&self) -> Vec<Lost> {
        let why = |id: &String, member: &Member| match self.class(id) {
            Class::Running => Some(Why::Late),
            Class::None if !member.is_told() || self.nodes.contains_key(id) => None,
            Class::None if self.losses.gone.iter().any(|lost| lost.node == *id) => None,
            Class::None if member.has_left() => Some(Why::Left),
            Class::None => Some(Why::Died),
            _ => None,
        };
        let absent = self.members.iter().filter_map(|(id, member)| Some((id, member.rank, why(id, member)?)));
        let mut absent: Vec<Lost> =
            absent.map(|(id, rank, why)| Lost { node: id.clone(), rank, why }).collect();
        absent.sort_by_key(|lost| lost.rank);
        absent.truncate(NAMED_LOSSES);
        absent
    }
}

/// Whether who is lost so is there no more.
fn is_gone(why: Why) -> bool {
    matches!(why, Why::Died | Why::Left | Why::Replaced | Why::Excluded)
}
