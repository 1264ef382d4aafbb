//! What is known of one connection.

use std::mem;

use crate::wire::{Kind, Scan};
use crate::{Limits, Refusal};

/// What is known of one connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Whether its first message has come.
    validated: bool,
    /// What has come and is not carried out yet.
    input: Vec<u8>,
    /// How far the first message of `input` has been looked through.
    scan: Scan,
    /// Bytes for it that have not left.
    pub(super) unread: usize,
    /// What its wait takes.
    pub(super) waiting: usize,
    /// What counts as pending of `input`, also while that is taken out.
    kept: usize,
}

impl Connection {
    /// What it makes the server hold, but for what it stores and does not read.
    pub(super) fn pending(&self) -> usize {
        self.kept + self.waiting
    }

    pub(super) fn take_input(&mut self) -> Vec<u8> {
        mem::take(&mut self.input)
    }

    pub(super) fn put_back(&mut self, mut input: Vec<u8>) {
        // An idle connection holds no memory for what it has sent.
        if input.len() < input.capacity() / 4 {
            input.shrink_to_fit();
        }
        self.kept = input.len();
        self.input = input;
    }

    /// The length of the message that `data` begins with, once it is whole. The first has to be the one that tells a
    /// client of a `TCPStore`, and no other is.
    pub(super) fn next_message(&mut self, data: &[u8], limits: &Limits) -> Result<Option<usize>, Refusal> {
        let Some(&number) = data.first() else { return Ok(None) };
        match (self.validated, Kind::of(number)) {
            (false, Some(Kind::Validate)) => {}
            (false, _) => return Err(Refusal::NotTcpStore),
            (true, Some(Kind::Validate)) => return Err(Refusal::UnknownMessage(number)),
            (true, _) => {}
        }
        let length = self.scan.advance(data, limits)?;
        if length.is_some() {
            self.validated = true;
            self.scan = Scan::default();
        }
        Ok(length)
    }
}
