//! Certificates from files, which are read again when they change.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::{ServerError, Tls};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// More than any certificates are.
const MOST_BYTES: u64 = 4 << 20;
/// How often the files are looked at, at most: when a connection comes.
const INTERVAL: Duration = Duration::from_secs(2);

/// The certificates of a server, as they are in their files now.
#[derive(Debug)]
pub(crate) struct Certificates {
    tls: Tls,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    /// The files that it was made of, or those that nothing could be made of since.
    seen: Stamps,
    looked: Instant,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// What tells that a file is another: its number, its size, and when it was written. None for one that is not there.
type Stamp = Option<(u64, u64, i64, i64)>;
type Stamps = [Stamp; 3];

impl Certificates {
    pub(crate) fn load(tls: &Tls) -> Result<Self, ServerError> {
        // Before they are read: what changes meanwhile is seen later.
        let (seen, looked) = (stamps(tls), Instant::now());
        let current = Mutex::new(Current { acceptor: acceptor(tls)?, seen, looked });
        Ok(Certificates { tls: tls.clone(), current })
    }

    /// What takes the next connection in.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= INTERVAL {
            self.look(&mut current);
        }
        current.acceptor.clone()
    }

    /// Looks at the files now.
    pub(crate) fn reload(&self) {
        self.look(&mut self.current.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn look(&self, current: &mut Current) {
        let seen = stamps(&self.tls);
        current.looked = Instant::now();
        if seen == current.seen {
            return;
        }
        current.seen = seen;
        match acceptor(&self.tls) {
            Ok(acceptor) => {
                current.acceptor = acceptor;
                tracing::info!("the certificate in {} has changed and is used", self.tls.cert_file.display());
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                tracing::error!(
                    "{error}{}; the certificates from before are still used, and the files looked at when they change",
                    cause.unwrap_or_default()
                );
            }
        }
    }
}

fn stamps(tls: &Tls) -> Stamps {
    let stamp = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    };
    [stamp(&tls.cert_file), stamp(&tls.key_file), tls.client_ca_file.as_deref().and_then(stamp)]
}

/// The name that the certificate of a client has for it.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(Arc::from(name)).filter(|name: &Arc<str>| !name.is_empty())
}

pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, ServerError> {
    let unusable = |source: Cause| ServerError::Tls { path: tls.cert_file.clone(), source };
    let chain = certificates("certificate", &tls.cert_file)?;
    let key = read(&tls.key_file)
        .and_then(|text| Ok(PrivateKeyDer::from_pem_slice(&text)?))
        .map_err(|error| unreadable("private key", &tls.key_file, error))?;

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
    let found = read(path)
        .and_then(|text| Ok(CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>()?))
        .map_err(|error| unreadable(what, path, error))?;
    if found.is_empty() {
        return Err(unreadable(what, path, "the file has none".into()));
    }
    Ok(found)
}

/// The text of a file. What is no file may never end, as a pipe does not.
fn read(path: &Path) -> Result<Vec<u8>, Cause> {
    let at_once = i32::try_from(OFlags::NONBLOCK.bits())?;
    let file = OpenOptions::new().read(true).custom_flags(at_once).open(path)?;
    if !file.metadata()?.is_file() {
        return Err("it is no file".into());
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

fn unreadable(what: &'static str, path: &Path, source: Cause) -> ServerError {
    ServerError::TlsFile { what, path: path.to_owned(), source }
}
