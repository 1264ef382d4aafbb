//! The programs and libraries that a process has loaded: how to find the caller of a place in them, and its name.

use std::fs::File;
use std::ops::Range;

use framehop::{ExplicitModuleSectionInfo, Module as UnwindModule};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

use crate::process::Frame;

/// Code of a file in the memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    offset: u64,
    path: String,
}

/// A file that is mapped, as far as it was needed.
#[derive(Debug)]
pub(crate) struct Module {
    path: String,
    cache: ReadCache<File>,
    /// From an address in the file to the one in memory.
    bias: u64,
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
    (rights.contains('x') && path.starts_with('/') && !path.ends_with(" (deleted)"))
        .then_some(())
        .and_then(|()| Some(Mapping { range: hex(start)?..hex(end)?, offset: hex(offset)?, path: path.to_owned() }))
}

impl Module {
    /// Opens the file of a mapping, as the process sees it.
    pub(crate) fn open(pid: u32, mapping: &Mapping) -> Option<Self> {
        let inside = File::open(format!("/proc/{pid}/root{}", mapping.path));
        let cache = ReadCache::new(inside.or_else(|_| File::open(&mapping.path)).ok()?);
        let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
        let bias = elf.segments().find_map(|segment| {
            let (offset, size) = segment.file_range();
            // The map begins at a whole page, the segment may not.
            let page = 0xfff;
            let inside = (offset & !page..(offset + size + page) & !page).contains(&mapping.offset);
            let at = segment.address().wrapping_add(mapping.offset).wrapping_sub(offset);
            (inside && segment_is_code(&segment)).then(|| mapping.range.start.wrapping_sub(at))
        })?;
        Some(Module { path: mapping.path.clone(), cache, bias })
    }

    /// Where the callers of its functions are to be found.
    pub(crate) fn unwind(&self, mapping: &Mapping) -> Option<UnwindModule<Vec<u8>>> {
        let elf = ElfFile64::<object::Endianness, _>::parse(&self.cache).ok()?;
        let range = |name: &str| {
            let section = elf.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let data = |name: &str| elf.section_by_name(name)?.data().ok().map(<[u8]>::to_vec);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(UnwindModule::new(self.path.clone(), mapping.range.clone(), self.bias, sections))
    }

    /// The functions at these addresses.
    pub(crate) fn frames(&self, addresses: &[u64]) -> Vec<Frame> {
        let file = self.path.rsplit('/').next().unwrap_or_default().to_owned();
        let wanted: Vec<u64> = addresses.iter().map(|address| address.wrapping_sub(self.bias)).collect();
        let mut names: Vec<Option<String>> = wanted.iter().map(|_| None).collect();
        if let Ok(elf) = ElfFile64::<object::Endianness, _>::parse(&self.cache) {
            let functions = elf.symbols().chain(elf.dynamic_symbols());
            for symbol in functions.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
                let code = symbol.address()..symbol.address() + symbol.size();
                for (name, _) in names.iter_mut().zip(&wanted).filter(|(name, at)| name.is_none() && code.contains(at)) {
                    *name = symbol.name().ok().map(demangled);
                }
            }
        }
        let frame = |(name, at): (Option<String>, &u64)| {
            let function = name.unwrap_or_else(|| format!("{file}+{at:#x}"));
            Frame { function, file: file.clone(), line: None }
        };
        names.into_iter().zip(&wanted).map(frame).collect()
    }
}

fn segment_is_code<'a>(segment: &impl ObjectSegment<'a>) -> bool {
    matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. } if (p_flags & object::elf::PF_X) == object::elf::PF_X)
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
        assert_eq!(found, [Mapping { range: 0x7f00..0x7f10, offset: 0x1000, path: "/lib/a b.so".to_owned() }]);
    }

    #[test]
    fn names_of_cpp_are_readable() {
        assert_eq!(demangled("_ZN4gloo9transport3tcp4Pair4recvEv"), "gloo::transport::tcp::Pair::recv");
        assert_eq!(demangled("poll"), "poll");
    }
}
