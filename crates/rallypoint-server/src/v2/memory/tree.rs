//! Files and directories.

use bytes::Bytes;
use rpds::RedBlackTreeMapSync;

use crate::v2::wire::{Action, Event, Path, Time, View};

/// About what a node costs beside its path and its value.
const NODE_WEIGHT: usize = 128;

/// A file or a directory. It does not know where it is; whoever found it does.
///
/// A clone is cheap, however much is in it: both share it, and whoever changes something copies only the way to that. So a
/// listing is made of a clone, while others go on with the tree.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) created: u64,
    pub(crate) modified: u64,
    pub(crate) expires: Option<Time>,
    pub(crate) content: Content,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    File(Bytes),
    /// In the order of the names, so that every listing is sorted.
    Dir(RedBlackTreeMapSync<Bytes, Node>),
}

impl Content {
    pub(crate) fn empty_dir() -> Self {
        Content::Dir(RedBlackTreeMapSync::new_sync())
    }
}

/// A node at a moment, to be listed where nobody waits for the tree.
#[derive(Debug)]
pub(crate) struct Listing {
    path: Path,
    node: Node,
    now: Time,
    recursive: bool,
}

impl Listing {
    pub(super) fn new(path: Path, node: Node, now: Time, recursive: bool) -> Self {
        Listing { path, node, now, recursive }
    }

    /// Whether it is so small that it is made at once.
    pub(crate) fn is_small(&self) -> bool {
        const SMALL: usize = 1_000;
        match &self.node.content {
            Content::Dir(children) if !self.recursive => children.size() <= SMALL,
            _ => self.node.has_at_most(SMALL),
        }
    }

    /// About the memory that the answer takes.
    pub(crate) fn weight(&self) -> usize {
        let mut weight = self.node.weight(&self.path);
        let mut add = |path: usize, node: &Node| {
            weight += size_of::<View>() + path + node.value().map_or(0, Bytes::len);
        };
        match &self.node.content {
            Content::Dir(children) if !self.recursive => {
                let path = self.path.as_bytes().len() + 1;
                children.iter().for_each(|(name, child)| add(path + name.len(), child));
            }
            _ => self.node.measure_below(self.path.as_bytes().len(), &mut add),
        }
        weight
    }

    /// The answer. It may have much to do, and needs no tree.
    pub(crate) fn event(&self) -> Event {
        Event::new(Action::Get, self.node.listing(self.path.clone(), self.now, self.recursive), None)
    }
}

/// Why there is no node at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// Nothing is at this path.
    Missing(Path),
    /// A file is where a directory is needed.
    File(Path),
}

impl Node {
    pub(crate) fn new(index: u64, expires: Option<Time>, content: Content) -> Self {
        Node { created: index, modified: index, expires, content }
    }

    /// The same, without what is in it.
    pub(crate) fn bare(&self) -> Self {
        let content = match &self.content {
            Content::File(value) => Content::File(value.clone()),
            Content::Dir(_) => Content::empty_dir(),
        };
        Node { content, ..*self }
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.content, Content::Dir(_))
    }

    pub(crate) fn is_empty_dir(&self) -> bool {
        matches!(&self.content, Content::Dir(children) if children.is_empty())
    }

    pub(crate) fn value(&self) -> Option<&Bytes> {
        match &self.content {
            Content::File(value) => Some(value),
            Content::Dir(_) => None,
        }
    }

    /// About the memory it takes at `path`, without what is in it. The whole path counts: a listing repeats
    /// it.
    pub(crate) fn weight(&self, path: &Path) -> usize {
        Node::weight_of(path, self.value().map_or(0, Bytes::len))
    }

    /// The weight of a node with a value of this size.
    pub(crate) fn weight_of(path: &Path, value: usize) -> usize {
        NODE_WEIGHT + path.as_bytes().len() + value
    }

    /// The node at `path`, seen from the root.
    pub(crate) fn find(&self, path: &Path) -> Result<&Node, PathError> {
        let mut node = self;
        for (depth, name) in path.names().enumerate() {
            let Content::Dir(children) = &node.content else {
                return Err(PathError::File(ancestor(path, depth)));
            };
            node = children.get(name).ok_or_else(|| PathError::Missing(ancestor(path, depth + 1)))?;
        }
        Ok(node)
    }

    /// Like [`Node::find`], to change it. None where there is nothing.
    pub(crate) fn find_mut(&mut self, path: &Path) -> Option<&mut Node> {
        let mut node = self;
        for name in path.names() {
            let Content::Dir(children) = &mut node.content else { return None };
            node = children.get_mut(name)?;
        }
        Some(node)
    }

    /// How the node at `path` looks; a directory without what is in it.
    pub(crate) fn view(&self, path: Path, now: Time) -> View {
        View {
            path,
            value: self.value().cloned(),
            dir: self.is_dir(),
            expires: self.expires.map(|end| (end, end.ttl(now))),
            nodes: Vec::new(),
            modified: self.modified,
            created: self.created,
        }
    }

    /// How it looks with what is in it, hidden nodes left out.
    pub(crate) fn listing(&self, path: Path, now: Time, recursive: bool) -> View {
        let nodes = match &self.content {
            Content::File(_) => Vec::new(),
            Content::Dir(children) => children
                .iter()
                .filter(|(name, _)| !name.starts_with(b"_"))
                .map(|(name, child)| match recursive {
                    true => child.listing(path.child(name), now, true),
                    false => child.view(path.child(name), now),
                })
                .collect(),
        };
        View { nodes, ..self.view(path, now) }
    }

    /// Whether no more than so many nodes are below it.
    pub(crate) fn has_at_most(&self, most: usize) -> bool {
        fn count(node: &Node, left: &mut usize) -> bool {
            let Content::Dir(children) = &node.content else { return true };
            children.size() <= *left && {
                *left -= children.size();
                children.values().all(|child| count(child, left))
            }
        }
        count(self, &mut { most })
    }

    /// Calls for every node below this one, with the length of its path. That of this one is given.
    fn measure_below(&self, path: usize, f: &mut impl FnMut(usize, &Node)) {
        if let Content::Dir(children) = &self.content {
            for (name, child) in children {
                let path = path + 1 + name.len();
                child.measure_below(path, f);
                f(path, child);
            }
        }
    }

    /// Whether a node is where these names lead.
    pub(crate) fn has<'a>(&self, mut names: impl Iterator<Item = &'a [u8]>) -> bool {
        let found = names.try_fold(self, |node, name| match &node.content {
            Content::Dir(children) => children.get(name),
            Content::File(_) => None,
        });
        found.is_some()
    }

    /// Calls `f` for every node below this one, which is at `path`.
    pub(crate) fn for_each_below(&self, path: &Path, f: &mut impl FnMut(&Path, &Node)) {
        if let Content::Dir(children) = &self.content {
            for (name, child) in children {
                let path = path.child(name);
                child.for_each_below(&path, f);
                f(&path, child);
            }
        }
    }
}

/// The path made of the first `depth` names.
fn ancestor(path: &Path, depth: usize) -> Path {
    path.lineage().nth(depth).unwrap_or_else(|| path.clone())
}
