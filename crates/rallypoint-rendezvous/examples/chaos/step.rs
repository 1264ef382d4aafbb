//! What can be done to nodes and to etcd.

pub(crate) const LIST: &str = "\
to a node:  killed, and started again; stopped for a while; cut off, with its link down or without a word; leaves, and
            comes back; asks for a new round; hangs; replaced by another process of its name on another machine.
            Often it is the leader, and sometimes while a round forms.
to etcd:    its leader or a follower killed, stopped, cut off, or a follower cut from the leader alone; all stopped or
            killed for a while; history compacted; no space; passwords asked for; all data lost; an older snapshot
            restored, with its own revisions or with higher ones; all nodes cut off from it, with a newcomer at the end.";

/// One thing that is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Kill(String),
    Start(String),
    Stop(String),
    Continue(String),
    Cut(String),
    Lose(String),
    Mend(String),
    Order(String, &'static str),
    Replace(String),
    Newcomer,
    CutAllNodes,
    MendAllNodes,
    KillEtcd(Which),
    RestartEtcd,
    StopEtcd(Which),
    ContinueEtcd,
    CutEtcd(Which),
    MendEtcd,
    CutFollowerFromLeader,
    MendFollowerToLeader,
    StopAllEtcds,
    ContinueAllEtcds,
    RestartAllEtcds,
    Compact,
    FillDisk,
    FreeDisk,
    AskForPasswords,
    AskForNoPasswords,
    LoseData,
    Restore,
    RestoreAhead,
    OthersWrite,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Which {
    Leader,
    Follower,
}

impl Step {
    /// The node that it is done to.
    pub(crate) fn node(&self) -> Option<&str> {
        match self {
            Step::Kill(name)
            | Step::Start(name)
            | Step::Stop(name)
            | Step::Continue(name)
            | Step::Cut(name)
            | Step::Lose(name)
            | Step::Mend(name)
            | Step::Order(name, _)
            | Step::Replace(name) => Some(name),
            _ => None,
        }
    }

    /// Whether this is the end of what `other` began.
    pub(crate) fn ends(&self, other: &Step) -> bool {
        match (other, self) {
            (Step::Stop(_), Step::Continue(_)) | (Step::Cut(_) | Step::Lose(_), Step::Mend(_)) => {
                self.node() == other.node()
            }
            (Step::CutAllNodes, Step::MendAllNodes)
            | (Step::KillEtcd(_), Step::RestartEtcd)
            | (Step::StopEtcd(_), Step::ContinueEtcd)
            | (Step::CutEtcd(_), Step::MendEtcd)
            | (Step::CutFollowerFromLeader, Step::MendFollowerToLeader)
            | (Step::StopAllEtcds, Step::ContinueAllEtcds)
            | (Step::FillDisk, Step::FreeDisk)
            | (Step::AskForPasswords, Step::AskForNoPasswords) => true,
            _ => false,
        }
    }
}
