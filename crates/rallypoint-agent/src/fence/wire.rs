//! What agents say to each other: one question and one answer, of fixed length, on a connection of their own; or, unasked, what
//! one knows.
//!
//! ```text
//! question   "RPF" 1  key(16)   seat(16)
//! answer     "RPF" 1  proof(16) word(1)  age in ms, big endian(4)
//! news       JSON up to the end of the connection, where the round is over and the node knows why
//!
//! telling    "RPF" 2  key(16)   seat(16)
//! news       JSON up to the end of the connection
//!
//! finish     "RPF" 3  key(16)   seat(16)  rank of who has finished, big endian(4)
//! ```
//!
//! An agent that knows no news sends none and reads none: the answer alone is whole. One that does not know a telling or a finish
//! hangs up. A telling may also be the answer to what it repeats, of a node that etcd does not let answer.
//!
//! Key, seat and proof are random. Each node writes its own to the round's store, so that only who can read that may ask,
//! and nobody else can answer in its place. They keep strangers out, and not those who can read along.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::judge::Answer;
use crate::notice::Notice;

/// The first bytes of a question and of its answer.
const MAGIC: [u8; 4] = *b"RPF\x01";
/// The first bytes of a telling.
const TELLS: [u8; 4] = *b"RPF\x02";
/// The first bytes of a finish.
const FINISHES: [u8; 4] = *b"RPF\x03";
pub(super) const QUESTION: usize = 36;
pub(super) const ANSWER: usize = 25;
/// More than any notice has.
pub(super) const MOST_NEWS: u64 = 1 << 20;

/// Whether the node with this key has this seat still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) key: Uuid,
    /// The node's place in one round.
    pub(super) seat: Uuid,
}

impl Question {
    pub(super) fn write(self) -> [u8; QUESTION] {
        self.after(MAGIC)
    }

    /// The beginning of a telling, to the same node in the same place.
    pub(super) fn write_telling(self) -> [u8; QUESTION] {
        self.after(TELLS)
    }

    /// That the node with this rank has finished, for the same node in the same place.
    pub(super) fn write_finish(self, rank: u32) -> Vec<u8> {
        [&self.after(FINISHES)[..], &rank.to_be_bytes()].concat()
    }

    fn after(self, magic: [u8; 4]) -> [u8; QUESTION] {
        let mut bytes = [0; QUESTION];
        bytes[..4].copy_from_slice(&magic);
        bytes[4..20].copy_from_slice(self.key.as_bytes());
        bytes[20..].copy_from_slice(self.seat.as_bytes());
        bytes
    }
}

/// What somebody wants who comes to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// To be answered.
    Ask(Question),
    /// To tell what it knows of the round of this question.
    Tell(Question),
    /// To tell that it has finished its part of that round; its rank follows.
    Finish(Question),
}

impl Request {
    /// None for what a stranger says, or another version.
    pub(super) fn read(bytes: &[u8; QUESTION]) -> Option<Self> {
        let id = |from: usize| Uuid::from_slice(&bytes[from..from + 16]).ok();
        let question = Question { key: id(4)?, seat: id(20)? };
        match [bytes[0], bytes[1], bytes[2], bytes[3]] {
            MAGIC => Some(Request::Ask(question)),
            TELLS => Some(Request::Tell(question)),
            FINISHES => Some(Request::Finish(question)),
            _ => None,
        }
    }
}

pub(super) fn write_answer(proof: Uuid, answer: Answer) -> [u8; ANSWER] {
    let (word, age) = match answer {
        Answer::Stands { age } => (0, age),
        Answer::Away => (1, Duration::ZERO),
        Answer::Over { known: false } => (2, Duration::ZERO),
        Answer::Done => (3, Duration::ZERO),
        Answer::Over { known: true } => (4, Duration::ZERO),
    };
    let age = u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
    let mut bytes = [0; ANSWER];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..20].copy_from_slice(proof.as_bytes());
    bytes[20] = word;
    bytes[21..].copy_from_slice(&age.to_be_bytes());
    bytes
}

/// None for what the node with this proof did not say, or in words of another version.
pub(super) fn read_answer(bytes: &[u8; ANSWER], proof: Uuid) -> Option<Answer> {
    if bytes[..4] != MAGIC || bytes[4..20] != *proof.as_bytes() {
        return None;
    }
    let age = u32::from_be_bytes([bytes[21], bytes[22], bytes[23], bytes[24]]);
    Some(match bytes[20] {
        0 => Answer::Stands { age: Duration::from_millis(age.into()) },
        1 => Answer::Away,
        2 => Answer::Over { known: false },
        3 => Answer::Done,
        4 => Answer::Over { known: true },
        _ => return None,
    })
}

/// Why a round is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct News {
    /// What came first, as far as the node knows.
    pub(super) notice: Notice,
    /// The run was closed because of it.
    pub(super) closes: bool,
    /// The place of the node that tells it, if that answers it by this: it has heard of it, and lived then. Earlier versions do
    /// not know that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered: Option<usize>,
}

impl News {
    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// None where there is nothing, or what another version says.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// What is known of both. Nothing comes after the run's end, and so nothing takes back why it was closed.
    pub(super) fn and(self, other: News) -> News {
        match (self.closes, other.closes) {
            (true, false) => self,
            (false, true) => other,
            (closes, _) => News { notice: self.notice.earlier(other.notice), closes, answered: None },
        }
    }
}

/// Where a node is asked about its round, as it stands in the round's store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Whereabouts {
    pub(super) address: String,
    pub(super) port: u16,
    key: String,
    seat: String,
    proof: String,
}

impl Whereabouts {
    pub(super) fn new(address: &str, port: u16, question: Question, proof: Uuid) -> Self {
        let text = |id: Uuid| id.simple().to_string();
        Whereabouts {
            address: address.to_owned(),
            port,
            key: text(question.key),
            seat: text(question.seat),
            proof: text(proof),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(super) fn question(&self) -> Option<Question> {
        let id = |text: &str| Uuid::parse_str(text).ok();
        Some(Question { key: id(&self.key)?, seat: id(&self.seat)? })
    }

    pub(super) fn proof(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.proof).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let question = Question { key: Uuid::new_v4(), seat: Uuid::new_v4() };
        assert_eq!(Request::read(&question.write()), Some(Request::Ask(question)));
        assert_eq!(Request::read(&question.write_telling()), Some(Request::Tell(question)));
        let finish = question.write_finish(7);
        let (head, rank) = finish.split_at(QUESTION);
        assert_eq!(Request::read(head.try_into().unwrap()), Some(Request::Finish(question)));
        assert_eq!(rank, 7_u32.to_be_bytes());
        let mut other = question.write();
        other[3] = 4;
        assert_eq!(Request::read(&other), None, "another version");

        let proof = Uuid::new_v4();
        let age = Duration::from_millis(4321);
        for answer in [
            Answer::Stands { age },
            Answer::Away,
            Answer::Over { known: false },
            Answer::Over { known: true },
            Answer::Done,
        ] {
            let bytes = write_answer(proof, answer);
            assert_eq!(read_answer(&bytes, proof), Some(answer));
            assert_eq!(read_answer(&bytes, Uuid::new_v4()), None, "somebody else's");
        }
        let mut unknown = write_answer(proof, Answer::Done);
        unknown[20] = 9;
        assert_eq!(read_answer(&unknown, proof), None);
        let ages = write_answer(proof, Answer::Stands { age: Duration::MAX });
        assert_eq!(
            read_answer(&ages, proof),
            Some(Answer::Stands { age: Duration::from_millis(u32::MAX.into()) })
        );

        let whereabouts = Whereabouts::new("::1", 7, question, proof);
        assert_eq!(Whereabouts::read(&whereabouts.write()), Some(whereabouts.clone()));
        assert_eq!((whereabouts.question(), whereabouts.proof()), (Some(question), Some(proof)));
        assert_eq!(Whereabouts::read(b"{}"), None);
    }
}
