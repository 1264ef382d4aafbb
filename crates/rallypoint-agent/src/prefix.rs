//! What stands before each line of a worker.

use std::str::FromStr;

use thiserror::Error;

use crate::environment::WorkerRanks;

/// torchrun's macros.
const MACROS: [&str; 4] = ["role_name", "rank", "local_rank", "hostname"];

/// What stands before each line, with torchrun's macros: `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(String);

impl Default for Prefix {
    fn default() -> Self {
        Prefix("[${rank}]: ".to_owned())
    }
}

/// A macro that there is not.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "there is no ${{{0}}}; there are ${{role_name}}, ${{rank}}, ${{local_rank}}, ${{hostname}}, and $$ for a dollar"
)]
pub struct UnknownMacro(String);

impl FromStr for Prefix {
    type Err = UnknownMacro;

    fn from_str(template: &str) -> Result<Self, UnknownMacro> {
        let mut unknown = None;
        substitute(template, |name| {
            if !MACROS.contains(&name) && unknown.is_none() {
                unknown = Some(name.to_owned());
            }
            None
        });
        unknown.map_or_else(|| Ok(Prefix(template.to_owned())), |name| Err(UnknownMacro(name)))
    }
}

impl Prefix {
    /// The prefix of one worker.
    #[must_use]
    pub fn of(&self, place: &WorkerRanks, role: &str, host: &str) -> String {
        substitute(&self.0, |name| match name {
            "role_name" => Some(role.to_owned()),
            "local_rank" => Some(place.local_rank.to_string()),
            "rank" => Some(place.rank.to_string()),
            "hostname" => Some(host.to_owned()),
            _ => None,
        })
    }
}

/// Puts values in the place of `${name}` and `$name`; `$$` is a dollar, and what has no value stays.
fn substitute(template: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            text.push('$');
            rest = after;
            continue;
        }
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, left) = braced.unwrap_or_else(|| {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
            after.split_at(end)
        });
        // A price is no name.
        let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
        match Some(name).filter(|_| is_name).and_then(&mut value) {
            Some(value) => {
                text.push_str(&value);
                rest = left;
            }
            None => {
                text.push('$');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_are_replaced_as_pythons_templates_do() {
        let value = |name: &str| match name {
            "rank" => Some("7".to_owned()),
            "role_name" => Some("trainer".to_owned()),
            _ => None,
        };
        for (template, text) in [
            ("[${role_name}${rank}]: ", "[trainer7]: "),
            ("$rank:", "7:"),
            ("$$rank", "$rank"),
            ("${unknown} $5", "${unknown} $5"),
            ("${rank", "${rank"),
            ("", ""),
        ] {
            assert_eq!(substitute(template, value), text, "{template}");
        }
    }

    #[test]
    fn a_macro_that_there_is_not_is_refused() {
        for template in ["", "[${rank}/$local_rank] ", "$$host $5 ${hostname}", "100$"] {
            assert!(template.parse::<Prefix>().is_ok(), "{template}");
        }
        let refused = "${host}: ".parse::<Prefix>().map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.starts_with("there is no ${host}; there are ${role_name}")));
        assert!("$host".parse::<Prefix>().is_err());
    }
}
