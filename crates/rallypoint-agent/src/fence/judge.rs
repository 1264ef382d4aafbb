//! Whether the round of a node that etcd does not answer still stands. No clock, no socket.
//!
//! Times are those since the round's beginning. A round stands, as far as this node can know,
//!
//! - at a moment at which etcd answered this node, or another member that says so, and
//! - for as long as every member that is asked is in it, and etcd answers none of them: then it is away for all. Nodes that
//!   are not in the round cannot be asked, so the user can set a limit to that.
//!
//! A member that does not answer may have died, or be on etcd's side of a cut and in another round by now. So one is
//! enough to doubt, and if neither etcd nor a member takes the doubt away in time, the workers are stopped. A node that
//! has stopped its own says that the round is over, so that the word goes round though nobody asks more than a few.
//!
//! Where a worker has failed, those that hear of it stop theirs for that reason, and say so. That is no word on what came
//! first: only a round that is known to be over was over before.

use std::fmt;
use std::time::Duration;

/// What another member says of the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is in it, and etcd answered it so long ago.
    Stands { age: Duration },
    /// It is in it, and etcd does not answer it either.
    Away,
    /// It is not in it any more. `known`: somebody whom etcd answers has said that the round is over; if not, a worker
    /// has failed, or nobody knew, and other nodes may have stopped for no other reason.
    Over { known: bool },
    /// It has ended well, and etcd was away. It will be in no other round.
    Done,
}

impl Answer {
    /// Whether somebody whom etcd answers is behind it. Where there is one, a run is closed through etcd and not otherwise.
    pub(crate) fn is_by_etcd(self) -> bool {
        matches!(self, Answer::Stands { .. } | Answer::Over { known: true })
    }
}

/// What is known of a member that could be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    /// Where it is has not been read yet.
    Unread,
    /// It does not answer questions: it is of another version, or under torchrun.
    Mute,
    /// It can be asked.
    Known,
}

/// Why workers are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutOff {
    /// A member is not in the round any more.
    MovedOn { rank: usize, known: bool },
    /// For so long, nobody has said that the round stands.
    NoWord { for_long: Duration },
    /// For so long, etcd has been away for all.
    Outage { for_long: Duration },
}

impl CutOff {
    /// Nothing that others say could change it.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, CutOff::MovedOn { .. })
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutOff::MovedOn { rank, .. } => {
                write!(f, "etcd does not serve this node, and node {rank} is in this round no more")
            }
            CutOff::NoWord { for_long } => write!(
                f,
                "for {} s neither etcd nor the other nodes have said that this round still stands",
                for_long.as_secs()
            ),
            CutOff::Outage { for_long } => write!(
                f,
                "etcd has been away for {} s, longer than it may, and another group may have met",
                for_long.as_secs()
            ),
        }
    }
}

/// What the user has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How long the round may be in doubt.
    pub(crate) timeout: Duration,
    /// How long etcd may be away for all.
    pub(crate) outage: Option<Duration>,
}

/// What is known of the round.
#[derive(Debug)]
pub(crate) struct Judge {
    limits: Limits,
    /// It stood then.
    stood: Duration,
    /// When each was last heard to be in the round, or that it is not.
    heard: Vec<Heard>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    In(Duration),
    Over { at: Duration, known: bool },
    Done,
}

impl Judge {
    /// A round with so many members that may be asked.
    pub(crate) fn new(members: usize, limits: Limits) -> Self {
        Judge { limits, stood: Duration::ZERO, heard: vec![Heard::Nothing; members] }
    }

    /// etcd answered this node then.
    pub(crate) fn contact(&mut self, at: Duration) {
        self.stood = self.stood.max(at);
    }

    /// A member has answered.
    pub(crate) fn answered(&mut self, member: usize, now: Duration, answer: Answer) {
        let Some(heard) = self.heard.get_mut(member) else { return };
        *heard = match answer {
            Answer::Stands { age } => {
                self.stood = self.stood.max(now.saturating_sub(age));
                Heard::In(now)
            }
            Answer::Away => Heard::In(now),
            Answer::Over { known } => Heard::Over { at: now, known },
            Answer::Done => Heard::Done,
        };
    }

    /// Whether there is a use in asking this one.
    pub(crate) fn is_open(&self, member: usize) -> bool {
        self.heard.get(member).is_none_or(|heard| *heard != Heard::Done)
    }

    /// Why the workers are to be stopped, if they are. `ranks` are the members'. `failed`: a worker of this node or of
    /// another has, and others may have stopped theirs because of that.
    pub(crate) fn verdict(
        &self,
        now: Duration,
        ranks: &[usize],
        members: &[Member],
        failed: bool,
    ) -> Option<CutOff> {
        let over = self.heard.iter().zip(ranks).filter_map(|(heard, rank)| match *heard {
            Heard::Over { known, .. } if known || !failed => Some((known, *rank)),
            _ => None,
        });
        if let Some((known, rank)) = over.max_by_key(|(known, _)| *known) {
            return Some(CutOff::MovedOn { rank, known });
        }
        let all_in = self.heard.iter().zip(members).map(|(heard, member)| match (heard, member) {
            (Heard::In(at) | Heard::Over { at, .. }, _) => *at,
            // One that has ended, or cannot say, is no reason to doubt.
            (Heard::Done, _) | (_, Member::Mute) => now,
            _ => Duration::ZERO,
        });
        let away = now.saturating_sub(self.stood);
        let for_long = away.min(now.saturating_sub(all_in.min().unwrap_or(now)));
        if for_long >= self.limits.timeout {
            return Some(CutOff::NoWord { for_long });
        }
        self.limits.outage.filter(|outage| away >= *outage).map(|_| CutOff::Outage { for_long: away })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(10), outage: None };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The verdict at `now` of a node that etcd last answered at 100 s, with two members at ranks 4 and 7.
    fn verdict(now: u64, answers: &[(usize, u64, Answer)], members: [Member; 2]) -> Option<CutOff> {
        let mut judge = Judge::new(2, LIMITS);
        judge.contact(s(100));
        judge.contact(s(90));
        for (member, at, answer) in answers {
            judge.answered(*member, s(*at), *answer);
        }
        judge.verdict(s(now), &[4, 7], &members, false)
    }

    /// What it is, when it is judged, who said what and when, who can be asked, and the verdict.
    type Row<'a> = (&'a str, u64, &'a [(usize, u64, Answer)], [Member; 2], Option<CutOff>);

    const KNOWN: [Member; 2] = [Member::Known; 2];

    fn no_word(seconds: u64) -> Option<CutOff> {
        Some(CutOff::NoWord { for_long: s(seconds) })
    }

    #[test]
    fn the_table() {
        use Answer::{Away, Done};
        let over = |known| Answer::Over { known };
        let moved_on = |known| Some(CutOff::MovedOn { rank: 7, known });
        use Member::{Known, Mute, Unread};
        let stands = |age| Answer::Stands { age: s(age) };
        let rows: &[Row<'_>] = &[
            ("etcd answered lately", 109, &[], KNOWN, None),
            ("cut off from everything", 110, &[], KNOWN, no_word(10)),
            ("before anybody is known", 110, &[], [Unread; 2], no_word(10)),
            ("one says that it stands, the other is dead", 114, &[(0, 106, stands(1))], KNOWN, None),
            ("that was too long ago", 115, &[(0, 106, stands(1))], KNOWN, no_word(10)),
            ("what etcd said long ago is no news", 110, &[(0, 109, stands(60))], KNOWN, no_word(10)),
            ("one has moved on", 101, &[(1, 101, over(true))], KNOWN, moved_on(true)),
            ("a worker of one has failed", 101, &[(1, 101, over(false))], KNOWN, moved_on(false)),
            (
                "what is known counts more",
                101,
                &[(0, 101, over(false)), (1, 101, over(true))],
                KNOWN,
                moved_on(true),
            ),
            (
                "that counts more than what another knew",
                103,
                &[(1, 102, over(true)), (0, 103, stands(0))],
                KNOWN,
                moved_on(true),
            ),
            ("away for all", 500, &[(0, 499, Away), (1, 498, Away)], KNOWN, None),
            (
                "away for all, and one does not answer any more",
                119,
                &[(0, 119, Away), (1, 110, Away)],
                KNOWN,
                None,
            ),
            ("for too long", 120, &[(0, 119, Away), (1, 110, Away)], KNOWN, no_word(10)),
            ("away for those that can be reached", 110, &[(0, 109, Away)], KNOWN, no_word(10)),
            ("one cannot say, the other is in it", 500, &[(0, 499, Away)], [Known, Mute], None),
            ("nobody can say", 500, &[], [Mute; 2], None),
            ("one has ended well", 500, &[(0, 200, Away), (0, 201, Done), (1, 499, Away)], KNOWN, None),
        ];
        for (what, now, answers, members, expected) in rows {
            assert_eq!(verdict(*now, answers, *members), *expected, "{what}");
        }
    }

    #[test]
    fn who_stopped_because_of_this_nodes_failure_was_not_first() {
        let mut judge = Judge::new(2, LIMITS);
        judge.contact(s(100));
        let verdict = |judge: &Judge, now| judge.verdict(s(now), &[4, 7], &KNOWN, true);
        judge.answered(0, s(101), Answer::Over { known: false });
        judge.answered(1, s(102), Answer::Away);
        assert_eq!(verdict(&judge, 110), None, "they are there, and in no other round that anybody knows of");
        assert_eq!(verdict(&judge, 112), no_word(11));
        judge.answered(1, s(112), Answer::Over { known: true });
        assert_eq!(verdict(&judge, 112), Some(CutOff::MovedOn { rank: 7, known: true }));
    }

    #[test]
    fn a_close_by_word_of_mouth_counts_where_etcd_answers_nobody() {
        let by_etcd = [Answer::Stands { age: s(1) }, Answer::Over { known: true }];
        let by_itself = [Answer::Away, Answer::Over { known: false }, Answer::Done];
        assert!(by_etcd.iter().all(|answer| answer.is_by_etcd()));
        assert!(!by_itself.iter().any(|answer| answer.is_by_etcd()));
    }

    #[test]
    fn a_node_alone_has_nobody_to_doubt() {
        assert_eq!(Judge::new(0, LIMITS).verdict(s(1000), &[], &[], false), None);
    }

    #[test]
    fn an_outage_for_all_lasts_as_long_as_the_user_lets_it() {
        let limits = Limits { outage: Some(s(60)), ..LIMITS };
        let outage = |seconds| Some(CutOff::Outage { for_long: s(seconds) });
        let alone = Judge::new(0, limits);
        assert_eq!(
            (alone.verdict(s(59), &[], &[], false), alone.verdict(s(60), &[], &[], false)),
            (None, outage(60))
        );
        let mut judge = Judge::new(1, limits);
        judge.contact(s(100));
        judge.answered(0, s(159), Answer::Away);
        let verdict = |judge: &Judge, now| judge.verdict(s(now), &[4], &[Member::Known], false);
        assert_eq!((verdict(&judge, 159), verdict(&judge, 160)), (None, outage(60)));
        judge.answered(0, s(160), Answer::Stands { age: s(1) });
        assert_eq!(verdict(&judge, 160), None);
        assert_eq!(verdict(&judge, 171), Some(CutOff::NoWord { for_long: s(11) }));
    }

    #[test]
    fn who_has_ended_is_asked_no_more() {
        let mut judge = Judge::new(2, LIMITS);
        judge.answered(0, s(1), Answer::Away);
        judge.answered(1, s(1), Answer::Done);
        assert_eq!((judge.is_open(0), judge.is_open(1)), (true, false));
    }
}
