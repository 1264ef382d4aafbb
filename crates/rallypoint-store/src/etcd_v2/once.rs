//! Writes that are carried out once, even when the reply is lost.
//!
//! A write that replaces something says what: the index of the last change of the key, or that there is none.
//! Sent twice it can succeed once. When a reply is lost, the server's history tells what came of the write:
//! the first change after that index is either this write, or another one that made it fail.
//!
//! Two clients that add to a counter may write the same sum. So that each knows its own, such a write has a
//! [`Mark`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::Backoff;
use rallypoint_etcd::v2::{Client, Code, Get, Node, Put, Refusal, Response, Watched};
use rallypoint_etcd::{Error, ErrorKind};
use tokio::time::Instant;
use tracing::debug;
use uuid::Uuid;

use crate::deadline::Deadline;
use crate::error::{Result, StoreError};

/// A TTL of more than a hundred years, different each time, by which a write is known again. PyTorch does not
/// look at TTLs, and its next write drops this one.
///
/// It has a price: while any key has a TTL, the servers agree on the time twice a second. So only writes that
/// cannot be told apart otherwise have a mark.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    seconds: u64,
    made: Instant,
}

impl Mark {
    pub(super) fn new() -> Self {
        const YEARS_100: u64 = 100 * 365 * 24 * 3600;
        // Drawn by the system: two processes that were one before a fork would draw the same.
        let random = Uuid::new_v4().as_u64_pair().0;
        Mark { seconds: YEARS_100 + random % YEARS_100, made: Instant::now() }
    }

    fn ttl(self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Whether a node has this mark. A server that was restarted counts from then on, and the clocks of two
    /// servers differ; an hour more is nothing among a hundred years.
    fn is_on(self, node: &Node) -> bool {
        const SLACK: u64 = 3600;
        let Some(ttl) = node.ttl.and_then(|ttl| u64::try_from(ttl).ok()) else { return false };
        let least = self.seconds - self.made.elapsed().as_secs() - SLACK;
        (least..=self.seconds + SLACK).contains(&ttl)
    }
}

/// What a write replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Base {
    /// Nobody has changed the key after this index: that of its last change, or of a look that found nothing.
    pub(super) since: u64,
    /// What is there; none if nothing is.
    pub(super) text: Option<String>,
}

impl Base {
    /// Above this, the text is not sent along to learn from a refusal what is there instead.
    const SHORT: usize = 64;

    fn of(node: Option<&Node>, etcd_index: u64) -> Self {
        match node {
            Some(node) => Base { since: node.modified_index, text: Some(text(node).to_owned()) },
            None => Base { since: etcd_index, text: None },
        }
    }

    fn condition<'a>(&'a self, put: Put<'a>) -> Put<'a> {
        match &self.text {
            None => put.prev_exist(false),
            // The server takes no empty value for a condition.
            Some(text) if text.is_empty() || text.len() > Self::SHORT => put.prev_index(self.since),
            Some(text) => put.prev_index(self.since).prev_value(text),
        }
    }

    /// What is there instead of this, if the refusal says: `[old != new] [1 != 2]`, or only the indexes where
    /// the text is the same.
    fn instead(&self, error: &Error) -> Option<Base> {
        let refusal = Refusal::of(error).filter(|refusal| refusal.code == Code::TestFailed)?;
        let known = self.text.as_deref().filter(|text| !text.is_empty() && text.len() <= Self::SHORT)?;
        let cause = refusal.cause.strip_prefix('[')?.strip_suffix(']')?;
        let (text, indexes) = match cause.split_once("] [") {
            Some((texts, indexes)) => (texts.split_once(" != ")?.1, indexes),
            None => (known, cause),
        };
        let since = indexes.split_once(" != ")?.1.parse().ok()?;
        Some(Base { since, text: Some(text.to_owned()) })
    }
}

/// What a node holds; a directory, which no store makes there, holds nothing.
pub(super) fn text(node: &Node) -> &str {
    node.value.as_deref().unwrap_or_default()
}

/// A write that replaces something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Write<'a> {
    pub(super) what: &'static str,
    pub(super) key: &'a [u8],
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    /// Where another may write the same text.
    pub(super) mark: Option<Mark>,
    /// Removed after this time; a mark has a time of its own.
    pub(super) ttl: Option<Duration>,
}

impl Write<'_> {
    fn is(&self, node: &Node) -> bool {
        node.value.as_deref() == Some(self.text) && self.mark.is_none_or(|mark| mark.is_on(node))
    }

    fn done(&self, node: &Node) -> Swap {
        Swap::Done(Base { since: node.modified_index, text: Some(self.text.to_owned()) })
    }
}

/// What became of a [`Write`].
#[derive(Debug)]
pub(super) enum Swap {
    /// Carried out; this is there now.
    Done(Base),
    /// Not carried out, and it never will be: something else is there, this perhaps.
    Lost(Option<Base>),
}

/// The client, and what it has seen.
#[derive(Debug)]
pub(super) struct Once {
    client: Client,
    /// The highest index of the server that any reply has named.
    seen: AtomicU64,
}

impl Once {
    pub(super) fn new(client: Client) -> Self {
        Once { client, seen: AtomicU64::new(0) }
    }

    /// A client whose requests end with the operation they belong to.
    pub(super) fn client(&self, deadline: Deadline) -> Client {
        self.client.retrying_for(deadline.left())
    }

    pub(super) fn takes(&self, path: &str) -> bool {
        self.client.takes(path)
    }

    fn saw(&self, index: u64) {
        self.seen.fetch_max(index, Ordering::Relaxed);
    }

    /// An index that the server had before now.
    pub(super) async fn index_before(&self, path: &str, deadline: Deadline) -> Result<u64, Error> {
        match self.seen.load(Ordering::Relaxed) {
            0 => Ok(self.find(path, Get::new(), deadline).await?.1),
            seen => Ok(seen),
        }
    }

    /// What is at `path`, and the index of the look.
    pub(super) async fn find(
        &self,
        path: &str,
        options: Get,
        deadline: Deadline,
    ) -> Result<(Option<Node>, u64), Error> {
        let lookup = self.client(deadline).find(path, options).await?;
        self.saw(lookup.etcd_index);
        Ok((lookup.node, lookup.etcd_index))
    }

    /// What a write to `path` would replace.
    pub(super) async fn base(&self, path: &str, deadline: Deadline) -> Result<Base, Error> {
        let (node, index) = self.find(path, Get::new(), deadline).await?;
        Ok(Base::of(node.as_ref(), index))
    }

    /// Carries out `write`, if `base` is what is there.
    pub(super) async fn swap(&self, write: &Write<'_>, base: &Base, deadline: Deadline) -> Result<Swap> {
        let put = base.condition(Put::value(write.text));
        let put = write.mark.map(Mark::ttl).or(write.ttl).map_or(put, |ttl| put.ttl(ttl));
        let mut trouble = Trouble::new(write.what, write.key, deadline);
        loop {
            let error = match self.client(deadline).put(write.path, put).await {
                Ok(answer) => {
                    self.saw(answer.etcd_index);
                    return Ok(write.done(&answer.node));
                }
                Err(error) => error,
            };
            let refused = is_refused(&error);
            if refused && !trouble.in_doubt() {
                return Ok(Swap::Lost(base.instead(&error)));
            }
            if !refused {
                trouble.pause(error).await?;
            }
            if let Some(swap) = self.settle(write, base, deadline, &mut trouble).await? {
                return Ok(swap);
            }
        }
    }

    /// Finds out what became of a write whose reply was lost; nothing, if nothing has happened to the key.
    async fn settle(
        &self,
        write: &Write<'_>,
        base: &Base,
        deadline: Deadline,
        trouble: &mut Trouble<'_>,
    ) -> Result<Option<Swap>> {
        // Agreed on by the cluster, so that the history that is asked next is not behind.
        let (node, index) = match self.find(write.path, Get::new(), deadline).await {
            Ok(found) => found,
            Err(error) => return Err(trouble.give_up(error)),
        };
        let now = Base::of(node.as_ref(), index);
        if now == *base {
            return Ok(None);
        }
        let mut history = self.client(deadline).watch(write.path, base.since + 1);
        match history.past().await {
            Ok(Some(Watched::Event(event))) if write.is(&event.node) => Ok(Some(write.done(&event.node))),
            Ok(Some(Watched::Event(_))) => Ok(Some(Swap::Lost(Some(now)))),
            Ok(None) => Ok(None),
            // What is there now is all there is to go by.
            Ok(Some(Watched::Cleared)) => match node {
                Some(node) if write.is(&node) => Ok(Some(write.done(&node))),
                Some(node) if base.text.is_some() && node.modified_index == base.since => Ok(None),
                _ => Err(trouble.unknown()),
            },
            Err(error) => Err(trouble.give_up(error)),
        }
    }

    /// Whether something happened to `path`, or below it, from index `from` up to `to`; nothing, if the server
    /// does not know any more.
    pub(super) async fn happened(
        &self,
        path: &str,
        (from, to): (u64, u64),
        deadline: Deadline,
        is: impl Fn(&Response) -> bool,
    ) -> Result<Option<bool>, Error> {
        let mut history = self.client(deadline).watch(path, from).recursive();
        while history.from() <= to {
            match history.past().await? {
                Some(Watched::Event(event)) if is(&event) => return Ok(Some(true)),
                Some(Watched::Event(_)) => {}
                Some(Watched::Cleared) => return Ok(None),
                None => break,
            }
        }
        Ok(Some(false))
    }

    pub(super) fn saw_reply(&self, reply: &Response) {
        self.saw(reply.etcd_index);
    }
}

/// Whether the server compared and found something else.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::V2(Code::KeyNotFound | Code::TestFailed | Code::NodeExists))
}

/// The failures of one write so far.
#[derive(Debug)]
pub(super) struct Trouble<'a> {
    what: &'static str,
    key: &'a [u8],
    deadline: Deadline,
    backoff: Backoff,
    /// Why nobody knows whether it was carried out, if so.
    doubt: Option<Error>,
}

impl<'a> Trouble<'a> {
    pub(super) fn new(what: &'static str, key: &'a [u8], deadline: Deadline) -> Self {
        Trouble { what, key, deadline, backoff: Backoff::default(), doubt: None }
    }

    pub(super) fn in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Takes note of a failure and waits a little, if there is a point in going on.
    pub(super) async fn pause(&mut self, error: Error) -> Result<()> {
        if !error.is_transient() || self.deadline.is_over() {
            return Err(self.give_up(error));
        }
        debug!(%error, what = self.what, "a write has failed and is tried again");
        if error.may_have_applied() {
            self.doubt = Some(error);
        }
        tokio::time::sleep(self.backoff.next(fastrand::f64())).await;
        Ok(())
    }

    /// The error to end with.
    pub(super) fn give_up(&mut self, error: Error) -> StoreError {
        let lost = self.doubt.take();
        match lost {
            Some(source) => self.outcome_unknown(source),
            None if error.may_have_applied() => self.outcome_unknown(error),
            None => error.into(),
        }
    }

    /// The error of not being able to find out.
    pub(super) fn unknown(&mut self) -> StoreError {
        let nothing = || Error::new(ErrorKind::Protocol, self.what).because("the history is gone");
        let source = self.doubt.take().unwrap_or_else(nothing);
        self.outcome_unknown(source)
    }

    fn outcome_unknown(&self, source: Error) -> StoreError {
        StoreError::OutcomeUnknown { what: self.what, key: self.key.to_vec(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: &str, ttl: Option<i64>) -> Node {
        Node {
            key: "/p/YQ==".to_owned(),
            value: Some(value.to_owned()),
            dir: false,
            nodes: Vec::new(),
            created_index: 1,
            modified_index: 2,
            ttl,
            expiration: None,
        }
    }

    #[test]
    fn a_write_knows_itself_and_no_other() {
        let mark = Mark { seconds: 4_000_000_000, made: Instant::now() };
        let write =
            Write { what: "add", key: b"a", path: "/p/YQ==", text: "MQ==", mark: Some(mark), ttl: None };
        for (value, ttl, ours) in [
            ("MQ==", Some(4_000_000_000), true),
            // Read by another server, or after a restart.
            ("MQ==", Some(4_000_000_001), true),
            ("MQ==", Some(3_999_999_940), true),
            ("MQ==", Some(3_999_900_000), false),
            ("MQ==", Some(4_000_100_000), false),
            ("MQ==", Some(-1), false),
            ("MQ==", None, false),
            ("Mg==", Some(4_000_000_000), false),
        ] {
            assert_eq!(write.is(&node(value, ttl)), ours, "{value} {ttl:?}");
        }
    }

    #[test]
    fn marks_differ_and_are_within_what_the_server_takes() {
        let marks: std::collections::HashSet<u64> = (0..100).map(|_| Mark::new().seconds).collect();
        assert!(marks.len() > 90);
        assert!(marks.iter().all(|seconds| *seconds <= rallypoint_etcd::v2::MAX_TTL.as_secs()));
    }

    #[test]
    fn a_refusal_tells_what_is_there_instead() {
        let refused = |code, cause: &str| {
            let refusal = Refusal { code, message: String::new(), cause: cause.to_owned(), index: 9 };
            Error::new(ErrorKind::V2(code), "add").because(refusal)
        };
        let base = |since, text: &str| Base { since, text: Some(text.to_owned()) };
        let guess = base(4, "NA==");
        let instead = |code, cause| guess.instead(&refused(code, cause));
        assert_eq!(instead(Code::TestFailed, "[NA== != NQ==] [4 != 5]"), Some(base(5, "NQ==")));
        assert_eq!(instead(Code::TestFailed, "[4 != 7]"), Some(base(7, "NA==")));
        assert_eq!(instead(Code::TestFailed, "something new"), None);
        assert_eq!(instead(Code::KeyNotFound, "/p/YQ=="), None);
        let empty = Base { since: 4, text: Some(String::new()) };
        assert_eq!(empty.instead(&refused(Code::TestFailed, "[4 != 5]")), None, "the text is not known");
        assert_eq!(guess.instead(&Error::new(ErrorKind::Timeout, "add")), None);
    }
}
