//! What a node of PyTorch's asks for, and the thread that renews its keep-alive.

use std::time::Duration;

use rallypoint_core::barrier::{Reply, Request, VersionRank, WatchId};

use super::{Brain, Event, Fault, Life, Message, World};
use crate::torch::{self, Ask};

impl World {
    /// Does what a node of PyTorch's asks for.
    pub(super) fn torch(&mut self, node: usize, ask: Ask) -> Result<(), String> {
        self.count += 1;
        let id = self.count;
        match ask {
            Ask::Send(request) => {
                if matches!(request, Request::CreateRecord { .. }) {
                    self.truth.cause();
                    self.nodes[node].life = Life::Going;
                }
                self.nodes[node].open.insert(id);
                let keeps = match (&request, &self.nodes[node].brain) {
                    (Request::WriteKeepAlive(place), Brain::Torch(_)) => Some(*place),
                    _ => None,
                };
                if let Some(place) = keeps {
                    self.nodes[node].wrote.push((place, self.truth.history()));
                    self.schedule(self.now + torch::RENEWS, Event::Renew { node, place });
                }
                return self.send(node, id, Message::Request(request));
            }
            Ask::Compare { old, new, ttl } => {
                self.nodes[node].open.insert(id);
                return self.send(node, id, Message::Compare { old, new, ttl });
            }
            Ask::Watch { keys, from, until } => {
                self.watch(node, WatchId::Record, keys, from);
                if let Some(until) = until {
                    self.wake_at(node, until);
                }
            }
            Ask::Sleep(time) => self.wake_at(node, self.now + time.max(Duration::from_millis(100))),
            Ask::Met { place, world } => {
                self.truth.meets(self.who(node), place, world, self.plan.min..=self.plan.max)?;
                self.nodes[node].life = Life::Met(place);
                self.nodes[node].met_in = self.hears;
                self.wake_at(node, self.now + Duration::from_secs(1));
            }
            Ask::Closed => self.nodes[node].life = Life::Over,
            Ask::Dies => {
                self.kill(node);
                let back = self.now + self.random_time(Duration::from_secs(3));
                self.schedule(back, Event::Fault(Fault::Start { torch: true }));
            }
        }
        Ok(())
    }

    /// The thread of a node of PyTorch's, which ends with the first error.
    pub(super) fn renew(&mut self, node: usize, place: VersionRank) {
        if self.nodes[node].life == Life::Dead || self.stalled(node, Event::Renew { node, place }) {
            return;
        }
        let Brain::Torch(torch) = &mut self.nodes[node].brain else { return };
        if torch.keeps != Some(place) {
            return;
        }
        let reaches = self.now >= self.down_until && self.nodes[node].cut_until <= self.now;
        let request = Request::RenewKeepAlive(place);
        let renewed =
            reaches && matches!(self.server.serve(self.now, None, &request), Ok(Reply::Done { .. }));
        if renewed {
            self.schedule(self.now + torch::RENEWS, Event::Renew { node, place });
        } else {
            self.truth.cause();
        }
    }
}
