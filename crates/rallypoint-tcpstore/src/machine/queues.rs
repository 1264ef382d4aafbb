//! The queues. They are apart from the keys: a queue and a key can have one name, and queues are not counted as keys.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::value::{Alive, Value};

use super::size::Size;

/// The queues. One that is empty is not there.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: HashMap<Box<[u8]>, VecDeque<Arc<Value>>>,
    size: Size,
}

impl Queues {
    pub(super) fn len(&self, name: &[u8]) -> usize {
        self.queues.get(name).map_or(0, VecDeque::len)
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn push(&mut self, name: &[u8], value: Vec<u8>, alive: &Alive) {
        self.size.values += value.len();
        self.size.add_entry(name);
        let value = Arc::new(Value::new(value, alive));
        match self.queues.get_mut(name) {
            Some(queue) => queue.push_back(value),
            None => {
                self.queues.insert(name.into(), VecDeque::from([value]));
            }
        }
    }

    pub(super) fn pop(&mut self, name: &[u8]) -> Option<Arc<Value>> {
        let queue = self.queues.get_mut(name)?;
        let value = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(name);
        }
        self.size.values -= value.data().len();
        self.size.remove_entry(name);
        Some(value)
    }
}
