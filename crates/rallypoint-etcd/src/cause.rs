//! What is at the bottom of an error of a library: what lies between says no more.

use std::error::Error;

pub(crate) fn bottom<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(next) = error.source() {
        error = next;
    }
    error
}
