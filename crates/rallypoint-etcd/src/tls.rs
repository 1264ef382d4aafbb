//! The PEM files of [`TlsSettings`], read and looked at before anything is sent, so that a wrong file is named
//! instead of showing up later as a failed handshake.

use std::path::Path;

use rallypoint_core::TlsSettings;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{Error, ErrorKind, LOAD_TLS_FILES, Result};

/// What the files hold, still as PEM.
pub(crate) struct Pem {
    /// Certificates of the authorities to trust; without them, the system's.
    pub(crate) ca: Option<Vec<u8>>,
    /// This client's certificate, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Pem {
    /// Reads the files of `tls`.
    pub(crate) fn load(tls: &TlsSettings) -> Result<Pem> {
        let ca = tls.ca.as_deref().map(|path| read::<CertificateDer<'_>>(path, "certificate")).transpose()?;
        let identity = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => Some((
                read::<CertificateDer<'_>>(cert, "certificate")?,
                read::<PrivateKeyDer<'_>>(key, "unencrypted private key")?,
            )),
            // One without the other is refused by `EtcdSettings::check`.
            _ => None,
        };
        Ok(Pem { ca, identity })
    }
}

/// The bytes of the file, which must hold a `T` at least.
fn read<T: PemObject>(path: &Path, wanted: &str) -> Result<Vec<u8>> {
    let error = |problem: String| {
        Error::new(ErrorKind::Settings, LOAD_TLS_FILES).because(format!("{}: {problem}", path.display()))
    };
    let bytes = std::fs::read(path).map_err(|cause| error(cause.to_string()))?;
    match T::from_pem_slice(&bytes) {
        Ok(_) => Ok(bytes),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => Err(error(format!("no {wanted} in it"))),
        Err(cause) => Err(error(format!("not a PEM file with a {wanted}: {cause}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_work_is_named() {
        let text = std::env::temp_dir().join(format!("rallypoint-tls-{}.pem", std::process::id()));
        std::fs::write(&text, "no PEM here").unwrap();
        let refused = |tls: TlsSettings| {
            let error = Pem::load(&tls).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Settings);
            error.to_string()
        };

        let missing = refused(TlsSettings::trusting("missing.pem"));
        assert!(missing.contains("missing.pem: No such file"), "{missing}");
        let empty = refused(TlsSettings::trusting(&text));
        assert!(empty.contains(text.to_str().unwrap()) && empty.contains("no certificate in it"), "{empty}");
        std::fs::remove_file(&text).unwrap();
    }

    #[test]
    fn no_files_are_no_error() {
        let pem = Pem::load(&TlsSettings::default()).unwrap();
        assert!(pem.ca.is_none() && pem.identity.is_none());
    }
}
