//! Bytes as people read them.

use std::cmp::Ordering;
use std::fmt;

/// A key in a sentence: quoted, with what is not text escaped, and not without end.
///
/// ```
/// assert_eq!(rallypoint_core::text::Key(b"/a\0b").to_string(), r#""/a\x00b""#);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Key<'a>(pub &'a [u8]);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 120;
        let shown = &self.0[..self.0.len().min(SHOWN)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if self.0.len() > SHOWN {
            write!(f, "... ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// Text from elsewhere in one line for people: what would move a terminal's cursor, turn the direction of writing round or
/// is not to be seen is escaped.
///
/// ```
/// assert_eq!(rallypoint_core::text::plain("all\tis \x1b[2Jwell"), r"all\tis \u{1b}[2Jwell");
/// assert_eq!(rallypoint_core::text::plain("gpu\u{202e}1"), r"gpu\u{202e}1");
/// ```
#[must_use]
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        let unseen = matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        match letter.is_control() || unseen {
            true => plain.extend(letter.escape_default()),
            false => plain.push(letter),
        }
    }
    plain
}

/// A number of things: `1 node`, `3 nodes`.
///
/// ```
/// assert_eq!(rallypoint_core::text::count(1, "node"), "1 node");
/// assert_eq!(rallypoint_core::text::count(3, "node"), "3 nodes");
/// ```
#[must_use]
pub fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// `a`, `a and b`, `a, b and c`.
///
/// ```
/// assert_eq!(rallypoint_core::text::list(&["a".to_owned(), "b".to_owned(), "c".to_owned()]), "a, b and c");
/// ```
#[must_use]
pub fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// As people sort names: the numbers in them by value.
///
/// ```
/// let mut names = ["n10", "n2", "m"];
/// names.sort_by(|a, b| rallypoint_core::text::natural(a, b));
/// assert_eq!(names, ["m", "n2", "n10"]);
/// ```
#[must_use]
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (in_left, in_right) = (digits(left), digits(right));
        if in_left > 0 && in_right > 0 {
            let number = |text: &str, end| text[..end].trim_start_matches('0').to_owned();
            let (x, y) = (number(left, in_left), number(right, in_right));
            match x.len().cmp(&y.len()).then_with(|| x.cmp(&y)) {
                Ordering::Equal => {
                    (left, right) = (&left[in_left..], &right[in_right..]);
                    continue;
                }
                other => return other,
            }
        }
        let (mut l, mut r) = (left.chars(), right.chars());
        match (l.next(), r.next()) {
            (None, None) => return a.cmp(b),
            (None, _) => return Ordering::Less,
            (_, None) => return Ordering::Greater,
            (Some(x), Some(y)) if x != y => return x.cmp(&y),
            _ => (left, right) = (l.as_str(), r.as_str()),
        }
    }
}

/// The beginning of a text that may be long.
///
/// ```
/// assert_eq!(rallypoint_core::text::brief("out of memory", 6), "out of...");
/// ```
#[must_use]
pub fn brief(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The one of these names that a mistyped one was most likely meant to be, if there is one.
///
/// ```
/// let names = ["join_timeout", "last_call_timeout"];
/// assert_eq!(rallypoint_core::text::nearest("join_timout", names), Some("join_timeout"));
/// assert_eq!(rallypoint_core::text::nearest("lastcall", names), Some("last_call_timeout"));
/// assert_eq!(rallypoint_core::text::nearest("colour", names), None);
/// ```
#[must_use]
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    let with_distance = names.iter().map(|name| (strsim::levenshtein(word, name), *name));
    let (distance, name) = with_distance.min_by_key(|(distance, _)| *distance)?;
    if distance <= name.len() / 3 {
        return Some(name);
    }
    // Or the beginning of one, if of no other.
    let bare = |text: &str| text.replace(['_', '-'], "");
    let begin = Some(bare(word)).filter(|word| word.len() > SHORT)?;
    let mut begun = names.into_iter().filter(|name| bare(name).starts_with(&begin));
    begun.next().filter(|_| begun.next().is_none())
}

/// A word of so many letters is the beginning of anything.
const SHORT: usize = 3;

/// The same of what is there, in a sentence: `1 node is here`, `3 nodes are here`.
///
/// ```
/// assert_eq!(rallypoint_core::text::are(1, "node", "here"), "1 node is here");
/// assert_eq!(rallypoint_core::text::are(3, "node", "needed"), "3 nodes are needed");
/// ```
#[must_use]
pub fn are(number: usize, what: &str, rest: &str) -> String {
    format!("{} {} {rest}", count(number, what), if number == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_are_cut() {
        assert!(!Key(&[b'k'; 120]).to_string().contains("..."));
        let text = Key(&[b'k'; 121]).to_string();
        assert!(text.ends_with("k\"... (121 bytes)") && text.len() < 150, "{text}");
    }

    #[test]
    fn numbers_in_names_sort_by_value() {
        for (a, b) in [("n2", "n10"), ("n", "n1"), ("n09", "n10"), ("a", "b"), ("1", "a"), ("n1a", "n1b")] {
            assert_eq!((natural(a, b), natural(b, a)), (Ordering::Less, Ordering::Greater), "{a} {b}");
        }
        assert_eq!(natural("n007", "n007"), Ordering::Equal);
    }
}
