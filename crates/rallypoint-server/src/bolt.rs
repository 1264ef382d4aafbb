//! A file of bbolt, the database that etcd keeps its data in, written from the first page to the last.
//!
//! There is no library for it. What etcd's tools need is a tree of pages for each bucket, and since all is known and in order
//! from the start, each page is filled and never changed: first the plan, which knows how much goes on each page, then
//! the pages, one after the other, without ever holding the file in memory.

use std::ops::Range;

/// What a page has, unless an entry is larger.
const PAGE: usize = 4096;
/// Before the content of a page: its number, its kind, how many entries it has and how many pages follow that belong to it.
const PAGE_HEAD: usize = 16;
/// For each entry, beside its key and value.
const ENTRY_HEAD: usize = 16;
/// Two pages that tell where the tree is, and one for the list of free pages, of which there are none.
const META_PAGES: u64 = 2;
const FREE_LIST: u64 = 2;
const FIRST_PAGE: u64 = 3;

/// Kinds of pages.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE: u16 = 0x10;
/// The flag of an entry that is a bucket.
const IS_BUCKET: u32 = 1;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// The entries of a bucket, in the order of their keys.
pub(crate) trait Entries {
    fn len(&self) -> usize;
    fn key(&self, at: usize) -> Vec<u8>;
    fn key_length(&self, at: usize) -> usize;
    fn value_length(&self, at: usize) -> usize;
    fn write_value(&self, at: usize, out: &mut Vec<u8>);
}

/// Entries that are few.
impl Entries for Vec<(Vec<u8>, Vec<u8>)> {
    fn len(&self) -> usize {
        self.len()
    }

    fn key(&self, at: usize) -> Vec<u8> {
        self[at].0.clone()
    }

    fn key_length(&self, at: usize) -> usize {
        self[at].0.len()
    }

    fn value_length(&self, at: usize) -> usize {
        self[at].1.len()
    }

    fn write_value(&self, at: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self[at].1);
    }
}

type Bucket = Box<dyn Entries + Send + Sync>;

/// A file that is written page by page.
pub(crate) struct File {
    buckets: Vec<Bucket>,
    /// All but the first three, in the order of their numbers.
    pages: Vec<Page>,
    /// The page with the names of the buckets.
    root: u64,
    /// The number after the last page.
    end: u64,
    /// The page to be written next: its place in `pages`, the first three not among them.
    next: usize,
}

#[derive(Debug, Clone)]
struct Page {
    number: u64,
    /// Pages that follow it and belong to it.
    overflow: u32,
    bucket: usize,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// Entries of its bucket.
    Leaf(Range<usize>),
    /// Pages, by their places.
    Branch(Range<usize>),
    /// The buckets themselves, each with the number of its page.
    Names(Vec<(Vec<u8>, u64)>),
}

impl File {
    /// Plans a file with these buckets, in the order of their names.
    pub(crate) fn new(buckets: Vec<(&str, Bucket)>) -> Self {
        let mut file = File { buckets: Vec::new(), pages: Vec::new(), root: 0, end: FIRST_PAGE, next: 0 };
        let mut names = Vec::new();
        for (at, (name, bucket)) in buckets.into_iter().enumerate() {
            file.buckets.push(bucket);
            let root = file.plan(at);
            names.push((name.as_bytes().to_vec(), root));
        }
        let bytes = names.iter().map(|(name, _)| ENTRY_HEAD + name.len() + BUCKET_BYTES).sum();
        file.root = file.add(0, Content::Names(names), bytes);
        file
    }

    /// The bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.end * PAGE as u64
    }

    /// Roughly the memory of the plan.
    pub(crate) fn weight(&self) -> usize {
        self.pages.len() * size_of::<Page>()
    }

    /// Plans the pages of a bucket, from the entries up; the number of the topmost.
    fn plan(&mut self, bucket: usize) -> u64 {
        let entries = self.buckets[bucket].len();
        let sizes = |file: &File, at: usize| {
            let entries = &file.buckets[bucket];
            ENTRY_HEAD + entries.key_length(at) + entries.value_length(at)
        };
        let mut level = self.fill(bucket, 0..entries, sizes, Content::Leaf);
        while level.len() > 1 {
            let sizes = |file: &File, at: usize| ENTRY_HEAD + file.first_key_length(&file.pages[at]);
            level = self.fill(bucket, level, sizes, Content::Branch);
        }
        self.pages[level.start].number
    }

    /// Puts as many on each page as it has room for; the places of the pages. There is always one.
    fn fill(
        &mut self,
        bucket: usize,
        all: Range<usize>,
        size: impl Fn(&File, usize) -> usize,
        content: impl Fn(Range<usize>) -> Content,
    ) -> Range<usize> {
        let (first, mut start, mut bytes) = (self.pages.len(), all.start, 0);
        for at in all.clone() {
            let more = size(self, at);
            // A branch of one would be no step up.
            if at > start + 1 && PAGE_HEAD + bytes + more > PAGE {
                self.add(bucket, content(start..at), bytes);
                (start, bytes) = (at, 0);
            }
            bytes += more;
        }
        self.add(bucket, content(start..all.end), bytes);
        first..self.pages.len()
    }

    fn add(&mut self, bucket: usize, content: Content, bytes: usize) -> u64 {
        let number = self.end;
        let pages = (PAGE_HEAD + bytes).div_ceil(PAGE);
        let overflow = u32::try_from(pages - 1).unwrap_or(u32::MAX);
        self.pages.push(Page { number, overflow, bucket, content });
        self.end += pages as u64;
        number
    }

    /// The entry that a page, or the first below it, begins with.
    fn first(&self, page: &Page) -> usize {
        match &page.content {
            Content::Leaf(entries) => entries.start,
            Content::Branch(pages) => self.first(&self.pages[pages.start]),
            Content::Names(_) => 0,
        }
    }

    fn first_key_length(&self, page: &Page) -> usize {
        self.buckets[page.bucket].key_length(self.first(page))
    }

    fn write(&self, page: &Page) -> Vec<u8> {
        let entries = &self.buckets[page.bucket];
        match &page.content {
            Content::Leaf(range) => {
                let mut out = Writing::new(page, LEAF, range.len());
                for at in range.clone() {
                    let (key, value) = (entries.key(at), entries.value_length(at));
                    out.leaf(0, &key, value, |out| entries.write_value(at, out));
                }
                out.end()
            }
            Content::Branch(range) => {
                let mut out = Writing::new(page, BRANCH, range.len());
                for below in &self.pages[range.clone()] {
                    out.branch(&self.buckets[below.bucket].key(self.first(below)), below.number);
                }
                out.end()
            }
            Content::Names(names) => {
                let mut out = Writing::new(page, LEAF, names.len());
                for (name, root) in names {
                    out.leaf(IS_BUCKET, name, BUCKET_BYTES, |out| {
                        out.extend_from_slice(&root.to_le_bytes());
                        // Its sequence.
                        out.extend_from_slice(&0u64.to_le_bytes());
                    });
                }
                out.end()
            }
        }
    }

    /// The first three pages.
    fn head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(3 * PAGE);
        for number in 0..META_PAGES {
            page_head(&mut out, number, META, 0, 0);
            let start = out.len();
            for field in [MAGIC, VERSION, u32::try_from(PAGE).expect("it is small"), 0] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            // The page of the buckets and its sequence, the free list, the end, and the transaction: the higher counts.
            for field in [self.root, 0, FREE_LIST, self.end, number] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            let checksum = fnv1a(&out[start..]);
            out.extend_from_slice(&checksum.to_le_bytes());
            out.resize((usize::try_from(number).unwrap_or(0) + 1) * PAGE, 0);
        }
        page_head(&mut out, FREE_LIST, FREE, 0, 0);
        out.resize(3 * PAGE, 0);
        out
    }
}

/// The bytes of a file, a page with what belongs to it at a time.
impl Iterator for File {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let next = self.next;
        self.next += 1;
        match next.checked_sub(1) {
            None => Some(self.head()),
            Some(at) => self.pages.get(at).map(|page| self.write(page)),
        }
    }
}

/// What stands for a bucket among the names.
const BUCKET_BYTES: usize = 16;

/// A page that is being written: the heads of its entries first, then their keys and values.
struct Writing {
    out: Vec<u8>,
    /// Where the head of the next entry goes.
    head: usize,
    length: usize,
}

impl Writing {
    fn new(page: &Page, kind: u16, count: usize) -> Self {
        let length = (page.overflow as usize + 1) * PAGE;
        let mut out = Vec::with_capacity(length);
        let count = u16::try_from(count).expect("a page has room for far fewer");
        page_head(&mut out, page.number, kind, count, page.overflow);
        out.resize(PAGE_HEAD + usize::from(count) * ENTRY_HEAD, 0);
        Writing { out, head: PAGE_HEAD, length }
    }

    fn leaf(&mut self, flags: u32, key: &[u8], value: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let head = [flags, self.offset(), small(key.len()), small(value)];
        self.put_head(head.iter().flat_map(|field| field.to_le_bytes()));
        self.out.extend_from_slice(key);
        write(&mut self.out);
    }

    fn branch(&mut self, key: &[u8], number: u64) {
        let head = [self.offset(), small(key.len())];
        self.put_head(head.iter().flat_map(|field| field.to_le_bytes()).chain(number.to_le_bytes()));
        self.out.extend_from_slice(key);
    }

    /// How far the key is from the head.
    fn offset(&self) -> u32 {
        small(self.out.len() - self.head)
    }

    fn put_head(&mut self, head: impl Iterator<Item = u8>) {
        for (to, byte) in self.out[self.head..self.head + ENTRY_HEAD].iter_mut().zip(head) {
            *to = byte;
        }
        self.head += ENTRY_HEAD;
    }

    fn end(mut self) -> Vec<u8> {
        debug_assert!(self.out.len() <= self.length, "the plan had room for it");
        self.out.resize(self.length, 0);
        self.out
    }
}

fn page_head(out: &mut Vec<u8>, number: u64, kind: u16, count: u16, overflow: u32) {
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&overflow.to_le_bytes());
}

/// Keys and values are shorter than a request.
fn small(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}
