//! How keys and forms are written in HTTP.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but what RFC 3986 calls unreserved: the only bytes that mean themselves everywhere in a URL.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// As [`SEGMENT`], but `/` and `=` stay: they are harmless in the value of a form, and frequent in base64.
const FORM: &AsciiSet = &SEGMENT.remove(b'/').remove(b'=');

/// The longest request line of plain HTTP that etcd takes for HTTP at all; it hangs up on a longer one.
const MAX_REQUEST_LINE: usize = 4094;

/// What a request line holds beside its path: method, spaces, version and the longest query there is here.
const REST_OF_LINE: usize = "DELETE  HTTP/1.1".len() + "?recursive=true&wait=true&waitIndex=".len() + 20;

/// The path of `key`. Slashes separate; several count as one, and one at the end does not count.
pub(super) fn path(key: &str) -> Result<String, String> {
    let mut path = String::from("/v2/keys");
    for segment in key.split('/').filter(|segment| !segment.is_empty()) {
        // The server resolves these, and would touch another key.
        if segment == "." || segment == ".." {
            return Err(format!("{segment:?} cannot be a part of a key"));
        }
        write!(path, "/{}", utf8_percent_encode(segment, SEGMENT)).expect("a String takes everything");
    }
    if path.len() + REST_OF_LINE > MAX_REQUEST_LINE {
        return Err(format!(
            "the key is too long: {} bytes as a path, and etcd takes {}",
            path.len(),
            MAX_REQUEST_LINE - REST_OF_LINE
        ));
    }
    Ok(path)
}

/// `fields` as the query of a URL or as the body of a form.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    let mut form =
        String::with_capacity(fields.iter().map(|(name, value)| name.len() + value.len() + 2).sum());
    for (name, value) in fields {
        let separator = if form.is_empty() { "" } else { "&" };
        write!(form, "{separator}{name}={}", utf8_percent_encode(value, FORM))
            .expect("a String takes everything");
    }
    form
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_key_survives_and_slashes_separate() {
        assert_eq!(path("/a//b c/").unwrap(), "/v2/keys/a/b%20c");
        assert_eq!(path("?+%#=&").unwrap(), "/v2/keys/%3F%2B%25%23%3D%26");
        assert_eq!(path("ü/\0").unwrap(), "/v2/keys/%C3%BC/%00");
        assert_eq!(path("").unwrap(), "/v2/keys");
        assert_eq!(path("-._~/...").unwrap(), "/v2/keys/-._~/...");
    }

    #[test]
    fn a_key_the_server_would_misread_is_refused() {
        assert!(path("/a/../b").unwrap_err().contains("\"..\""));
        assert!(path("./a").unwrap_err().contains("\".\""));
        assert!(path(&"k".repeat(4000)).is_ok());
        assert!(path(&"k".repeat(4094)).unwrap_err().contains("too long"));
    }

    #[test]
    fn forms_keep_what_they_are_given() {
        assert_eq!(form(&[("value", "a+b/c=&;%\n"), ("ttl", "5")]), "value=a%2Bb/c=%26%3B%25%0A&ttl=5");
        assert_eq!(form(&[]), "");
    }
}
