//! What a simulated run is about.

use std::time::Duration;

/// What a run is about.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Nodes of ours, and of PyTorch's.
    pub(crate) nodes: usize,
    pub(crate) torch: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) last_call: Duration,
    /// What a node has to meet the others.
    pub(crate) patience: Duration,
    /// Faults happen up to this time.
    pub(crate) faults_until: Duration,
    /// All must be well again at this time.
    pub(crate) end: Duration,
    /// How likely a message is lost, is late, is carried out twice.
    pub(crate) loss: f64,
    pub(crate) late: f64,
    pub(crate) twice: f64,
    /// How often each of these happens, at random times.
    pub(crate) crashes: usize,
    pub(crate) stalls: usize,
    pub(crate) cuts: usize,
    pub(crate) leaves: usize,
    pub(crate) newcomers: usize,
    pub(crate) outages: usize,
    pub(crate) refusals: usize,
    /// The server is started again, empty or with an earlier state.
    pub(crate) losses: usize,
    pub(crate) close: bool,
    /// How likely a program is slow to meet again, and how likely it never does.
    pub(crate) slow: f64,
    pub(crate) hung: f64,
    /// How many changes the server remembers.
    pub(crate) history: usize,
    /// When the folder of the run ends.
    pub(crate) run_ttl: Duration,
    /// The node that dies when it sends its n-th request, and whether that request still arrives.
    pub(crate) crash_at: Option<(usize, u32, bool)>,
    pub(crate) bug: Option<Bug>,
}

/// A mistake between the machine and the server, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A write whose reply was lost counts as carried out.
    TrustsLostReplies,
    /// A record is written without looking at what is there.
    DoesNotCompare,
    /// A node renews whatever keep-alive is at its place.
    RenewsAnothers,
    /// A keep-alive is said to be renewed, and is not.
    ForgetsToRenew,
    /// Nobody is told that the history was cleared.
    MissesClears,
    /// A keep-alive that ran out is said to have been removed.
    TakesExpiryForLeaving,
    /// The folder of the run is said to be there when it has ended.
    OverlooksTheEndOfTheFolder,
    /// No watch tells that a folder has ended.
    MissesTheEndOfTheFolder,
    /// The last member is not on the list.
    OverlooksAMember,
    /// A watch tells the same again and again.
    RepeatsUpdates,
}

impl Bug {
    pub(crate) const ALL: [Bug; 10] = [
        Bug::TrustsLostReplies,
        Bug::DoesNotCompare,
        Bug::RenewsAnothers,
        Bug::ForgetsToRenew,
        Bug::MissesClears,
        Bug::TakesExpiryForLeaving,
        Bug::OverlooksTheEndOfTheFolder,
        Bug::MissesTheEndOfTheFolder,
        Bug::OverlooksAMember,
        Bug::RepeatsUpdates,
    ];

    /// What it makes go wrong, in the words of those who find it.
    pub(crate) fn shows_as(self) -> &'static [&'static str] {
        const FALSE_NEWS: &str = "false news";
        const NOT_AT_WORK: &str = "living nodes are at work";
        match self {
            Bug::TrustsLostReplies => &[NOT_AT_WORK, "both have rank"],
            Bug::DoesNotCompare => &["wrote over a record"],
            Bug::RenewsAnothers => &["both have rank"],
            Bug::ForgetsToRenew => &[NOT_AT_WORK, "a needless new version"],
            Bug::MissesClears | Bug::MissesTheEndOfTheFolder => &[NOT_AT_WORK],
            Bug::TakesExpiryForLeaving | Bug::OverlooksTheEndOfTheFolder | Bug::OverlooksAMember => {
                &[FALSE_NEWS]
            }
            Bug::RepeatsUpdates => &["requests in a second"],
        }
    }

    pub(crate) fn named(name: &str) -> Bug {
        let bug = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
        bug.expect("the name of a planted bug")
    }
}

impl Plan {
    /// One in which nothing goes wrong.
    pub(crate) fn quiet(nodes: usize, min: usize, max: usize) -> Plan {
        Plan {
            nodes,
            torch: 0,
            min,
            max,
            last_call: Duration::from_secs(3),
            patience: Duration::MAX,
            faults_until: Duration::ZERO,
            end: Duration::from_secs(200),
            loss: 0.0,
            late: 0.0,
            twice: 0.0,
            crashes: 0,
            stalls: 0,
            cuts: 0,
            leaves: 0,
            newcomers: 0,
            outages: 0,
            refusals: 0,
            losses: 0,
            close: false,
            slow: 0.0,
            hung: 0.0,
            history: 1_000,
            run_ttl: Duration::from_secs(7200),
            crash_at: None,
            bug: None,
        }
    }

    /// One drawn from the seed, with everything that can go wrong.
    pub(crate) fn stormy(seed: u64) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let max = random.usize(1..=8);
        let min = random.usize(1..=max);
        let mixed = random.usize(0..4) == 0;
        let nodes = if mixed { random.usize(min..=max) } else { random.usize(min..=max + 2) };
        let torch = if mixed { random.usize(0..nodes) } else { 0 };
        let mut some = |chance: usize, most: usize| {
            if random.usize(0..chance) == 0 { random.usize(1..=most) } else { 0 }
        };
        let (crashes, stalls, cuts, leaves) = (some(2, 3), some(3, 2), some(3, 2), some(3, 2));
        let (newcomers, outages, refusals, losses) = (some(4, 2), some(3, 2), some(6, 1), some(6, 1));
        Plan {
            torch,
            faults_until: Duration::from_secs(40),
            loss: if random.bool() { random.f64() * 0.1 } else { 0.0 },
            late: if random.bool() { random.f64() * 0.1 } else { 0.0 },
            twice: if random.usize(0..4) == 0 { random.f64() * 0.05 } else { 0.0 },
            crashes,
            stalls,
            cuts,
            leaves,
            newcomers: if mixed { 0 } else { newcomers },
            outages,
            refusals,
            losses,
            close: random.usize(0..10) == 0,
            slow: if random.bool() { 0.2 } else { 0.0 },
            hung: if random.usize(0..6) == 0 { 0.1 } else { 0.0 },
            history: if random.usize(0..4) == 0 { random.usize(1..20) } else { 1_000 },
            run_ttl: if random.usize(0..5) == 0 {
                Duration::from_secs(random.u64(20..45))
            } else {
                Duration::from_secs(7200)
            },
            ..Plan::quiet(nodes - torch, min, max)
        }
    }
}
