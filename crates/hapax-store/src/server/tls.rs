//! Whether a session is encrypted, and whose word is taken for who the server is.
//!
//! Each server's users have their own words for it, in the address: `sslmode` and `sslrootcert`, `ssl-mode` and `ssl-ca`.

use rustls::{
    CertificateError,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::error::Error;

/// How much a session demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No encryption.
    Disable,
    /// Encrypted where the server can.
    Prefer,
    /// Encrypted, by whoever answers.
    Require,
    /// By a server that an authority vouches for.
    VerifyCa,
    /// And that has the name in the address.
    VerifyFull,
}

/// What a server's users call it.
pub(crate) struct Words {
    /// The option that names the mode.
    pub(crate) mode: &'static str,
    /// The option that names the file of authorities.
    pub(crate) root: &'static str,
    pub(crate) modes: &'static [(&'static str, Mode)],
    /// How a server is made to take TLS.
    pub(crate) turn_on: &'static str,
}

impl Words {
    /// The option that an option of another server's users stands for.
    fn instead_of(&self, name: &str) -> Option<&'static str> {
        match &*name.to_ascii_lowercase().replace(['-', '_'], "") {
            "sslmode" => Some(self.mode),
            "sslrootcert" | "sslca" => Some(self.root),
            _ => None,
        }
    }

    /// What the mode is called.
    pub(crate) fn of(&self, mode: Mode) -> String {
        let word = self.modes.iter().find(|(_, known)| *known == mode).map_or("", |(word, _)| word);
        format!("{}={word}", self.mode)
    }

    /// Why a handshake failed, and the cure.
    pub(crate) fn refusal(&self, error: &rustls::Error) -> String {
        let cure = match error {
            rustls::Error::InvalidCertificate(reason) => match reason {
                reason if is_another_name(reason) => {
                    format!("use a name that it is for, or {}", self.of(Mode::VerifyCa))
                }
                // Two authorities may have one name: then the signature tells.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!("name the file with the certificate of its authority: {}=…", self.root)
                }
                // One that was made without a word about its use is an authority's.
                reason if reason.to_string().contains("CaUsedAsEndEntity") => {
                    "it is an authority's own: make the server one that isn't (openssl req -x509 -addext \
                     basicConstraints=critical,CA:FALSE), and name that file as its authority"
                        .into()
                }
                _ => "give the server a certificate that is valid".into(),
            },
            _ => "check the TLS settings of the server".into(),
        };
        format!("its TLS is refused, {error}: {cure}")
    }

    /// What is said of a server that takes no TLS.
    pub(crate) fn not_there(&self) -> String {
        format!(
            "it takes no TLS, which the address demands: turn it on ({}), or allow less with {}",
            self.turn_on,
            self.of(Mode::Prefer)
        )
    }
}

/// What an address says about encryption.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) mode: Mode,
    /// The authorities' certificates, as the file has them; `None`: those that browsers trust.
    pub(crate) root: Option<Vec<u8>>,
}

/// What an address says about encryption, and the address without it.
pub(crate) fn take(url: &str, words: &Words) -> Result<(String, Tls), String> {
    let (place, options) = url.split_once('?').unwrap_or((url, ""));
    let (mut mode, mut root, mut others) = (None, None, vec![]);
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if name == words.mode {
            mode = Some(read_mode(value, words)?);
        } else if name == words.root {
            let path = percent_encoding::percent_decode_str(value).decode_utf8();
            root = Some(path.map_err(|_| format!("{name} is no path"))?.into_owned());
        } else if let Some(ours) = words.instead_of(name) {
            return Err(format!("`{name}` is the word of other servers: here it is `{ours}`"));
        } else {
            others.push(option);
        }
    }
    let mode = match (mode, &root) {
        // Whoever names an authority wants it to be asked.
        (None | Some(Mode::Require), Some(_)) => Mode::VerifyCa,
        (mode, _) => mode.unwrap_or(Mode::Prefer),
    };
    let root = root.map(|path| read_root(&path, words)).transpose()?;
    let mark = if others.is_empty() { "" } else { "?" };
    Ok((format!("{place}{mark}{}", others.join("&")), Tls { mode, root }))
}

fn read_mode(value: &str, words: &Words) -> Result<Mode, String> {
    let found = words.modes.iter().find(|(word, _)| word.eq_ignore_ascii_case(value));
    found.map(|(_, mode)| *mode).ok_or_else(|| {
        let known: Vec<&str> = words.modes.iter().map(|(word, _)| *word).collect();
        format!("`{}` must be one of {}", words.mode, known.join(", "))
    })
}

fn read_root(path: &str, words: &Words) -> Result<Vec<u8>, String> {
    let unusable = |why: &dyn std::fmt::Display| format!("{} names `{path}`, {why}", words.root);
    let file =
        std::fs::read(path).map_err(|error| unusable(&format_args!("which can't be read: {error}")))?;
    match CertificateDer::pem_slice_iter(&file).next() {
        Some(Ok(_)) => Ok(file),
        _ => Err(unusable(&"which holds no certificate in PEM form")),
    }
}

/// Whether a certificate is fine but for its name.
pub(crate) fn is_another_name(reason: &CertificateError) -> bool {
    matches!(reason, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })
}

/// What TLS has against a connection, however deep it is wrapped.
pub(crate) fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An error of the operating system hides what it was made of, and names that one's cause as its own.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let found = inner.and_then(|inner| inner.downcast_ref()).or_else(|| error.downcast_ref());
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words = Words {
        mode: "sslmode",
        root: "sslrootcert",
        modes: &[("prefer", Mode::Prefer), ("require", Mode::Require), ("verify-ca", Mode::VerifyCa)],
        turn_on: "ssl = on",
    };

    #[test]
    fn what_is_said_of_encryption_is_taken_out_of_an_address() {
        let taken = |url| take(url, &WORDS).map(|(url, tls)| (url, tls.mode));
        assert_eq!(taken("p://h/d").unwrap(), ("p://h/d".into(), Mode::Prefer));
        assert_eq!(taken("p://h/d?sslmode=require").unwrap(), ("p://h/d".into(), Mode::Require));
        assert_eq!(taken("p://h/d?a=1&sslmode=REQUIRE&b").unwrap(), ("p://h/d?a=1&b".into(), Mode::Require));
        assert!(taken("p://h/d?sslmode=yes").unwrap_err().contains("prefer, require, verify-ca"));
    }

    #[test]
    fn the_words_of_other_servers_are_answered_with_ours() {
        for (theirs, ours) in [("ssl-mode=REQUIRED", "`sslmode`"), ("ssl_ca=ca.pem", "`sslrootcert`")] {
            let refused = take(&format!("p://h/d?{theirs}"), &WORDS).unwrap_err();
            assert!(refused.ends_with(&format!("here it is {ours}")), "{refused}");
        }
    }

    #[test]
    fn an_authority_that_is_named_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a ca.pem");
        let option = format!("sslrootcert={}", file.display()).replace(' ', "%20");
        let refused = take(&format!("p://h/d?{option}"), &WORDS).unwrap_err();
        assert!(refused.contains("which can't be read"), "{refused}");
        std::fs::write(&file, "no certificate").unwrap();
        let refused = take(&format!("p://h/d?{option}"), &WORDS).unwrap_err();
        assert!(refused.contains("no certificate in PEM form"), "{refused}");
        std::fs::write(&file, rcgen::generate_simple_self_signed(["h".into()]).unwrap().cert.pem()).unwrap();
        for mode in ["", "sslmode=require"] {
            let (_, tls) = take(&format!("p://h/d?{mode}&{option}"), &WORDS).unwrap();
            assert_eq!(tls.mode, Mode::VerifyCa);
        }
    }
}
