//! Options that come from the environment, and what is wrong with them: it is said of the variable, not of a flag that
//! nobody wrote.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use rallypoint_core::text::nearest;

/// A flag whose value a variable has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    flag: String,
    name: String,
}

impl Variable {
    /// Whether it is this flag's.
    pub(crate) fn is_of(&self, flag: &str) -> bool {
        self.flag == flag
    }
}

/// A variable by whose name somebody meant an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) name: String,
    /// The nearest one that there is.
    pub(crate) meant: Option<String>,
}

/// Before the names of torchrun's variables.
const TORCHS: &str = "PET_";

/// Of these variables, those that are named as torchrun's options are, and none of this command's.
pub(crate) fn unread(command: &Command, set: impl IntoIterator<Item = OsString>) -> Vec<Unread> {
    let known: Vec<&str> =
        command.get_arguments().filter_map(|arg| arg.get_env()).filter_map(OsStr::to_str).collect();
    let named = |name: &String| name.starts_with(TORCHS) && !known.contains(&name.as_str());
    let names = set.into_iter().filter_map(|name| name.into_string().ok()).filter(named);
    let mut unread: Vec<Unread> = names
        .map(|name| Unread { meant: nearest(&name, known.iter().copied()).map(str::to_owned), name })
        .collect();
    unread.sort_by(|one, other| one.name.cmp(&other.name));
    unread
}

/// Those of a command that was understood.
pub(crate) fn taken(command: &Command, matches: &ArgMatches) -> Vec<Variable> {
    let taken = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable);
    command.get_arguments().filter(taken).filter_map(variable).collect()
}

/// Those of a command that was not: what is set, and not given by a flag.
pub(crate) fn set(command: &Command, arguments: &[OsString]) -> Vec<Variable> {
    let is_set = |arg: &&Arg| arg.get_env().is_some_and(|name| std::env::var_os(name).is_some());
    let given =
        |arg: &&Arg| arguments.iter().filter_map(|given| given.to_str()).any(|given| gives(arg, given));
    command.get_arguments().filter(is_set).filter(|arg| !given(arg)).filter_map(variable).collect()
}

fn variable(arg: &Arg) -> Option<Variable> {
    let name = arg.get_env().and_then(OsStr::to_str)?.to_owned();
    Some(Variable { flag: format!("--{}", arg.get_long()?), name })
}

/// Whether this argument is the flag, by one of its names.
fn gives(arg: &Arg, given: &str) -> bool {
    let short = arg.get_short().is_some_and(|short| given.starts_with(&format!("-{short}")));
    let Some(long) = given.strip_prefix("--") else { return short };
    let long = long.split('=').next().unwrap_or_default();
    arg.get_long() == Some(long) || arg.get_all_aliases().into_iter().flatten().any(|alias| alias == long)
}

/// A text with the variables in the place of their flags.
pub(crate) fn named(text: &str, variables: &[Variable]) -> String {
    let mut text = text.to_owned();
    for Variable { flag, name } in variables {
        let mut named = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find(flag.as_str()) {
            let (before, found) = rest.split_at(at);
            let after = &found[flag.len()..];
            // Another flag may begin so, and a word may end so.
            let whole = !after.starts_with(|next: char| next.is_alphanumeric() || next == '-')
                && !before.ends_with(|last: char| last.is_alphanumeric() || last == '-');
            named.push_str(before);
            named.push_str(if whole { name } else { flag });
            // What clap writes of its value, and the quotes around both.
            let value = after.strip_prefix(" <").and_then(|value| value.split_once(">'")).filter(|_| whole);
            rest = match value {
                Some((_, rest)) if named.ends_with(&format!("'{name}")) => {
                    named.truncate(named.len() - name.len() - 1);
                    named.push_str(name);
                    rest
                }
                _ => after,
            };
        }
        named.push_str(rest);
        text = named;
    }
    text
}

/// The value of a switch that comes from a variable, as torchrun's users write it.
pub(crate) fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.trim().to_lowercase().as_str() {
        "" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        "true" | "t" | "yes" | "y" | "on" => Ok(true),
        // torchrun takes nothing but numbers.
        text => match text.parse::<i64>() {
            Ok(number) => Ok(number != 0),
            Err(_) => Err("write 1 for yes, or 0 for no".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_stands_where_its_flag_stood() {
        let variables = [("--nnodes", "PET_NNODES"), ("--rdzv-conf", "PET_RDZV_CONF")]
            .map(|(flag, name)| Variable { flag: flag.to_owned(), name: name.to_owned() });
        for (text, expected) in [
            (
                "invalid value 'x' for '--nnodes <MIN[:MAX]>': write",
                "invalid value 'x' for PET_NNODES: write",
            ),
            ("--rdzv-conf: no; --nnodes 2", "PET_RDZV_CONF: no; PET_NNODES 2"),
            ("--nnodes-least, x--nnodes, --node-rank", "--nnodes-least, x--nnodes, --node-rank"),
            ("'--nnodes' cannot", "'PET_NNODES' cannot"),
        ] {
            assert_eq!(named(text, &variables), expected);
        }
    }

    #[test]
    fn a_variable_that_nobody_reads_is_told_with_the_one_that_was_meant() {
        let of = |name: &'static str| Arg::new(name).long(name).env(name);
        let command = Command::new("run").arg(of("PET_NNODES")).arg(of("PET_RDZV_ID"));
        let set = ["PET_NNODE", "PET_RDZV_ID", "PETS", "PET_COLOUR"].map(OsString::from);
        let unread = |name: &str, meant: Option<&str>| Unread {
            name: name.to_owned(),
            meant: meant.map(str::to_owned),
        };
        assert_eq!(
            super::unread(&command, set),
            [unread("PET_COLOUR", None), unread("PET_NNODE", Some("PET_NNODES"))]
        );
    }

    #[test]
    fn a_switch_is_yes_or_no_and_nothing_else() {
        for (text, value) in [
            ("1", true),
            ("True", true),
            (" yes ", true),
            ("", false),
            ("0", false),
            ("NO", false),
            ("2", true),
        ] {
            assert_eq!(yes_or_no(text), Ok(value), "{text:?}");
        }
        assert!(yes_or_no("maybe").is_err() && yes_or_no("1.5").is_err());
    }
}
