//! Which of a worker's streams go to files: torchrun's `--redirects` and `--tee`.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

/// Streams of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Its standard output.
    pub out: bool,
    /// Its standard error.
    pub err: bool,
}

impl Streams {
    /// Those of either.
    #[must_use]
    pub fn and(self, other: Streams) -> Streams {
        Streams { out: self.out || other.out, err: self.err || other.err }
    }
}

/// Streams by worker: the same for all, or by local rank.
///
/// ```
/// use rallypoint_agent::StreamChoice;
///
/// let choice: StreamChoice = "0:1,1:2".parse()?;
/// assert!(choice.of(0).out && choice.of(1).err && !choice.of(2).out);
/// # Ok::<(), rallypoint_agent::StreamChoiceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamChoice {
    /// The same for all.
    All(Streams),
    /// By local rank; none for those not named.
    Some(BTreeMap<usize, Streams>),
}

impl Default for StreamChoice {
    fn default() -> Self {
        StreamChoice::All(Streams::default())
    }
}

impl StreamChoice {
    /// The streams of one worker.
    #[must_use]
    pub fn of(&self, local_rank: usize) -> Streams {
        match self {
            StreamChoice::All(streams) => *streams,
            StreamChoice::Some(streams) => streams.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

impl StreamChoice {
    /// Whether it chooses any at all.
    #[must_use]
    pub fn any(&self) -> bool {
        let chosen = |streams: &Streams| streams.out || streams.err;
        match self {
            StreamChoice::All(streams) => chosen(streams),
            StreamChoice::Some(streams) => streams.values().any(chosen),
        }
    }

    /// The highest local rank that is named.
    #[must_use]
    pub fn last_named(&self) -> Option<usize> {
        match self {
            StreamChoice::All(_) => None,
            StreamChoice::Some(streams) => streams.keys().next_back().copied(),
        }
    }
}

/// A choice that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} chooses no streams: write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or LOCAL_RANK:CHOICE,... for some workers"
)]
pub struct StreamChoiceError(String);

impl FromStr for StreamChoice {
    type Err = StreamChoiceError;

    fn from_str(text: &str) -> Result<Self, StreamChoiceError> {
        let error = || StreamChoiceError(text.to_owned());
        let streams = |digit: &str| match digit.trim() {
            "0" => Ok(Streams::default()),
            "1" => Ok(Streams { out: true, err: false }),
            "2" => Ok(Streams { out: false, err: true }),
            "3" => Ok(Streams { out: true, err: true }),
            _ => Err(error()),
        };
        if !text.contains(':') {
            return streams(text).map(StreamChoice::All);
        }
        let one = |entry: &str| {
            let (rank, digit) = entry.split_once(':').ok_or_else(error)?;
            Ok((rank.trim().parse().map_err(|_| error())?, streams(digit)?))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(StreamChoice::Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn torchruns_syntax_is_understood_and_nothing_else() {
        let both = Streams { out: true, err: true };
        assert_eq!("3".parse(), Ok(StreamChoice::All(both)));
        let some: StreamChoice = "0:3,12:0".parse().unwrap();
        assert_eq!((some.any(), some.last_named()), (true, Some(12)));
        assert!(!"0".parse::<StreamChoice>().unwrap().any());
        assert_eq!((some.of(0), some.of(12), some.of(1)), (both, Streams::default(), Streams::default()));
        for text in ["", "4", "0:", "a:1", "0:1,2", "-1"] {
            assert!(text.parse::<StreamChoice>().is_err(), "{text}");
        }
    }
}
