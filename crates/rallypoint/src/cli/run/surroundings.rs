//! What a process finds around it.

/// What a process finds around it.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    /// Its environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The name of its machine, or of its pod.
    pub(crate) host: &'a str,
}

impl Surroundings<'_> {
    /// A variable that is empty is none; no scheduler writes what a terminal or a log would choke on.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty() && !value.contains(char::is_control))
    }
}
