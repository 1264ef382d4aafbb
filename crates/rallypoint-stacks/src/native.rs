//! Frames of compiled code. Each thread is stopped for the moment that it takes to copy its registers and the end of its
//! stack; who called whom is found out afterwards.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use framehop::{CacheNative, FrameAddress, MayAllocateDuringUnwind, Unwinder, UnwinderNative};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use crate::frame::Frame;
use crate::modules::{Libraries, Mapping, Module, mappings};

/// Of a stack, what is copied. Calls further out than this are not told.
const STACK: usize = 256 << 10;
/// And so many calls.
const DEPTH: usize = 96;
/// For a thread to stop. One that waits in the kernel does not.
const TO_STOP: Duration = Duration::from_millis(100);
/// How often that is looked at.
const LOOK: Duration = Duration::from_micros(200);

#[cfg(target_arch = "x86_64")]
type Registers = framehop::x86_64::UnwindRegsX86_64;
#[cfg(target_arch = "aarch64")]
type Registers = framehop::aarch64::UnwindRegsAarch64;

/// A thread at one moment.
struct Snapshot {
    at: u64,
    registers: Registers,
    from: u64,
    stack: Vec<u8>,
}

/// The frames of these threads of a process, as many as there is time for. An error where it may not be traced, or where
/// none of them could be stopped.
pub(crate) fn threads(
    pid: u32,
    ids: &[u32],
    libraries: &Libraries,
    deadline: Instant,
) -> Result<HashMap<u32, Vec<Frame>>, String> {
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(|error| unseen(&error))?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| unseen(&error))?;
    let mut snapshots = Vec::new();
    let mut problem = None;
    for id in ids.iter().take_while(|_| Instant::now() < deadline) {
        match snapshot(&memory, *id, *id == pid) {
            Ok(snapshot) => snapshots.push((*id, snapshot)),
            Err(why) => problem = problem.or(Some(why)),
        }
    }
    if let Some(problem) = problem.filter(|_| snapshots.is_empty()) {
        return Err(problem);
    }
    let mut program = Program {
        pid,
        libraries,
        mappings: mappings(&maps),
        modules: HashMap::new(),
        unwinder: UnwinderNative::new(),
        cache: CacheNative::new(),
    };
    let mut found = HashMap::new();
    for (id, snapshot) in snapshots.iter().take_while(|_| Instant::now() < deadline) {
        let calls = program.calls(snapshot);
        found.insert(*id, calls.into_iter().map(|address| program.frame(address)).collect());
    }
    Ok(found)
}

fn unseen(error: &dyn std::fmt::Display) -> String {
    format!("frames of compiled code: {error}")
}

/// Stops a thread for a moment. How the first one ends is how its process ends, which is for its parent to hear.
fn snapshot(memory: &File, id: u32, is_first: bool) -> Result<Snapshot, String> {
    let thread = Pid::from_raw(i32::try_from(id).map_err(|error| unseen(&error))?);
    ptrace::seize(thread, ptrace::Options::empty()).map_err(|error| match error {
        Errno::EPERM => unseen(&"this process may not trace it, or a debugger does"),
        error => unseen(&error),
    })?;
    let stopped = stop(thread);
    let snapshot = stopped.as_ref().map_err(Clone::clone).and_then(|_| {
        let registers = ptrace::getregs(thread).map_err(|error| unseen(&error))?;
        let (at, registers, from) = taken(&registers);
        let mut stack = vec![0; STACK];
        let length = memory.read_at(&mut stack, from).map_err(|error| unseen(&error))?;
        stack.truncate(length);
        Ok(Snapshot { at, registers, from, stack })
    });
    // One that did not stop is let go of when this thread ends.
    let let_go = ptrace::detach(thread, stopped.ok().flatten());
    if let_go.is_err() && !is_first {
        // A process has not ended before its traced threads are waited for.
        let _ = waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
    }
    snapshot
}

/// Waits until it has stopped, and not for its end. It may have stopped for a signal that it was about to get, and gets it when it
/// is let go of.
fn stop(thread: Pid) -> Result<Option<Signal>, String> {
    ptrace::interrupt(thread).map_err(|error| unseen(&error))?;
    let deadline = Instant::now() + TO_STOP;
    loop {
        match waitid(Id::Pid(thread), WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED) {
            Ok(WaitStatus::StillAlive) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(WaitStatus::StillAlive) => {
                return Err(unseen(&"it waits in the kernel, and does not stop for a look"));
            }
            Ok(WaitStatus::PtraceEvent(_, signal, 0)) => return Ok(Some(signal)),
            Ok(_) => return Ok(None),
            Err(Errno::ECHILD) => return Err(unseen(&"it has ended")),
            Err(error) => return Err(unseen(&error)),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn taken(registers: &nix::libc::user_regs_struct) -> (u64, Registers, u64) {
    let (at, stack, frame) = (registers.rip, registers.rsp, registers.rbp);
    (at, Registers::new(at, stack, frame), stack)
}

#[cfg(target_arch = "aarch64")]
fn taken(registers: &nix::libc::user_regs_struct) -> (u64, Registers, u64) {
    let (link, stack, frame) = (registers.regs[30], registers.sp, registers.regs[29]);
    (registers.pc, Registers::new(link, stack, frame), stack)
}

/// The code of a process, as far as its stacks lead there.
struct Program<'a> {
    pid: u32,
    libraries: &'a Libraries,
    mappings: Vec<Mapping>,
    /// By the place of their mapping.
    modules: HashMap<usize, Option<Module>>,
    unwinder: UnwinderNative<Arc<[u8]>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

impl Program<'_> {
    /// The mapping with this address; its file is read where this is the first.
    fn mapping(&mut self, address: u64) -> Option<usize> {
        let at = self.mappings.iter().position(|mapping| mapping.range.contains(&address))?;
        if !self.modules.contains_key(&at) {
            let module = Module::open(self.libraries, self.pid, &self.mappings[at]);
            if let Some(module) = &module {
                self.unwinder.add_module(module.unwind(&self.mappings[at]));
            }
            self.modules.insert(at, module);
        }
        Some(at)
    }

    /// The addresses of a thread's calls, the innermost first.
    fn calls(&mut self, snapshot: &Snapshot) -> Vec<u64> {
        let mut registers = snapshot.registers;
        let mut read = |address: u64| {
            let at = usize::try_from(address.checked_sub(snapshot.from).ok_or(())?).map_err(|_| ())?;
            let word = snapshot.stack.get(at..).and_then(|rest| rest.first_chunk()).ok_or(())?;
            Ok(u64::from_le_bytes(*word))
        };
        let mut calls = vec![snapshot.at];
        let mut address = FrameAddress::from_instruction_pointer(snapshot.at);
        while calls.len() < DEPTH {
            self.mapping(address.address_for_lookup());
            let caller = self.unwinder.unwind_frame(address, &mut registers, &mut self.cache, &mut read);
            let Ok(Some(caller)) = caller else { break };
            let Some(next) = FrameAddress::from_return_address(caller) else { break };
            calls.push(next.address_for_lookup());
            address = next;
        }
        calls
    }

    /// The call at an address.
    fn frame(&mut self, address: u64) -> Frame {
        let module = self.mapping(address).and_then(|at| self.modules.get(&at)?.as_ref());
        let unknown = || Frame { function: format!("{address:#x}"), file: "?".to_owned(), line: None };
        module.map_or_else(unknown, |module| module.frame(address))
    }
}
