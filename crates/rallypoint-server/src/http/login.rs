//! Who a client says it is: HTTP's basic authentication.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, header};

use crate::v2::Login;

/// The user and the password in the headers, if there are any. What cannot be read is a user without a name: somebody
/// meant to be somebody, and is not taken for nobody.
pub(super) fn of(headers: &HeaderMap) -> Option<Login> {
    let shown = headers.get(header::AUTHORIZATION)?;
    let read = || {
        let (kind, secret) = shown.to_str().ok()?.split_once(' ')?;
        let secret = Some(secret.trim()).filter(|_| kind.eq_ignore_ascii_case("basic"))?;
        let text = String::from_utf8(BASE64_STANDARD.decode(secret).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some(Login { user: user.to_owned(), password: password.to_owned() })
    };
    Some(read().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_a_password_are_read_and_nothing_else() {
        let shown =
            |value: &str| of(&HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]));
        assert_eq!(of(&HeaderMap::new()), None);
        let login = |user: &str, password: &str| Some(Login { user: user.into(), password: password.into() });
        assert_eq!(shown("Basic cm9vdDpwYTpzcw=="), login("root", "pa:ss"));
        for wrong in ["Basic", "Basic !", "Bearer abc", "Basic cm9vdA==", "basic Og=="] {
            assert_eq!(shown(wrong), login("", ""), "{wrong}");
        }
    }
}
