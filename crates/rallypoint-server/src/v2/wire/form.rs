//! The fields of a query or a form, read as Go reads them.

use super::error::{Code, Error, Result};

/// Fields in their order. Of several with one name the first counts.
#[derive(Debug, Default)]
pub(crate) struct Form(Vec<(Vec<u8>, Vec<u8>)>);

impl Form {
    /// The fields of the body, then those of the query.
    pub(crate) fn parse(body: &[u8], query: &[u8]) -> Result<Self> {
        let mut form = Form::default();
        // All of the body is read before the query can fail.
        form.read(body)?;
        form.read(query)?;
        Ok(form)
    }

    /// The value of a field, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    }

    fn read(&mut self, text: &[u8]) -> Result<()> {
        // A semicolon anywhere is what Go complains of, even after a bad escape.
        if text.contains(&b';') {
            return Err(Error::parse(Code::InvalidForm, "invalid semicolon separator in query"));
        }
        for field in text.split(|&byte| byte == b'&').filter(|field| !field.is_empty()) {
            let equals = field.iter().position(|&byte| byte == b'=');
            let (name, value) = equals.map_or((field, &b""[..]), |at| (&field[..at], &field[at + 1..]));
            self.0.push((unescape(name)?, unescape(value)?));
        }
        Ok(())
    }
}

fn unescape(text: &[u8]) -> Result<Vec<u8>> {
    let spaced: Vec<u8> = text.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    unescape_percent(&spaced).map_err(|at| {
        let bad = &text[at..text.len().min(at + 3)];
        Error::parse(Code::InvalidForm, [b"invalid URL escape \"", bad, b"\""].concat())
    })
}

/// Undoes the escapes of a path. An error is the place of the first bad one.
pub(crate) fn unescape_percent(text: &[u8]) -> std::result::Result<Vec<u8>, usize> {
    let digit = |at: usize| text.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut raw = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        if byte != b'%' {
            raw.push(byte);
            at += 1;
            continue;
        }
        let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else { return Err(at) };
        raw.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits make a byte"));
        at += 3;
    }
    Ok(raw)
}

/// Whether a body of this type is a form. Go reads no other.
pub(crate) fn is_form(content_type: Option<&[u8]>) -> Result<bool> {
    let Some(content_type) = content_type.filter(|text| !text.is_empty()) else { return Ok(false) };
    let mut parts = content_type.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let kind = parts.next().unwrap_or_default();
    if kind.is_empty() {
        return Err(Error::parse(Code::InvalidForm, "mime: no media type"));
    }
    if parts.any(|part| !part.is_empty() && !part.contains(&b'=')) {
        return Err(Error::parse(Code::InvalidForm, "mime: invalid media parameter"));
    }
    Ok(kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(result: Result<Form>) -> String {
        let error = result.unwrap_err();
        assert_eq!((error.code, error.index), (Code::InvalidForm, 0));
        String::from_utf8(error.cause).unwrap()
    }

    #[test]
    fn the_body_beats_the_query_and_the_first_field_the_others() {
        let form = Form::parse(b"a=1&b=2&b=3", b"a=4&c=5").unwrap();
        for (name, value) in [("a", Some("1")), ("b", Some("2")), ("c", Some("5")), ("d", None)] {
            assert_eq!(form.get(name), value.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn fields_are_any_bytes() {
        let form = Form::parse(b"", b"a+b=%FF%00+%2B%26&&empty=&bare&x=1=2").unwrap();
        assert_eq!(form.get("a b"), Some(&b"\xff\0 +&"[..]));
        assert_eq!((form.get("empty"), form.get("bare")), (Some(&b""[..]), Some(&b""[..])));
        assert_eq!(form.get("x"), Some(&b"1=2"[..]));
    }

    #[test]
    fn bad_escapes_and_semicolons_are_named() {
        assert_eq!(cause(Form::parse(b"a=%zz", b"")), "invalid URL escape \"%zz\"");
        assert_eq!(cause(Form::parse(b"a=%zz", b"b=%yy")), "invalid URL escape \"%zz\"");
        assert_eq!(cause(Form::parse(b"", b"b=1%4")), "invalid URL escape \"%4\"");
        assert_eq!(cause(Form::parse(b"a=%zz&b;", b"")), "invalid semicolon separator in query");
    }

    #[test]
    fn only_a_form_is_read() {
        let form = "application/x-www-form-urlencoded";
        for (content_type, yes) in [
            (form.to_owned(), true),
            (form.to_uppercase(), true),
            (format!("{form}; charset=utf-8"), true),
            (format!("{form};"), true),
            (String::new(), false),
            ("text/plain".to_owned(), false),
        ] {
            assert_eq!(is_form(Some(content_type.as_bytes())), Ok(yes), "{content_type}");
        }
        assert_eq!(is_form(None), Ok(false));
        for (content_type, cause) in
            [(";;", "mime: no media type"), ("a/b; charset", "mime: invalid media parameter")]
        {
            assert_eq!(is_form(Some(content_type.as_bytes())).unwrap_err().cause, cause.as_bytes());
        }
    }
}
