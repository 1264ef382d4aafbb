//! The programs and libraries that a process has loaded: how to find the caller of a place in them, and its name.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use framehop::{ExplicitModuleSectionInfo, Module as UnwindModule};
use object::read::elf::ElfFile64;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, ReadCache, SymbolIndex, SymbolKind,
};

use crate::frame::Frame;

/// Code of a file in the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    offset: u64,
    path: String,
}

/// What of the memory of a process is code of a file.
pub(crate) fn mappings(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.nth(2)?.trim_start();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    (rights.contains('x') && path.starts_with('/') && !path.ends_with(" (deleted)")).then_some(()).and_then(
        |()| Some(Mapping { range: hex(start)?..hex(end)?, offset: hex(offset)?, path: path.to_owned() }),
    )
}

/// The files of all processes that are looked at: workers have the same, and some are large.
#[derive(Debug, Default)]
pub(crate) struct Libraries(Mutex<HashMap<String, Option<Arc<Library>>>>);

impl Libraries {
    /// The file of a mapping, as the process sees it.
    fn open(&self, pid: u32, path: &str) -> Option<Arc<Library>> {
        let mut known = lock(&self.0);
        if let Some(library) = known.get(path) {
            return library.clone();
        }
        let library = Library::open(pid, path).map(Arc::new);
        known.insert(path.to_owned(), library.clone());
        library
    }
}

/// A file with code.
#[derive(Debug)]
struct Library {
    name: String,
    file: Mutex<ReadCache<File>>,
    /// Where its code is, in the file and in memory.
    code: Vec<(Range<u64>, u64)>,
    sections: Sections,
    /// Where its functions are, in order, and which of its tables has their names.
    functions: OnceLock<Vec<(Range<u64>, SymbolIndex, Table)>>,
}

/// A table of symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    All,
    Exported,
}

#[derive(Debug, Default)]
struct Sections {
    text: Option<Range<u64>>,
    got: Option<Range<u64>>,
    eh_frame: Option<(Range<u64>, Arc<[u8]>)>,
    eh_frame_hdr: Option<(Range<u64>, Arc<[u8]>)>,
}

type Elf<'a> = ElfFile64<'a, object::Endianness, &'a ReadCache<File>>;

impl Library {
    fn open(pid: u32, path: &str) -> Option<Self> {
        let inside = File::open(format!("/proc/{pid}/root{path}"));
        let cache = ReadCache::new(inside.or_else(|_| File::open(path)).ok()?);
        let elf = Elf::parse(&cache).ok()?;
        // A map begins at a whole page, a segment may not.
        let page = 0xfff;
        let code = elf.segments().filter(is_code).map(|segment| {
            let (offset, size) = segment.file_range();
            let pages = offset & !page..(offset + size + page) & !page;
            (pages, segment.address().wrapping_sub(offset & page))
        });
        let code = code.collect();
        let range = |name: &str| {
            let section = elf.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let with_data = |name: &str| {
            let data = elf.section_by_name(name)?.data().ok()?;
            Some((range(name)?, Arc::from(data)))
        };
        let sections = Sections {
            text: range(".text"),
            got: range(".got"),
            eh_frame: with_data(".eh_frame"),
            eh_frame_hdr: with_data(".eh_frame_hdr"),
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Library { name, code, sections, functions: OnceLock::new(), file: Mutex::new(cache) })
    }

    /// The function at an address of the file.
    fn function(&self, address: u64) -> Option<String> {
        let cache = lock(&self.file);
        let elf = Elf::parse(&*cache).ok()?;
        let functions = self.functions.get_or_init(|| functions(&elf));
        let after = functions.partition_point(|(code, ..)| code.start <= address);
        // Functions may have several names, and lie within others; the nearest has it.
        let nearest = functions[..after].iter().rev().take(8).find(|(code, ..)| code.contains(&address));
        let (_, index, table) = nearest?;
        let table = if *table == Table::All { elf.symbol_table() } else { elf.dynamic_symbol_table() };
        table?.symbol_by_index(*index).ok()?.name().ok().map(demangled)
    }
}

fn functions(elf: &Elf<'_>) -> Vec<(Range<u64>, SymbolIndex, Table)> {
    let all = elf.symbols().map(|symbol| (symbol, Table::All));
    let exported = elf.dynamic_symbols().map(|symbol| (symbol, Table::Exported));
    let named =
        all.chain(exported).filter(|(symbol, _)| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let code = |address: u64, size: u64| address..address.saturating_add(size);
    let mut functions: Vec<_> =
        named.map(|(symbol, table)| (code(symbol.address(), symbol.size()), symbol.index(), table)).collect();
    functions.sort_by_key(|(code, ..)| code.start);
    functions
}

/// A file that is mapped by a process.
#[derive(Debug)]
pub(crate) struct Module {
    library: Arc<Library>,
    /// From an address in the file to the one in memory.
    bias: u64,
}

impl Module {
    pub(crate) fn open(libraries: &Libraries, pid: u32, mapping: &Mapping) -> Option<Self> {
        let library = libraries.open(pid, &mapping.path)?;
        let (pages, address) = library.code.iter().find(|(pages, _)| pages.contains(&mapping.offset))?;
        let at = address.wrapping_add(mapping.offset - pages.start);
        let bias = mapping.range.start.wrapping_sub(at);
        Some(Module { library, bias })
    }

    /// Where the callers of its functions are to be found.
    pub(crate) fn unwind(&self, mapping: &Mapping) -> UnwindModule<Arc<[u8]>> {
        let Sections { text, got, eh_frame, eh_frame_hdr } = &self.library.sections;
        let (eh_frame_svma, eh_frame) = eh_frame.clone().unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = eh_frame_hdr.clone().unzip();
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: text.clone(),
            got_svma: got.clone(),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        };
        UnwindModule::new(self.library.name.clone(), mapping.range.clone(), self.bias, sections)
    }

    /// The function at an address in memory.
    pub(crate) fn frame(&self, address: u64) -> Frame {
        let at = address.wrapping_sub(self.bias);
        let file = self.library.name.clone();
        let function = self.library.function(at).unwrap_or_else(|| format!("{file}+{at:#x}"));
        Frame { function, file, line: None }
    }
}

fn is_code<'a>(segment: &impl ObjectSegment<'a>) -> bool {
    use object::elf::PF_X;
    matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. } if (p_flags & PF_X) == PF_X)
}

/// Nothing that holds these locks leaves what they guard half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names of C++ as people write them, without the types of arguments.
fn demangled(name: &str) -> String {
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let symbol = cpp_demangle::Symbol::new(name).ok();
    symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok()).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_that_are_there_counts() {
        let maps = "7f00-7f10 r-xp 00001000 fe:00 12   /lib/a b.so\n\
                    7f10-7f20 r--p 00000000 fe:00 12   /lib/a b.so\n\
                    7f20-7f30 r-xp 00000000 fe:00 13   /lib/c.so (deleted)\n\
                    7f30-7f40 r-xp 00000000 00:00 0    [vdso]\n\
                    7f40-7f50 rwxp 00000000 00:00 0 \n";
        let found = mappings(maps);
        assert_eq!(
            found,
            [Mapping { range: 0x7f00..0x7f10, offset: 0x1000, path: "/lib/a b.so".to_owned() }]
        );
    }

    #[test]
    fn names_of_cpp_are_readable() {
        assert_eq!(demangled("_ZN4gloo9transport3tcp4Pair4recvEv"), "gloo::transport::tcp::Pair::recv");
        assert_eq!(demangled("poll"), "poll");
    }
}
