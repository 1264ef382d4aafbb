//! Certificates, good and wrong ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

const LOOPBACK: &[&str] = &["localhost", "127.0.0.1", "::1"];

/// A certificate authority and what it signed, as PEM files in a folder that goes when the last clone does.
#[derive(Debug, Clone)]
pub struct Certs(Arc<Files>);

#[derive(Debug)]
struct Files {
    ca: PathBuf,
    other_ca: PathBuf,
    server: Pair,
    elsewhere: Pair,
    client: Pair,
    _dir: TempDir,
}

#[derive(Debug)]
struct Pair {
    cert: PathBuf,
    key: PathBuf,
}

impl Certs {
    /// Makes new ones.
    #[must_use]
    pub fn generate() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("rallypoint-certs-")
            .tempdir()
            .expect("a temporary folder can be made");
        let at = dir.path();
        let (ca, other) = (authority("Rallypoint test CA"), authority("Some other CA"));
        // A server that asks for client certificates also shows its own as a client: etcd's gateway calls
        // etcd itself.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Certs(Arc::new(Files {
            ca: write(at, "ca.pem", &ca.pem()),
            other_ca: write(at, "other-ca.pem", &other.pem()),
            server: issue(at, &ca, "server", LOOPBACK, &both),
            elsewhere: issue(at, &ca, "elsewhere", &["elsewhere.example"], &both),
            client: issue(at, &ca, "client", &[], &[ExtendedKeyUsagePurpose::ClientAuth]),
            _dir: dir,
        }))
    }

    /// The authority that signed everything here.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.0.ca
    }

    /// Another authority, which signed nothing.
    #[must_use]
    pub fn other_ca(&self) -> &Path {
        &self.0.other_ca
    }

    /// A server's certificate for localhost, 127.0.0.1 and ::1.
    #[must_use]
    pub fn server_cert(&self) -> &Path {
        &self.0.server.cert
    }

    /// The key of [`Certs::server_cert`].
    #[must_use]
    pub fn server_key(&self) -> &Path {
        &self.0.server.key
    }

    /// A server's certificate for `elsewhere.example` only.
    #[must_use]
    pub fn elsewhere_cert(&self) -> &Path {
        &self.0.elsewhere.cert
    }

    /// The key of [`Certs::elsewhere_cert`].
    #[must_use]
    pub fn elsewhere_key(&self) -> &Path {
        &self.0.elsewhere.key
    }

    /// A client's certificate.
    #[must_use]
    pub fn client_cert(&self) -> &Path {
        &self.0.client.cert
    }

    /// The key of [`Certs::client_cert`].
    #[must_use]
    pub fn client_key(&self) -> &Path {
        &self.0.client.key
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, key()).expect("the parameters of a CA are sound")
}

fn issue(
    at: &Path,
    ca: &CertifiedIssuer<'_, KeyPair>,
    name: &str,
    hosts: &[&str],
    purposes: &[ExtendedKeyUsagePurpose],
) -> Pair {
    let mut params = params(name, hosts);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes.to_vec();
    let key = key();
    let cert = params.signed_by(&key, ca).expect("the parameters of a certificate are sound");
    Pair {
        cert: write(at, &format!("{name}.pem"), &cert.pem()),
        key: write(at, &format!("{name}.key"), &key.serialize_pem()),
    }
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).expect("the host names are plain ASCII");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the system has randomness")
}

fn write(at: &Path, name: &str, pem: &str) -> PathBuf {
    let path = at.join(name);
    fs::write(&path, pem).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    path
}
