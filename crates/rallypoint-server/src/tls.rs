//! Certificates from files.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::{ServerError, Tls};

type Cause = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, ServerError> {
    let unusable = |source: Cause| ServerError::Tls { path: tls.cert_file.clone(), source };
    let chain = certificates("certificate", &tls.cert_file)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key_file)
        .map_err(|error| unreadable("private key", &tls.key_file, error.into()))?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.into()))?;
    let config = match &tls.client_ca_file {
        None => config.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates("client authority", path)? {
                roots.add(root).map_err(|error| unreadable("client authority", path, error.into()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| unreadable("client authority", path, error.into()))?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let mut config = config.with_single_cert(chain, key).map_err(|error| unusable(error.into()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// All certificates of a file; at least one.
fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(what, path, error.into()))?;
    if found.is_empty() {
        return Err(unreadable(what, path, "the file has none".into()));
    }
    Ok(found)
}

fn unreadable(what: &'static str, path: &Path, source: Cause) -> ServerError {
    ServerError::TlsFile { what, path: path.to_owned(), source }
}
