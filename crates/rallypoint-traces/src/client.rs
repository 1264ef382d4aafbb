//! The HTTP client that spans are sent with: the one that the workspace has anyhow, rather than the exporter's own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, RootCertStore};

/// More than this of an answer is not read.
const LONGEST_ANSWER: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Client(reqwest::Client);

impl Client {
    pub(crate) fn new(timeout: Duration, secure: bool) -> Result<Self, reqwest::Error> {
        let mut roots = RootCertStore::empty();
        if secure {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        // The crypto library is named here and not installed for the whole process, which belongs to its program.
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has what the default versions need")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            // A proxy of the environment is for the world outside, not for the cluster.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .tls_backend_preconfigured(tls)
            .http1_only()
            .timeout(timeout)
            .build()?;
        Ok(Client(client))
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.0.execute(request.try_into()?).await?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await?
            && body.len() < LONGEST_ANSWER
        {
            body.extend_from_slice(&chunk);
        }
        let mut response = Response::new(Bytes::from(body));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}
