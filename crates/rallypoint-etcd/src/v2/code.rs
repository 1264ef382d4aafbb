//! The error codes of etcd's v2 API.

use std::fmt;

use serde::Deserialize;

macro_rules! codes {
    ($($number:literal $name:ident $text:literal,)*) => {
        /// Why the v2 API refused, as its `errorCode` says.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
        #[serde(from = "u32")]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = concat!($text, ".")] $name,)*
            /// A code that etcd is not known to send.
            Other(u32),
        }

        impl From<u32> for Code {
            fn from(number: u32) -> Self {
                match number {
                    $($number => Code::$name,)*
                    other => Code::Other(other),
                }
            }
        }

        impl Code {
            /// The number on the wire.
            #[must_use]
            pub fn number(self) -> u32 {
                match self {
                    $(Code::$name => $number,)*
                    Code::Other(number) => number,
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)*
                    Code::Other(_) => "unknown code",
                }
            }
        }
    };
}

codes! {
    100 KeyNotFound "the key is not there",
    101 TestFailed "the comparison failed",
    102 NotAFile "the key is a directory",
    103 NoMorePeer "no more peers are taken",
    104 NotADirectory "the key is not a directory",
    105 NodeExists "the key is there already",
    106 KeyIsPreserved "the key is reserved by etcd",
    107 RootReadOnly "the root cannot be changed",
    108 DirectoryNotEmpty "the directory is not empty",
    109 ExistingPeerAddress "the peer's address is taken",
    110 Unauthorized "the user may not do that",
    200 ValueRequired "a value is required",
    201 PrevValueRequired "the previous value is required",
    202 TtlNotANumber "the TTL is not a number",
    203 IndexNotANumber "the index is not a number",
    204 ValueOrTtlRequired "a value or a TTL is required",
    205 TimeoutNotANumber "the timeout is not a number",
    206 NameRequired "a name is required",
    207 IndexOrValueRequired "an index or a value is required",
    208 IndexValueMutex "an index and a value exclude each other",
    209 InvalidField "a field is not valid",
    210 InvalidForm "the form is not valid",
    211 RefreshWithValue "a refresh takes no value",
    212 RefreshWithoutTtl "a refresh needs a TTL",
    300 RaftInternal "the servers could not agree",
    301 LeaderElection "the servers are electing a leader",
    400 WatcherCleared "the watcher was cleared",
    401 EventIndexCleared "the events since that index are no longer kept",
    402 StandbyInternal "the standby server failed",
    403 InvalidActiveSize "the cluster size is not valid",
    404 InvalidRemoveDelay "the removal delay is not valid",
    500 ClientInternal "the client is at fault",
}

impl Code {
    /// Whether the same request can succeed later. It may have been carried out all the same.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Code::RaftInternal | Code::LeaderElection | Code::WatcherCleared)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_name_and_comes_back() {
        for number in 0..600 {
            assert_eq!(Code::from(number).number(), number);
        }
        assert_eq!(Code::from(401), Code::EventIndexCleared);
        assert_eq!(Code::KeyNotFound.to_string(), "the key is not there (100)");
    }
}
