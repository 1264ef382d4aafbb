//! What every part may use: the way out, the settings, and how long etcd was silent.

use super::outbox::Outbox;
use super::settings::Settings;
use super::silence::Silence;

#[derive(Debug)]
pub(super) struct Context {
    pub(super) out: Outbox,
    pub(super) settings: Settings,
    pub(super) silence: Silence,
}
