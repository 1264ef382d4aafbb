//! Admission control: how much the server holds on behalf of its clients, beside the data.
//!
//! Whatever is held for a client is counted here before it is there, and until it is gone: requests that have not come
//! in whole, answers until their bytes have left, watches. There is one [`Budget`] for all, and an [`Account`] of it for
//! each connection. What is taken is a [`Share`], which gives itself back.
//!
//! Who is refused, when there is no room? Connections share the budget by *longest queue drop*, also known as push-out:
//! whoever holds the most makes room. If that is the one who asks, it is refused; if it is another, that connection is
//! closed. So nobody can keep others from what is their equal part, however many requests it sends and however little it
//! reads, and a client alone may use nearly all of it.
//!
//! What such a connection holds is counted until it is free: until then there is no room for others who ask for much. A
//! small part is kept for those who ask for little, so that they need not wait for it.
//!
//! Plain bookkeeping: it knows no sockets, and decides by numbers alone.

mod accounts;
mod budget;
mod counted;

pub(crate) use budget::{Account, Budget, Full, Share};
pub(crate) use counted::counted;
