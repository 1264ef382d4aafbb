//! Text that nodes wrote, made fit for people: bounded, in one direction, and without what cannot be seen.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Letters of a node's or a run's name that are shown.
const NAME: usize = 120;

/// In one line, at most so many letters.
pub(crate) fn line(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    for (count, letter) in text.chars().enumerate() {
        if count == most {
            out.push('…');
            break;
        }
        push(&mut out, letter);
    }
    out
}

/// In several lines; what is too long loses its middle, since a traceback says most at its end.
pub(crate) fn lines(text: &str, most: usize) -> String {
    let length = text.chars().count();
    let (head, tail) = (most / 4, most - most / 4);
    let mut out = String::with_capacity(text.len().min(most));
    for (count, letter) in text.chars().enumerate() {
        if length > most && count == head {
            out.push_str(&format!("\n… {} letters are left out …\n", length - most));
        }
        if length > most && (head..length - tail).contains(&count) {
            continue;
        }
        match letter {
            '\n' => out.push('\n'),
            '\t' => out.push_str("    "),
            '\r' => {}
            letter => push(&mut out, letter),
        }
    }
    out
}

/// A name: two that differ are shown so that they differ, also where they are too long to be shown.
pub(crate) fn name(text: &str) -> String {
    let mut out = line(text, NAME);
    if text.chars().nth(NAME).is_some() {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        out.push_str(&format!("#{:08x}", hasher.finish() >> 32));
    }
    out
}

/// A time as the page says it: `0.4 s`, `12 s`, `3 min 4 s`, `2 h 5 min`, `5 d 1 h`.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms.saturating_add(500) / 1000;
    let two = |whole: u64, of: &str, rest: u64, unit: &str| match rest {
        0 => format!("{whole} {of}"),
        rest => format!("{whole} {of} {rest} {unit}"),
    };
    match seconds {
        _ if ms > 0 && ms < 950 => format!("{ms} ms"),
        0..10 if ms % 1000 > 50 => format!("{:.1} s", ms as f64 / 1000.0),
        0..60 => format!("{seconds} s"),
        60..600 => two(seconds / 60, "min", seconds % 60, "s"),
        600..3600 => format!("{} min", seconds / 60),
        3600..86_400 => two(seconds / 3600, "h", seconds / 60 % 60, "min"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

fn push(out: &mut String, letter: char) {
    if letter.is_control() || is_unseen(letter) {
        out.extend(letter.escape_unicode());
    } else {
        out.push(letter);
    }
}

/// Turns text around, joins or hides letters: a name could look like another's.
fn is_unseen(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_turns_text_around_or_hides_in_it() {
        assert_eq!(line("a\u{202e}b\0c\u{200b}", 99), r"a\u{202e}b\u{0}c\u{200b}");
        assert_eq!(line("<script>", 99), "<script>", "escaping for HTML is the page's");
        assert_eq!(line("gpu-Ω-日本", 99), "gpu-Ω-日本");
        assert_eq!(line(&"x".repeat(50), 10), "xxxxxxxxxx…");
    }

    #[test]
    fn a_time_is_told_as_the_page_tells_it() {
        let times = [400, 1_500, 12_345, 184_000, 1_200_000, 7_500_000, 435_600_000];
        let told = times.map(duration);
        assert_eq!(told, ["400 ms", "1.5 s", "12 s", "3 min 4 s", "20 min", "2 h 5 min", "5 d 1 h"]);
    }

    #[test]
    fn a_long_traceback_keeps_its_beginning_and_more_of_its_end() {
        let text = format!("begin{}\nEnd: here", "x".repeat(1000));
        let cut = lines(&text, 100);
        assert!(cut.starts_with("begin") && cut.ends_with("\nEnd: here"), "{cut}");
        assert!(cut.contains("… 915 letters are left out …"), "{cut}");
        assert_eq!(lines("a\n\tb\r\n", 100), "a\n    b\n");
    }

    #[test]
    fn long_names_that_differ_at_their_ends_stay_different() {
        let (one, other) = (format!("{}1", "n".repeat(10_000)), format!("{}2", "n".repeat(10_000)));
        assert_ne!(name(&one), name(&other));
        assert!(name(&one).chars().count() < NAME + 12);
        assert_eq!(name("gpu-1"), "gpu-1");
    }
}
