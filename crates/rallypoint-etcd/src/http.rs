//! How an etcd is asked over HTTP.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::EtcdSettings;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{CONNECT, LOAD_TLS_FILES};
use crate::tls::Pem;
use crate::{Error, ErrorKind, Result};

/// A client for the servers of these settings, with their TLS.
pub(crate) fn client(settings: &EtcdSettings) -> Result<reqwest::Client> {
    let wrong = || Error::new(ErrorKind::Settings, CONNECT);
    settings.check().map_err(|error| wrong().because(error))?;
    reqwest::Client::builder()
        // A proxy of the environment is for the world outside, not for the cluster.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        // What is safe to send again is decided here, not there.
        .retry(reqwest::retry::never())
        .tls_backend_preconfigured(tls_config(settings)?)
        .http1_only()
        // Less than a try may take, so that a request that was never sent is known as such.
        .connect_timeout(settings.connect_timeout.min(settings.request_timeout.mul_f64(0.8)))
        .tcp_keepalive(Duration::from_secs(30))
        .build()
        .map_err(|error| wrong().because(error))
}

/// The crypto library is named here and not installed for the whole process, which belongs to its program.
fn tls_config(settings: &EtcdSettings) -> Result<ClientConfig> {
    let wrong = |problem: String| Error::new(ErrorKind::Settings, LOAD_TLS_FILES).because(problem);
    let pem = match &settings.tls {
        Some(tls) => Pem::load(tls)?,
        None => Pem { ca: None, identity: None },
    };
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &pem.ca {
        for cert in CertificateDer::pem_slice_iter(ca) {
            let cert = cert.map_err(|cause| wrong(format!("the CA file: {cause}")))?;
            roots.add(cert).map_err(|cause| wrong(format!("the CA file: {cause}")))?;
        }
    } else if settings.urls().iter().any(|url| url.starts_with("https:")) {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(wrong("the system has no trusted certificates: set a CA file".to_owned()));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|cause| wrong(cause.to_string()))?
        .with_root_certificates(roots);
    let Some((cert, key)) = &pem.identity else { return Ok(config.with_no_client_auth()) };
    let chain = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| wrong(format!("the certificate file: {cause}")))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|cause| wrong(format!("the key file: {cause}")))?;
    config
        .with_client_auth_cert(chain, key)
        .map_err(|cause| wrong(format!("the certificate and key files do not work together: {cause}")))
}
