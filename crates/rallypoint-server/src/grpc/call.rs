//! A request, as what answers it sees it.

use std::sync::Arc;

use crate::admission::Account;
use crate::auth::Caller;
use crate::shared::Shared;

/// What is asked, whom it is counted for, and who asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) account: &'a Account,
    pub(super) caller: &'a Caller,
}

impl Call<'_> {
    /// For an answer that takes some steps.
    pub(super) fn owned(self) -> OwnedCall {
        let Call { shared, account, caller } = self;
        OwnedCall { shared: Arc::clone(shared), account: account.clone(), caller: caller.clone() }
    }
}

/// The same, for as long as the answer takes.
#[derive(Debug, Clone)]
pub(super) struct OwnedCall {
    pub(super) shared: Arc<Shared>,
    pub(super) account: Account,
    pub(super) caller: Caller,
}

impl OwnedCall {
    pub(super) fn borrowed(&self) -> Call<'_> {
        let OwnedCall { shared, account, caller } = self;
        Call { shared, account, caller }
    }
}
