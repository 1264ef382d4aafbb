//! Secrets from files.

use std::io::Read as _;
use std::path::Path;

/// More than any password or token has.
const MOST: u64 = 4096;

/// The text of a file with a password or a token, without the end of its line.
pub fn read_secret(file: &Path) -> std::io::Result<String> {
    // What is no file may never end, as a pipe does not.
    if !std::fs::metadata(file)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    let mut text = String::new();
    std::fs::File::open(file)?.take(MOST).read_to_string(&mut text)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
