//! The keys API.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rallypoint_metrics::Etcd as Metrics;
use reqwest::Method;

use super::path::{form, path};
use super::transport::{Body, MAX_FORM, Reply, Request, Rest, Transport};
use super::watch::{Polled, Watcher};
use super::{Code, Delete, Get, Lookup, Put, Refusal, Response, Version};
use crate::error::CONNECT;
use crate::failover::{Failover, after};
use crate::{Error, ErrorKind, Result};

/// A client of etcd's v2 API. Cheap to clone; clones share their connections.
///
/// Keys are paths: a `/` separates directories, anything else is part of a name. Values are text.
///
/// Requests go to the endpoint that answered last, and on to the next one when it fails. Reads are repeated
/// until the time of a request is over; writes only where it is certain that they were not carried out. Of
/// others, [`Error::may_have_applied`] says that nobody knows.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rallypoint_core::EtcdSettings;
/// use rallypoint_etcd::v2::{Client, Get, Put};
///
/// let client = Client::connect(EtcdSettings::new("etcd1,etcd2,etcd3")?).await?;
/// let written = client.set("/greeting", "hello").await?;
/// let index = written.node.modified_index;
/// client.put("/greeting", Put::value("hi").prev_index(index)).await?;
/// assert_eq!(client.get("/greeting", Get::new()).await?.node.value.as_deref(), Some("hi"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// The settings' prefix, as the server writes it.
    prefix: Arc<str>,
    retry_timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    transport: Transport,
    urls: Vec<String>,
    failover: Failover,
}

impl Client {
    /// Connects to the first endpoint that answers.
    pub async fn connect(settings: EtcdSettings) -> Result<Client> {
        Client::connect_counting(settings, Metrics::default()).await
    }

    /// The same, and counts what it asks for.
    pub async fn connect_counting(settings: EtcdSettings, metrics: Metrics) -> Result<Client> {
        let client = Client::connect_lazily_counting(settings, metrics)?;
        let Shared { transport, urls, failover } = &*client.shared;
        let deadline = after(client.settings().connect_timeout);
        let request = version_request(CONNECT);
        failover
            .connect(deadline, async |at| transport.send(&urls[at], &request, deadline).await.map(|_| ()))
            .await?;
        Ok(client)
    }

    /// A client that connects with its first request.
    pub fn connect_lazily(settings: EtcdSettings) -> Result<Client> {
        Client::connect_lazily_counting(settings, Metrics::default())
    }

    /// The same, and counts what it asks for.
    pub fn connect_lazily_counting(settings: EtcdSettings, metrics: Metrics) -> Result<Client> {
        let retry_timeout = settings.retry_timeout;
        let prefix = clean(&settings.prefix).into();
        let urls = settings.urls();
        let failover = Failover::new(&settings.endpoints);
        let transport = Transport::new(settings, metrics)?;
        Ok(Client { shared: Arc::new(Shared { transport, urls, failover }), prefix, retry_timeout })
    }

    /// The same client, with another time for a request and its retries.
    #[must_use]
    pub fn retrying_for(&self, retry_timeout: Duration) -> Client {
        Client { retry_timeout, ..self.clone() }
    }

    /// For how long no server has answered.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        self.shared.failover.reach.silent_for()
    }

    /// Why the last try of a request was not answered, if none was since.
    #[must_use]
    pub fn why_silent(&self) -> Option<String> {
        self.shared.failover.reach.why()
    }

    /// What it was connected with.
    #[must_use]
    pub fn settings(&self) -> &EtcdSettings {
        self.shared.transport.settings()
    }

    /// Whether `key` can be asked for: etcd hangs up on paths of more than about 4,000 bytes, as percent
    /// encoding counts them, and takes `.` and `..` for something else.
    #[must_use]
    pub fn takes(&self, key: &str) -> bool {
        path(&self.whole(key)).is_ok()
    }

    /// Reads a key or a directory.
    pub async fn get(&self, key: &str, options: Get) -> Result<Response> {
        let query = form(&options.fields());
        self.keys("get", Method::GET, key, &query, None).await
    }

    /// Reads a key or a directory that may not be there.
    pub async fn find(&self, key: &str, options: Get) -> Result<Lookup> {
        match self.get(key, options).await {
            Ok(Response { node, etcd_index, .. }) => Ok(Lookup { node: Some(node), etcd_index }),
            Err(error) => match Refusal::of(&error) {
                Some(Refusal { code: Code::KeyNotFound, index, .. }) => {
                    Ok(Lookup { node: None, etcd_index: *index })
                }
                _ => Err(error),
            },
        }
    }

    /// Writes a value over whatever is there.
    pub async fn set(&self, key: &str, value: &str) -> Result<Response> {
        self.put(key, Put::value(value)).await
    }

    /// Writes a value where nothing is.
    pub async fn create(&self, key: &str, value: &str) -> Result<Response> {
        self.put(key, Put::value(value).prev_exist(false)).await
    }

    /// Writes what `put` says.
    pub async fn put(&self, key: &str, put: Put<'_>) -> Result<Response> {
        self.keys(put.what(), Method::PUT, key, "", Some(put.form())).await
    }

    /// Writes a value into the directory `key`, under a name that comes after all names given so far.
    pub async fn push(&self, key: &str, value: Put<'_>) -> Result<Response> {
        self.keys("push", Method::POST, key, "", Some(value.form())).await
    }

    /// Removes what `delete` says.
    pub async fn delete(&self, key: &str, delete: Delete<'_>) -> Result<Response> {
        self.keys(delete.what(), Method::DELETE, key, &delete.query(), None).await
    }

    /// The changes of `key` from index `from` on.
    ///
    /// Read the key first and watch from the index after that read's: then nothing is missed.
    #[must_use]
    pub fn watch(&self, key: &str, from: u64) -> Watcher {
        Watcher::new(self.clone(), key, from)
    }

    /// What server answers.
    pub async fn version(&self) -> Result<Version> {
        let request = version_request("version");
        let reply = self.send(&request).await?;
        serde_json::from_slice(reply.text())
            .map_err(|cause| request.error(ErrorKind::Protocol).because(cause))
    }

    /// One poll of a watch, for a change from index `from` on.
    pub(super) async fn poll(&self, key: &str, recursive: bool, from: u64, time: Duration) -> Result<Polled> {
        // Index 0 would mean "from now on".
        let from = from.max(1);
        let index = from.to_string();
        let mut fields = vec![("wait", "true"), ("waitIndex", index.as_str())];
        if recursive {
            fields.insert(0, ("recursive", "true"));
        }
        let mut request = self.request("watch", Method::GET, key, &form(&fields), None)?;
        request.poll = true;
        let mut reply = self.send(&request).await?;
        if let Body::Begun(response) = reply.body {
            reply.body = match Transport::listen(&request, *response, time).await? {
                // That nothing more was said is no answer.
                Rest::Quiet if reply.etcd_index + 1 < from => return Ok(Polled::Behind),
                Rest::Quiet => return Ok(Polled::Quiet),
                Rest::Cut => return Ok(Polled::Cut),
                Rest::Whole(body) => Body::Whole(body),
            };
            self.shared.failover.reach.answered();
        }
        self.response(&request, &reply).map(|event| Polled::Event(Box::new(event)))
    }

    async fn keys(
        &self,
        what: &'static str,
        method: Method,
        key: &str,
        query: &str,
        form: Option<String>,
    ) -> Result<Response> {
        let request = self.request(what, method, key, query, form)?;
        let reply = self.send(&request).await?;
        self.response(&request, &reply)
    }

    async fn send(&self, request: &Request<'_>) -> Result<Reply> {
        let Shared { transport, urls, failover } = &*self.shared;
        let send = async |at: usize, deadline| transport.send(&urls[at], request, deadline).await;
        failover.call(request.repeat(), self.retry_timeout, send).await
    }

    fn request<'a>(
        &self,
        what: &'static str,
        method: Method,
        key: &'a str,
        query: &str,
        form: Option<String>,
    ) -> Result<Request<'a>> {
        let refused = |kind, problem: String| Err(Error::new(kind, what).key(key).because(problem));
        if let Some(form) = form.as_ref().filter(|form| form.len() > MAX_FORM) {
            let problem = format!("{} bytes as a form, and the v2 API takes {MAX_FORM}", form.len());
            return refused(ErrorKind::TooLarge, problem);
        }
        match path(&self.whole(key)) {
            Err(problem) => refused(ErrorKind::Rejected, problem),
            Ok(mut path) => {
                if !query.is_empty() {
                    path.push('?');
                    path.push_str(query);
                }
                Ok(Request { what, key, method, path, form, poll: false })
            }
        }
    }

    fn response(&self, request: &Request<'_>, reply: &Reply) -> Result<Response> {
        Response::parse(reply.text(), reply.etcd_index, &self.prefix)
            .map_err(|cause| request.error(ErrorKind::Protocol).because(cause))
    }

    fn whole(&self, key: &str) -> String {
        format!("{}{key}", self.settings().prefix)
    }
}

fn version_request(what: &'static str) -> Request<'static> {
    let path = "/version".to_owned();
    Request { what, key: "", method: Method::GET, path, form: None, poll: false }
}

/// `prefix` as it begins the keys that the server names, so that what is left of them begins with a slash
/// where the prefix is a directory.
fn clean(prefix: &str) -> String {
    prefix.split('/').filter(|segment| !segment.is_empty()).flat_map(|segment| ["/", segment]).collect()
}
