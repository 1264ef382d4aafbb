//! The servers that the v2 tests speak to, and how.
#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rallypoint_core::EtcdSettings;
use rallypoint_server::{Config, GatewayConfig, Numbering, Server};
use rallypoint_testkit::{Etcd, Version};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Far more than anything takes; a loaded machine must not fail a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A server of the v2 API.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    _runs: Runs,
}

/// What runs for as long as the target is there.
#[derive(Debug)]
enum Runs {
    Etcd(Etcd),
    Embedded(Server),
    /// With what is behind it, unless somebody else has that.
    Gateway(Server, Option<Etcd>),
    /// Ends with the runtime of the test.
    Task,
}

/// What the v2 half takes at most: watchers, bytes of a body, bytes held for all clients.
pub(crate) struct Limits {
    pub(crate) watchers: usize,
    pub(crate) body: usize,
    pub(crate) held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { watchers: 1000, body: 1 << 20, held: 16 << 20 }
    }
}

impl Target {
    /// A real etcd.
    pub(crate) async fn etcd(version: Version) -> Self {
        Self::real(version, true).await
    }

    /// The same without the v2 API.
    pub(crate) async fn etcd_without_v2(version: Version) -> Self {
        Self::real(version, false).await
    }

    async fn real(version: Version, has_v2: bool) -> Self {
        let start = move || match has_v2 {
            true => Etcd::builder(version).v2().start(),
            false => Etcd::start(version),
        };
        let etcd = tokio::task::spawn_blocking(start).await.unwrap();
        let name = match version {
            Version::V34 => "etcd 3.4",
            _ => "etcd 3.5",
        };
        Target { name, address: etcd.endpoint().parse().unwrap(), client: client(), _runs: Runs::Etcd(etcd) }
    }

    /// Ours, as it is started anywhere.
    pub(crate) async fn embedded() -> Self {
        Self::embedded_as(Config::on(SocketAddr::from(([127, 0, 0, 1], 0))))
    }

    /// Ours, with the indices of a fresh etcd.
    pub(crate) async fn embedded_fresh() -> Self {
        let mut config = Config::on(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.numbering = Numbering::FromOne;
        Self::embedded_as(config)
    }

    pub(crate) fn embedded_as(config: Config) -> Self {
        let server = Server::bind(config).unwrap();
        let address = server.address();
        Target { name: "embedded", address, client: client(), _runs: Runs::Embedded(server) }
    }

    /// A gateway to a real etcd that has no v2.
    pub(crate) async fn gateway(version: Version) -> Self {
        let etcd = tokio::task::spawn_blocking(move || Etcd::start(version)).await.unwrap();
        let mut target = Self::gateway_to(&etcd.endpoint()).await;
        if let Runs::Gateway(_, behind) = &mut target._runs {
            *behind = Some(etcd);
        }
        target
    }

    /// A gateway to what somebody else has started.
    pub(crate) async fn gateway_to(endpoints: &str) -> Self {
        let mut settings = EtcdSettings::new(endpoints).unwrap();
        settings.prefix = "/v2/".to_owned();
        let config = Config::on(SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = Server::gateway(config, GatewayConfig::to(settings)).await.unwrap();
        let address = server.address();
        Target { name: "gateway", address, client: client(), _runs: Runs::Gateway(server, None) }
    }

    /// Ends a server of ours at once, as if it were killed.
    pub(crate) fn end(&self) {
        match &self._runs {
            Runs::Gateway(server, _) | Runs::Embedded(server) => server.abort(),
            _ => panic!("{} cannot be ended", self.name),
        }
    }

    /// The etcd behind a gateway.
    pub(crate) fn behind(&self) -> &Etcd {
        match &self._runs {
            Runs::Gateway(_, Some(etcd)) => etcd,
            _ => panic!("nothing of its own is behind {}", self.name),
        }
    }

    /// Ours, its v2 half alone, with limits that a test can reach.
    pub(crate) async fn embedded_with(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let Limits { watchers, body, held } = limits;
        let router = rallypoint_server::v2_alone(format!("http://{address}"), watchers, body, held);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), service)
                        .await
                });
            }
        });
        Target { name: "embedded", address, client: client(), _runs: Runs::Task }
    }

    /// One of each kind that holds keys itself.
    pub(crate) async fn all() -> [Self; 3] {
        let (v34, v35) = tokio::join!(Self::etcd(Version::V34), Self::etcd(Version::V35));
        [v34, v35, Self::embedded().await]
    }

    /// One of each kind.
    pub(crate) async fn every() -> [Self; 4] {
        let ([v34, v35, embedded], gateway) = tokio::join!(Self::all(), Self::gateway(Version::V35));
        [v34, v35, embedded, gateway]
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends a request on a key, with the fields in the body where a body is read.
    pub(crate) async fn send(&self, method: Method, key: &str, fields: &str) -> Response {
        let url = self.url(&format!("/v2/keys{key}"));
        let request = match method {
            Method::PUT | Method::POST => self
                .client
                .request(method, url)
                .header("content-type", "application/x-www-form-urlencoded")
                .body(fields.to_owned()),
            _ if fields.is_empty() => self.client.request(method, url),
            _ => self.client.request(method, format!("{url}?{fields}")),
        };
        tokio::time::timeout(TIMEOUT, request.send()).await.expect("an answer in time").unwrap()
    }

    pub(crate) async fn call(&self, method: Method, key: &str, fields: &str) -> Answer {
        Answer::read(self.send(method, key, fields).await).await
    }

    pub(crate) async fn get(&self, key: &str, fields: &str) -> Answer {
        self.call(Method::GET, key, fields).await
    }

    pub(crate) async fn put(&self, key: &str, fields: &str) -> Answer {
        self.call(Method::PUT, key, fields).await
    }

    pub(crate) async fn delete(&self, key: &str, fields: &str) -> Answer {
        self.call(Method::DELETE, key, fields).await
    }

    /// Starts a watch; its headers are there, its events are in the body.
    pub(crate) async fn watch(&self, key: &str, fields: &str) -> Response {
        let response = self.send(Method::GET, key, &format!("wait=true&{fields}")).await;
        assert_eq!(response.status(), 200, "{}", self.name);
        response
    }

    /// Waits until a key is gone.
    pub(crate) async fn until_gone(&self, key: &str) {
        let gone = async {
            while self.get(key, "").await.status != 404 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, gone).await.expect("the key ends in time");
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub(crate) async fn raw(&self, request: &[u8]) -> String {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(request).await.unwrap();
            let mut answer = Vec::new();
            // A server that gives up on a request may reset the connection behind its answer.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        tokio::time::timeout(TIMEOUT, exchange).await.expect("an answer in time")
    }

    /// A request without a body, its target as it is. The head of the answer, in lower case.
    pub(crate) async fn raw_head(&self, method: &str, target: &str) -> String {
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        let answer = self.raw(request.as_bytes()).await;
        answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase()
    }
}

pub(crate) fn client() -> Client {
    // reqwest wants one even for plain HTTP. Another test of the process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().redirect(Policy::none()).no_proxy().build().unwrap()
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// `X-Etcd-Index`.
    pub(crate) index: Option<u64>,
    /// Whether it says which cluster it is from, and where raft is.
    pub(crate) has_cluster: bool,
    pub(crate) has_raft: bool,
    pub(crate) content_type: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn read(response: Response) -> Self {
        let header =
            |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let answer = Answer {
            status: response.status().as_u16(),
            index: header("x-etcd-index").map(|index| index.parse().unwrap()),
            has_cluster: header("x-etcd-cluster-id").is_some(),
            has_raft: header("x-raft-index").is_some() && header("x-raft-term").is_some(),
            content_type: header("content-type").unwrap_or_default(),
            body: String::new(),
        };
        let body = tokio::time::timeout(TIMEOUT, response.bytes()).await.expect("a body in time").unwrap();
        Answer { body: String::from_utf8(body.to_vec()).unwrap(), ..answer }
    }
}

/// Whether two bodies are the same but for the moments when things end, on which no two servers agree, and
/// for what may pass of a TTL between two answers.
pub(crate) fn is_alike(one: &str, other: &str) -> bool {
    let ((one, one_ttls), (other, other_ttls)) = (without_times(one), without_times(other));
    let close = |(one, other): (&u64, &u64)| one.abs_diff(*other) <= 5;
    one == other && one_ttls.len() == other_ttls.len() && one_ttls.iter().zip(&other_ttls).all(close)
}

/// The text without what every `expiration` and `ttl` says, and the TTLs.
pub(crate) fn without_times(text: &str) -> (String, Vec<u64>) {
    let mut ttls = Vec::new();
    let text = cut_after(text, "\"ttl\":", |c| !c.is_ascii_digit(), |ttl| ttls.push(ttl.parse().unwrap()));
    let text = cut_after(&text, "\"expiration\":\"", |c| c == '"', |_| {});
    (text, ttls)
}

/// The text without what stands between every `start` and the next `end`.
fn cut_after(text: &str, start: &str, end: fn(char) -> bool, mut seen: impl FnMut(&str)) -> String {
    let mut parts = text.split(start);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (cut, rest) = part.split_at(part.find(end).unwrap_or(part.len()));
        seen(cut);
        out.push_str(start);
        out.push_str(rest);
    }
    out
}
