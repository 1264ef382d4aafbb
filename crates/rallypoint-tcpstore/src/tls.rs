//! Certificates from files, for the connections between agents.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: no {what} that can be used: {source}", path.display())]
pub struct TlsError {
    /// What it should hold.
    pub what: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub source: Cause,
}

/// Mutual TLS: each side shows a certificate of one authority. Any node can have rank 0, so each has both sides.
#[derive(Debug, Clone)]
pub struct StoreTls {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl StoreTls {
    /// Reads the authority's certificate, this node's own, and its key, all in PEM.
    ///
    /// # Errors
    ///
    /// If one of them cannot be used; which one.
    pub fn load(ca: &Path, cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates("authority", ca)? {
            roots.add(root).map_err(|error| unusable("authority", ca, error.into()))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("certificate", cert)?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| unusable("unencrypted private key", key, error.into()))?;
        let own = |error: rustls::Error| unusable("certificate", cert, error.into());

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unusable("authority", ca, error.into()))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config.with_client_cert_verifier(verifier).with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(own)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_root_certificates(roots).with_client_auth_cert(chain, key))
            .map_err(own)?;
        Ok(StoreTls { server: Arc::new(server), client: Arc::new(client) })
    }
}

/// All certificates of a file; at least one.
fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(what, path, error.into()))?;
    if found.is_empty() {
        return Err(unusable(what, path, "the file has none".into()));
    }
    Ok(found)
}

fn unusable(what: &'static str, path: &Path, source: Cause) -> TlsError {
    TlsError { what, path: path.to_owned(), source }
}
