//! What a request asks for.

use std::num::NonZeroU64;

use bytes::Bytes;
use http::Method;

use super::error::{Code, Error, Result};
use super::form::Form;
use super::path::Path;

/// How deep a node may be. etcd has no limit; here a listing descends without growing its stack.
const MAX_DEPTH: usize = 256;

/// A request on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: Path,
    pub(crate) op: Op,
    /// The answer to a write need not repeat what was written.
    pub(crate) no_value: bool,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Get {
        recursive: bool,
    },
    Watch {
        recursive: bool,
        stream: bool,
        /// The first index to be told of. 0 means from now on.
        since: u64,
    },
    /// Creates, or replaces a file.
    Set(Put),
    /// Only where nothing is.
    Create(Put),
    /// Creates in a directory, under a name that sorts after all before it.
    Append(Put),
    /// Only what is there.
    Update(Put),
    CompareAndSwap(Compare, Put),
    Delete {
        dir: bool,
        recursive: bool,
    },
    CompareAndDelete(Compare),
}

/// What a node is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Put {
    pub(crate) value: Bytes,
    pub(crate) dir: bool,
    /// Seconds. None is for ever.
    pub(crate) ttl: Option<u64>,
    /// Keeps the value and wakes nobody.
    pub(crate) refresh: bool,
}

/// What a file must be. What is None may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Compare {
    pub(crate) value: Option<Bytes>,
    pub(crate) index: Option<NonZeroU64>,
}

impl Request {
    /// Reads a request on the key at `path`. The order of the checks is etcd's: of several errors it shows
    /// the same one.
    pub(crate) fn parse(method: &Method, path: Path, query: &[u8], body: &[u8]) -> Result<Self> {
        let fields = Fields(Form::parse(body, query)?);
        let prev_index = fields.number("prevIndex", Code::IndexNotANumber)?.and_then(NonZeroU64::new);
        let since = fields.number("waitIndex", Code::IndexNotANumber)?.unwrap_or(0);
        let recursive = fields.flag("recursive")?.unwrap_or(false);
        // Every listing is sorted and every read is consistent, asked for or not.
        fields.flag("sorted")?;
        let wait = fields.flag("wait")?.unwrap_or(false);
        let dir = fields.flag("dir")?.unwrap_or(false);
        let quorum = fields.flag("quorum")?.unwrap_or(false);
        let stream = fields.flag("stream")?.unwrap_or(false);
        if wait && method != Method::GET {
            return Err(Error::parse(Code::InvalidField, "\"wait\" can only be used with GET requests"));
        }
        let prev_value = fields.0.get("prevValue").map(Bytes::copy_from_slice);
        if prev_value.as_ref().is_some_and(Bytes::is_empty) {
            return Err(Error::parse(Code::PrevValueRequired, "\"prevValue\" cannot be empty"));
        }
        let no_value = fields.flag("noValueOnSuccess")?.unwrap_or(false);
        let ttl = match fields.0.get("ttl") {
            None | Some(b"") => None,
            Some(_) => fields.number("ttl", Code::TtlNotANumber)?,
        };
        let prev_exist = fields.bare_flag("prevExist")?;
        let refresh = fields.bare_flag("refresh")?.unwrap_or(false);
        let value = fields.0.get("value").unwrap_or_default();
        if refresh && !value.is_empty() {
            return Err(Error::parse(Code::ValueOnRefresh, "A value was provided on a refresh"));
        }
        if refresh && ttl.is_none() {
            return Err(Error::parse(Code::TtlRequiredOnRefresh, "No TTL value set"));
        }
        if path.depth() > MAX_DEPTH {
            return Err(Error::parse(Code::InvalidField, format!("a key has at most {MAX_DEPTH} parts")));
        }

        let put = || Put { value: Bytes::copy_from_slice(value), dir, ttl, refresh };
        let compare = Compare { value: prev_value, index: prev_index };
        let compares = compare != Compare::default();
        let op = match *method {
            // To create is never to refresh: there is nothing yet.
            Method::POST => Op::Append(Put { refresh: false, ..put() }),
            Method::PUT => match prev_exist {
                Some(false) => Op::Create(Put { refresh: false, ..put() }),
                _ if compares => Op::CompareAndSwap(compare, put()),
                Some(true) => Op::Update(put()),
                None => Op::Set(put()),
            },
            Method::DELETE if compares => Op::CompareAndDelete(compare),
            Method::DELETE => Op::Delete { dir, recursive },
            // A read with a quorum waits for nothing, as etcd's.
            _ if wait && !quorum => Op::Watch { recursive, stream, since },
            _ => Op::Get { recursive },
        };
        Ok(Request { path, op, no_value })
    }
}

struct Fields(Form);

impl Fields {
    /// Digits and nothing else.
    fn number(&self, name: &str, code: Code) -> Result<Option<u64>> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        let digits = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(Error::parse(code, format!("invalid value for \"{name}\""))),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.read_flag(name, || format!("invalid value for \"{name}\""))
    }

    /// One whose name etcd does not quote.
    fn bare_flag(&self, name: &str) -> Result<Option<bool>> {
        self.read_flag(name, || format!("invalid value for {name}"))
    }

    fn read_flag(&self, name: &str, cause: impl Fn() -> String) -> Result<Option<bool>> {
        match self.0.get(name) {
            None => Ok(None),
            Some(b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True") => Ok(Some(true)),
            Some(b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False") => Ok(Some(false)),
            Some(_) => Err(Error::parse(Code::InvalidField, cause())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, query: &str, body: &str) -> Result<Op> {
        Request::parse(method, Path::clean(b"/a"), query.as_bytes(), body.as_bytes())
            .map(|request| request.op)
    }

    fn put(value: &'static str) -> Put {
        Put { value: value.into(), ..Put::default() }
    }

    fn compare(value: Option<&'static str>, index: u64) -> Compare {
        Compare { value: value.map(Bytes::from), index: NonZeroU64::new(index) }
    }

    #[test]
    fn method_and_fields_say_what_to_do() {
        for (method, query, op) in [
            (Method::GET, "", Op::Get { recursive: false }),
            (Method::HEAD, "recursive=1&sorted=T&quorum=f", Op::Get { recursive: true }),
            (Method::GET, "wait=true", Op::Watch { recursive: false, stream: false, since: 0 }),
            (Method::GET, "wait=true&quorum=true", Op::Get { recursive: false }),
            (
                Method::GET,
                "wait=t&stream=t&recursive=t&waitIndex=7",
                Op::Watch { recursive: true, stream: true, since: 7 },
            ),
            (Method::PUT, "", Op::Set(put(""))),
            (Method::PUT, "value=v&ttl=", Op::Set(put("v"))),
            (Method::PUT, "ttl=0", Op::Set(Put { ttl: Some(0), ..put("") })),
            (Method::PUT, "dir=true", Op::Set(Put { dir: true, ..put("") })),
            (Method::PUT, "ttl=5&refresh=true", Op::Set(Put { ttl: Some(5), refresh: true, ..put("") })),
            (Method::PUT, "value=v&prevExist=false", Op::Create(put("v"))),
            (Method::PUT, "value=v&prevExist=false&prevIndex=3", Op::Create(put("v"))),
            (Method::PUT, "value=v&prevExist=true", Op::Update(put("v"))),
            (Method::PUT, "value=v&prevIndex=0", Op::Set(put("v"))),
            (Method::PUT, "value=v&prevIndex=3", Op::CompareAndSwap(compare(None, 3), put("v"))),
            (Method::PUT, "prevValue=x&prevExist=true", Op::CompareAndSwap(compare(Some("x"), 0), put(""))),
            (Method::POST, "value=v&prevExist=true", Op::Append(put("v"))),
            (Method::DELETE, "dir=true", Op::Delete { dir: true, recursive: false }),
            (Method::DELETE, "recursive=true", Op::Delete { dir: false, recursive: true }),
            (Method::DELETE, "prevIndex=3&dir=true", Op::CompareAndDelete(compare(None, 3))),
        ] {
            assert_eq!(parse(&method, query, ""), Ok(op), "{method} {query}");
        }
        assert_eq!(parse(&Method::PUT, "value=query&ttl=4", "value=body&ttl="), Ok(Op::Set(put("body"))));
    }

    #[test]
    fn what_makes_no_sense_has_a_code_and_index_0() {
        for (method, query, code, cause) in [
            (Method::GET, "prevIndex=a", 203, "invalid value for \"prevIndex\""),
            (Method::GET, "waitIndex=", 203, "invalid value for \"waitIndex\""),
            (Method::GET, "waitIndex=-1", 203, "invalid value for \"waitIndex\""),
            (Method::GET, "waitIndex=%2B1", 203, "invalid value for \"waitIndex\""),
            (Method::GET, "waitIndex=18446744073709551616", 203, "invalid value for \"waitIndex\""),
            (Method::GET, "recursive=yes", 209, "invalid value for \"recursive\""),
            (Method::GET, "sorted=2", 209, "invalid value for \"sorted\""),
            (Method::GET, "wait=", 209, "invalid value for \"wait\""),
            (Method::GET, "dir=tRUE", 209, "invalid value for \"dir\""),
            (Method::GET, "quorum=x", 209, "invalid value for \"quorum\""),
            (Method::GET, "stream=x", 209, "invalid value for \"stream\""),
            (Method::PUT, "wait=true", 209, "\"wait\" can only be used with GET requests"),
            (Method::HEAD, "wait=true", 209, "\"wait\" can only be used with GET requests"),
            (Method::PUT, "prevValue=", 201, "\"prevValue\" cannot be empty"),
            (Method::PUT, "noValueOnSuccess=x", 209, "invalid value for \"noValueOnSuccess\""),
            (Method::PUT, "ttl=1.5", 202, "invalid value for \"ttl\""),
            (Method::PUT, "ttl=-1", 202, "invalid value for \"ttl\""),
            (Method::PUT, "prevExist=", 209, "invalid value for prevExist"),
            (Method::PUT, "refresh=x", 209, "invalid value for refresh"),
            (Method::PUT, "refresh=true&ttl=5&value=v", 211, "A value was provided on a refresh"),
            (Method::PUT, "refresh=true", 212, "No TTL value set"),
            // Of several the first that etcd looks at.
            (Method::PUT, "refresh=true&value=v", 211, "A value was provided on a refresh"),
            (Method::PUT, "ttl=x&prevValue=&wait=x&prevIndex=x", 203, "invalid value for \"prevIndex\""),
        ] {
            let error = parse(&method, query, "").unwrap_err();
            let seen = (error.code as u16, String::from_utf8(error.cause).unwrap(), error.index);
            assert_eq!(seen, (code, cause.to_owned(), 0), "{method} {query}");
        }
    }

    #[test]
    fn a_key_too_deep_is_refused() {
        let deep = |parts: usize| Path::clean("/a".repeat(parts).as_bytes());
        assert!(Request::parse(&Method::GET, deep(MAX_DEPTH), b"", b"").is_ok());
        let error = Request::parse(&Method::GET, deep(MAX_DEPTH + 1), b"", b"").unwrap_err();
        assert_eq!(error.code, Code::InvalidField);
    }
}
