//! Users, roles and what they may do, as etcd has them. Plain data that is told the time.
//!
//! - [`Auth`]: the users and roles, and all that changes them.
//! - [`check`]: whether a request may be carried out. It is asked under the lock that the request is carried out under.
//! - [`Caller`]: who asks. [`tokens`]: what it shows. [`coverage`]: the keys that it may read or write.
//! - [`passwords`]: hashes, which take long and are not made here.

mod caller;
mod check;
mod coverage;
mod error;
mod model;
mod passwords;
mod tokens;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prost::Message as _;

pub(crate) use caller::Caller;
pub(crate) use error::AuthError;
pub(crate) use model::{Access, Permission, Role, User, UserOptions, tell};
pub(crate) use passwords::{Hash, Passwords};

use coverage::Coverage;
use tokens::Tokens;

/// The user without whom nothing can be turned on, and the role that may do everything.
pub(crate) const ROOT: &str = "root";
/// What a role may have: all of it is written with each permission.
const MAX_ROLE_BYTES: usize = 1 << 20;
/// Roughly the memory of a user or a role beside its names.
const WEIGHT: usize = 512;

/// Users, roles, and whether they are asked for.
#[derive(Debug)]
pub(crate) struct Auth {
    enabled: bool,
    /// Counts the changes.
    revision: u64,
    users: BTreeMap<String, Known>,
    roles: BTreeMap<String, Role>,
    tokens: Tokens,
    /// Roughly what users and roles hold in memory.
    weight: usize,
    /// What has changed since somebody took it to the disk.
    changed: Vec<Row>,
}

/// A user, and what its roles allow together.
#[derive(Debug, Default)]
struct Known {
    user: User,
    reads: Coverage,
    writes: Coverage,
    /// Roughly its memory.
    weight: usize,
}

/// One row of what is kept: its name, and its value if it is still there.
pub(crate) type Row = (String, Option<Vec<u8>>);

/// The names of rows.
const SETTINGS: &str = "settings";
const USER: &str = "user/";
const ROLE: &str = "role/";

/// The row that is not of a user or a role.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Settings {
    #[prost(bool, tag = "1")]
    enabled: bool,
    #[prost(uint64, tag = "2")]
    revision: u64,
}

/// What is on disk is not what was written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a row of users and roles cannot be read")]
pub(crate) struct MalformedRow;

/// What the password that a user shows is held against.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) hash: Hash,
    /// Of the users when it was read.
    pub(crate) revision: u64,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            enabled: false,
            // As etcd's begins.
            revision: 1,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            tokens: Tokens::default(),
            weight: 0,
            changed: Vec::new(),
        }
    }
}

impl Auth {
    /// As it was. Tokens are not kept: clients show their passwords again.
    pub(crate) fn restored(rows: impl IntoIterator<Item = (String, Vec<u8>)>) -> Result<Self, MalformedRow> {
        let mut auth = Auth::default();
        for (name, value) in rows {
            if name == SETTINGS {
                let Settings { enabled, revision } =
                    Settings::decode(&value[..]).map_err(|_| MalformedRow)?;
                (auth.enabled, auth.revision) = (enabled, revision);
            } else if let Some(name) = name.strip_prefix(USER) {
                let user = User::decode(&value[..]).map_err(|_| MalformedRow)?;
                auth.users.insert(name.to_owned(), Known { user, ..Known::default() });
            } else if let Some(name) = name.strip_prefix(ROLE) {
                let role = Role::decode(&value[..]).map_err(|_| MalformedRow)?;
                auth.roles.insert(name.to_owned(), role);
            } else {
                return Err(MalformedRow);
            }
        }
        let names: Vec<String> = auth.users.keys().cloned().collect();
        auth.weight = auth.roles.values().map(weight_of).sum();
        names.iter().for_each(|name| auth.refresh(name));
        Ok(auth)
    }

    /// The tokens of one that is replaced are good for as long as its users are the same.
    pub(crate) fn go_on_from(&mut self, before: Auth) {
        self.set_token_ttl(before.tokens.ttl());
        if self.enabled && self.revision == before.revision {
            self.tokens = before.tokens;
        }
    }

    /// How long a token lives that is not shown.
    pub(crate) fn set_token_ttl(&mut self, ttl: Duration) {
        self.tokens.set_ttl(ttl);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values().map(|known| &known.user)
    }

    pub(crate) fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values()
    }

    /// Roughly its memory.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// The rows that have changed.
    pub(crate) fn take_changed(&mut self) -> Vec<Row> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn enable(&mut self) -> Result<(), AuthError> {
        if self.enabled {
            return Ok(());
        }
        let root = self.users.get(ROOT).ok_or(AuthError::NoRootUser)?;
        if !root.is_root() {
            return Err(AuthError::NoRootRole);
        }
        self.enabled = true;
        self.keep_settings();
        tracing::info!("users are asked for from now on");
        Ok(())
    }

    /// The hash of the password that the root user has.
    pub(crate) fn root_hash(&self) -> Option<Hash> {
        self.user(ROOT).ok().map(|root| Hash::known(&root.password))
    }

    /// From now on nobody is let in but who shows a password with this hash, and those whom it lets in.
    pub(crate) fn ask_for(&mut self, hash: Hash) {
        let known = self.users.get(ROOT).map(|known| known.user.clone());
        if self.enabled
            && self.root_hash().as_ref() == Some(&hash)
            && known.as_ref().is_some_and(|root| root.has(ROOT))
        {
            return;
        }
        let mut root = known.unwrap_or_default();
        (root.name, root.password) = (ROOT.into(), hash.into_bytes());
        root.options = Some(UserOptions { no_password: false });
        if let Err(at) = root.roles.binary_search_by(|role| role.as_str().cmp(ROOT)) {
            root.roles.insert(at, ROOT.to_owned());
        }
        self.put_user(ROOT, root);
        self.tokens.forget(ROOT);
        self.enabled = true;
        self.commit();
    }

    pub(crate) fn disable(&mut self) {
        if self.enabled {
            self.enabled = false;
            self.tokens.clear();
            self.commit();
            tracing::warn!("users are no longer asked for: whoever reaches this server has full access");
        }
    }

    /// What a password is to be held against.
    pub(crate) fn proof(&self, name: &str) -> Result<Proof, AuthError> {
        if !self.enabled {
            return Err(AuthError::NotEnabled);
        }
        let user = &self.users.get(name).ok_or(AuthError::Failed)?.user;
        if user.has_no_password() {
            return Err(AuthError::NoPasswordUser);
        }
        Ok(Proof { hash: Hash::known(&user.password), revision: self.revision })
    }

    /// A token for a user whose password was right; none if the users have changed since it was looked at.
    pub(crate) fn log_in(
        &mut self,
        name: &str,
        proof: &Proof,
        now: Instant,
    ) -> Result<Option<String>, AuthError> {
        if !self.enabled {
            return Err(AuthError::NotEnabled);
        }
        if self.revision != proof.revision {
            return Ok(None);
        }
        Ok(Some(self.tokens.assign(name, self.revision, now)))
    }

    /// Whether a user can be added.
    pub(crate) fn check_user_add(&self, name: &str) -> Result<(), AuthError> {
        if name.is_empty() {
            return Err(AuthError::UserEmpty);
        }
        if self.users.contains_key(name) { Err(AuthError::UserExists) } else { Ok(()) }
    }

    /// Adds a user; without a hash it has no password.
    pub(crate) fn user_add(&mut self, name: &str, hash: Option<Hash>) -> Result<(), AuthError> {
        self.check_user_add(name)?;
        let options = Some(UserOptions { no_password: hash.is_none() });
        let password = hash.map(Hash::into_bytes).unwrap_or_default();
        let user = User { name: name.into(), password, roles: Vec::new(), options };
        self.put_user(name, user);
        self.commit();
        Ok(())
    }

    pub(crate) fn user_delete(&mut self, name: &str) -> Result<(), AuthError> {
        if self.enabled && name == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        self.weight -= self.users.remove(name).ok_or(AuthError::UserNotFound)?.weight;
        self.changed.push((format!("{USER}{name}"), None));
        self.tokens.forget(name);
        self.commit();
        Ok(())
    }

    /// Whether the password of a user can be changed, and whether it has one.
    pub(crate) fn check_change_password(&self, name: &str) -> Result<bool, AuthError> {
        let known = self.users.get(name).ok_or(AuthError::UserNotFound)?;
        Ok(!known.user.has_no_password())
    }

    pub(crate) fn change_password(&mut self, name: &str, hash: Option<Hash>) -> Result<(), AuthError> {
        let mut user = self.user(name)?.clone();
        if !user.has_no_password() {
            user.password = hash.map(Hash::into_bytes).unwrap_or_default();
        }
        self.put_user(name, user);
        self.tokens.forget(name);
        self.commit();
        Ok(())
    }

    pub(crate) fn user(&self, name: &str) -> Result<&User, AuthError> {
        self.users.get(name).map(|known| &known.user).ok_or(AuthError::UserNotFound)
    }

    pub(crate) fn grant_role(&mut self, name: &str, role: &str) -> Result<(), AuthError> {
        let mut user = self.user(name)?.clone();
        // The root role need not have been added.
        if role != ROOT && !self.roles.contains_key(role) {
            return Err(AuthError::RoleNotFound);
        }
        let Err(at) = user.roles.binary_search_by(|known| known.as_str().cmp(role)) else { return Ok(()) };
        user.roles.insert(at, role.to_owned());
        self.put_user(name, user);
        self.commit();
        Ok(())
    }

    pub(crate) fn revoke_role(&mut self, name: &str, role: &str) -> Result<(), AuthError> {
        if self.enabled && name == ROOT && role == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        let mut user = self.user(name)?.clone();
        let at = user.roles.iter().position(|known| known == role).ok_or(AuthError::RoleNotGranted)?;
        user.roles.remove(at);
        self.put_user(name, user);
        self.commit();
        Ok(())
    }

    pub(crate) fn role_add(&mut self, name: &str) -> Result<(), AuthError> {
        if name.is_empty() {
            return Err(AuthError::RoleEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(AuthError::RoleExists);
        }
        self.put_role(name, Role { name: name.into(), permissions: Vec::new() });
        self.commit();
        Ok(())
    }

    pub(crate) fn role_delete(&mut self, name: &str) -> Result<(), AuthError> {
        if self.enabled && name == ROOT {
            return Err(AuthError::InvalidManagement);
        }
        self.weight -= weight_of(&self.roles.remove(name).ok_or(AuthError::RoleNotFound)?);
        self.changed.push((format!("{ROLE}{name}"), None));
        let users: Vec<User> = self.users().filter(|user| user.has(name)).cloned().collect();
        for mut user in users {
            user.roles.retain(|role| role != name);
            let user_name = String::from_utf8_lossy(&user.name).into_owned();
            self.put_user(&user_name, user);
        }
        self.commit();
        Ok(())
    }

    /// What a role may do.
    pub(crate) fn permissions(&self, role: &str) -> Result<Vec<Permission>, AuthError> {
        let found = self.roles.get(role).ok_or(AuthError::RoleNotFound)?;
        Ok(if role == ROOT { vec![Permission::root()] } else { found.permissions.clone() })
    }

    pub(crate) fn grant_permission(
        &mut self,
        role: &str,
        granted: Option<Permission>,
    ) -> Result<(), AuthError> {
        let granted = granted.ok_or(AuthError::PermissionNotGiven)?;
        if !granted.is_of_keys() {
            return Err(AuthError::InvalidManagement);
        }
        let mut role_now = self.roles.get(role).ok_or(AuthError::RoleNotFound)?.clone();
        let same = |known: &&mut Permission| known.key == granted.key && known.range_end == granted.range_end;
        match role_now.permissions.iter_mut().find(same) {
            Some(known) => known.kind = granted.kind,
            None => {
                let at = role_now.permissions.partition_point(|known| known.key <= granted.key);
                role_now.permissions.insert(at, granted);
            }
        }
        if role_now.encoded_len() > MAX_ROLE_BYTES {
            return Err(AuthError::TooLarge);
        }
        self.put_role(role, role_now);
        self.commit();
        Ok(())
    }

    pub(crate) fn revoke_permission(&mut self, role: &str, key: &[u8], end: &[u8]) -> Result<(), AuthError> {
        let mut role_now = self.roles.get(role).ok_or(AuthError::RoleNotFound)?.clone();
        let before = role_now.permissions.len();
        role_now.permissions.retain(|known| known.key != key || known.range_end != end);
        if role_now.permissions.len() == before {
            return Err(AuthError::PermissionNotGranted);
        }
        self.put_role(role, role_now);
        self.commit();
        Ok(())
    }

    fn put_user(&mut self, name: &str, user: User) {
        self.changed.push((format!("{USER}{name}"), Some(user.encode_to_vec())));
        self.users.entry(name.to_owned()).or_default().user = user;
        self.refresh(name);
    }

    fn put_role(&mut self, name: &str, role: Role) {
        self.changed.push((format!("{ROLE}{name}"), Some(role.encode_to_vec())));
        self.weight += weight_of(&role);
        if let Some(before) = self.roles.insert(name.to_owned(), role) {
            self.weight -= weight_of(&before);
        }
        let has = |(_, known): &(&String, &Known)| known.user.has(name);
        let names: Vec<String> = self.users.iter().filter(has).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.refresh(name));
    }

    /// Finds out anew what a user may do.
    fn refresh(&mut self, name: &str) {
        let Some(known) = self.users.get_mut(name) else { return };
        self.weight -= known.weight;
        *known = Known::of(std::mem::take(&mut known.user), &self.roles);
        self.weight += known.weight;
    }

    /// Ends a change.
    fn commit(&mut self) {
        self.revision += 1;
        self.keep_settings();
    }

    fn keep_settings(&mut self) {
        let settings = Settings { enabled: self.enabled, revision: self.revision };
        self.changed.push((SETTINGS.to_owned(), Some(settings.encode_to_vec())));
    }
}

fn weight_of(role: &Role) -> usize {
    WEIGHT + role.encoded_len()
}

impl Known {
    fn of(user: User, roles: &BTreeMap<String, Role>) -> Self {
        let own = || user.roles.iter().filter_map(|role| roles.get(role));
        let permissions = || own().flat_map(|role| &role.permissions);
        let (reads, writes) =
            (Coverage::of(permissions(), Access::Read), Coverage::of(permissions(), Access::Write));
        let weight = WEIGHT + user.encoded_len() + own().map(|role| 2 * role.encoded_len()).sum::<usize>();
        Known { user, reads, writes, weight }
    }

    fn is_root(&self) -> bool {
        self.user.has(ROOT)
    }
}
