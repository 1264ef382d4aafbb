//! Runs every case on a store of its own and names all that fail.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::Store;

type Opening = Pin<Box<dyn Future<Output = Box<dyn Store>> + Send>>;
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How large a value may be.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) fits: usize,
    pub(crate) too_large: &'static [usize],
}

/// An empty store, and what is known of it.
pub(crate) struct Fixture {
    pub(crate) store: Box<dyn Store>,
    pub(crate) limit: Option<Limit>,
    lists: bool,
}

impl Fixture {
    /// The keys are these, in their order, where the server can list them.
    pub(crate) async fn assert_keys(&self, keys: &[&[u8]]) {
        if self.lists {
            assert_eq!(self.store.list_keys().await.unwrap(), keys);
        }
    }

    /// Another handle on the same data, as another thread has it.
    pub(crate) fn another(&self) -> Box<dyn Store> {
        self.store.clone_store()
    }
}

pub(crate) struct Suite {
    open: Box<dyn Fn(String) -> Opening>,
    limit: Option<Limit>,
    queues: bool,
    lists: bool,
}

pub(crate) type Case = (&'static str, fn(Arc<Fixture>) -> Running);

/// Lists the cases of a module by their names.
#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::suite::Case> {
            vec![$((stringify!($name), |fixture| Box::pin($name(fixture)))),*]
        }
    };
}

impl Suite {
    pub(crate) fn new<F>(limit: Option<Limit>, open: impl Fn(String) -> F + 'static) -> Self
    where
        F: Future<Output = Box<dyn Store>> + Send + 'static,
    {
        Suite { open: Box::new(move |name| Box::pin(open(name))), limit, queues: true, lists: true }
    }

    /// For a server that has no queues.
    pub(crate) fn without_queues(self) -> Self {
        Suite { queues: false, ..self }
    }

    /// For a server that cannot list its keys.
    pub(crate) fn without_lists(self) -> Self {
        Suite { lists: false, ..self }
    }

    pub(crate) async fn run(self) {
        let cases = [
            crate::cases_keys::cases(),
            crate::cases_numbers::cases(),
            crate::cases_waiting::cases(),
            if self.queues { crate::cases_queues::cases() } else { Vec::new() },
        ]
        .concat();
        let mut failed = Vec::new();
        for (name, case) in cases {
            let store = (self.open)(name.to_owned()).await;
            store.set_timeout(Duration::from_secs(30));
            let fixture = Arc::new(Fixture { store, limit: self.limit, lists: self.lists });
            let running = tokio::spawn(case(fixture));
            match tokio::time::timeout(Duration::from_secs(60), running).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => failed.push(name),
                Err(_) => {
                    eprintln!("{name} did not end");
                    failed.push(name);
                }
            }
        }
        assert!(failed.is_empty(), "failed: {}", failed.join(", "));
    }
}
