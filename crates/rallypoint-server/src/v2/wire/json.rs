//! JSON as etcd writes it, byte for byte. Keys and values are any bytes, which no JSON library takes.

/// Appends `raw` as a string. What is not UTF-8 is lost, byte by byte, as in etcd.
pub(crate) fn push_string(out: &mut Vec<u8>, raw: &[u8]) {
    out.reserve(raw.len() + 2);
    out.push(b'"');
    for chunk in raw.utf8_chunks() {
        push_text(out, chunk.valid());
        for _ in chunk.invalid() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
    out.push(b'"');
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    // Most text needs no escape at all and is copied in runs.
    let mut done = 0;
    for (at, c) in text.char_indices() {
        let escape: &[u8] = match c {
            '"' => b"\\\"",
            '\\' => b"\\\\",
            '\n' => b"\\n",
            '\r' => b"\\r",
            '\t' => b"\\t",
            '<' => b"\\u003c",
            '>' => b"\\u003e",
            '&' => b"\\u0026",
            '\u{2028}' => b"\\u2028",
            '\u{2029}' => b"\\u2029",
            '\0'..' ' => {
                out.extend_from_slice(&text.as_bytes()[done..at]);
                out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
                done = at + 1;
                continue;
            }
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[done..at]);
        out.extend_from_slice(escape);
        done = at + c.len_utf8();
    }
    out.extend_from_slice(&text.as_bytes()[done..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_etcd_escapes_them() {
        for (raw, json) in [
            (&b"plain"[..], r#""plain""#),
            ("é\u{7f}".as_bytes(), "\"é\u{7f}\""),
            (b"a\"b\\c\n\r\t", r#""a\"b\\c\n\r\t""#),
            (b"\x00\x01\x08\x0c\x1f", r#""\u0000\u0001\u0008\u000c\u001f""#),
            (b"<&>", r#""\u003c\u0026\u003e""#),
            ("\u{2028}x\u{2029}".as_bytes(), r#""\u2028x\u2029""#),
            (b"a\xff\xfeb", r#""a\ufffd\ufffdb""#),
            // The first three bytes of a character of four: each is lost by itself.
            (b"\xf0\x9f\x98", r#""\ufffd\ufffd\ufffd""#),
        ] {
            let mut out = Vec::new();
            push_string(&mut out, raw);
            assert_eq!(String::from_utf8(out).unwrap(), json);
        }
    }
}
