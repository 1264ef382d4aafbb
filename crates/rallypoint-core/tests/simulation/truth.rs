//! News must be true: whoever is told of a death, a close, an exclusion or a refusal that did not happen was told a
//! lie, and may stop work that goes well.

use rallypoint_core::round::{Change, Lost, NodeEvent, Refusal, Why};

use crate::check::{Violation, promise};
use crate::process::Process;
use crate::world::World;

impl World {
    /// Fails if what a process is told is not so.
    pub(crate) fn is_true(&self, index: usize, event: &NodeEvent) -> Result<(), Violation> {
        let process = &self.processes[index];
        let why_not = match event {
            NodeEvent::Changed(change) => self.lie_of_change(process, change),
            NodeEvent::Refused(refusal) => self.lie_of_refusal(process, refusal),
            NodeEvent::Joined(joined) => joined.without.iter().find_map(|lost| self.lie_of_absence(lost)),
            NodeEvent::Progress { joined: 0, .. } => Some("it is there itself".to_owned()),
            _ => None,
        };
        promise!(
            7,
            why_not.is_none(),
            "{} is told {event:?}, but {}",
            self.name(index),
            why_not.unwrap_or_default()
        );
        Ok(())
    }

    /// Why a member of the round before is not gone.
    fn lie_of_absence(&self, lost: &Lost) -> Option<String> {
        let named: Vec<&Process> = self.processes.iter().filter(|it| it.id == lost.node).collect();
        let is_so = match lost.why {
            Why::Died => named.iter().any(|it| !it.alive || it.harmed || it.has_left),
            Why::Left => named.iter().any(|it| it.has_left || !it.alive),
            Why::Replaced => named.len() > 1,
            Why::Excluded => self.check.was_kept_out(&lost.node),
            Why::Again | Why::Other => false,
        };
        (!is_so).then(|| format!("{} is there as it was", lost.node))
    }

    /// Why it is not so.
    fn lie_of_change(&self, process: &Process, change: &Change) -> Option<String> {
        let plan = self.check.last_plan(process).unwrap_or_default().to_owned();
        let lie = |holds: bool, why: &str| (!holds).then(|| why.to_owned());
        match change {
            Change::Waiting(_) => {
                // A member that has left, or was taken for dead, and is back again waits as others do.
                let waits = |it: &Process| it.alive && (it.has_left || it.harmed);
                let waits = self.check.somebody_waited || self.processes.iter().any(waits);
                // Who is late may still hear how it was.
                let late = self.check.round().plan != plan;
                lie(waits || late || self.check.losses > 0, "nobody waits")
            }
            Change::Died { node, rank }
            | Change::Left { node, rank }
            | Change::MemberKeptOut { node, rank }
            | Change::MemberReplaced { node, rank } => {
                let members = &self.check.committed_as(&plan)?.members;
                let Some((_, incarnation)) =
                    members.iter().find(|((id, _), at)| id == node && *at == rank).map(|(who, _)| who)
                else {
                    return Some("that is no member of its round".to_owned());
                };
                let replaced = self.check.was_replaced(node, *incarnation);
                if let Change::MemberKeptOut { .. } = change {
                    return lie(self.check.was_kept_out(node), "nobody has excluded it");
                }
                if let Change::MemberReplaced { .. } = change {
                    return lie(replaced, "nobody has taken its name");
                }
                // Whoever is replaced is gone, however that is told.
                if replaced {
                    return None;
                }
                let member =
                    self.processes.iter().find(|it| it.id == *node && it.incarnation == *incarnation)?;
                let stays =
                    member.is_in().is_some_and(|joined| joined.plan == plan) && member.moved_on != plan;
                if let Change::Died { .. } = change {
                    let harmed = !member.alive || member.harmed || !stays;
                    return lie(harmed, "it lives and nothing has happened to it");
                }
                lie(!member.alive || member.has_left || !stays, "it has neither left nor asked for a round")
            }
            Change::Excluded => {
                let round = self.check.committed_as(&plan)?.round;
                lie(self.check.went_on_after(round), "there was no later round")
            }
            Change::KeptOut(exclusion) => {
                lie(self.check.exclusions.contains(exclusion), "nobody has excluded it so")
            }
            Change::Closed(reason) => lie(self.check.reasons.contains(reason), "nobody has closed it so"),
            Change::Replaced { .. } => {
                let replaced = self.check.was_replaced(&process.id, process.incarnation);
                lie(replaced, "nobody has taken its name")
            }
            Change::StateLost => {
                // Who comes from a round that was lost may take back one that seems to be over, and that this node is in.
                let before = self.check.committed_as(&plan)?.losses;
                lie(self.check.losses > before || before > 0, "nothing was lost")
            }
            Change::Corrupt(corrupt) => Some(format!("nobody wrote such a thing: {corrupt:?}")),
        }
    }

    fn lie_of_refusal(&self, process: &Process, refusal: &Refusal) -> Option<String> {
        let lie = |holds: bool, why: &str| (!holds).then(|| why.to_owned());
        match refusal {
            Refusal::Closed(reason) => lie(self.check.reasons.contains(reason), "nobody has closed it so"),
            Refusal::Mismatch { .. } => {
                lie(process.settings != self.setup.settings, "its settings are those of the run")
            }
            Refusal::Replaced { .. } => {
                let replaced = self.check.was_replaced(&process.id, process.incarnation);
                lie(replaced, "nobody has taken its name")
            }
            Refusal::Excluded(exclusion) => {
                lie(self.check.exclusions.contains(exclusion), "nobody has excluded it so")
            }
            Refusal::Corrupt(corrupt) => Some(format!("nobody wrote such a thing: {corrupt:?}")),
        }
    }
}
