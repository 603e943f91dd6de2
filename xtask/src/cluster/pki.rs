//! Certificates of a cluster: one authority, one certificate per component, one key that signs service-account tokens.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::config::{NODE_ADDRESS, NODE_NAME, SERVICE_ADDRESS};

/// Where the files lie.
#[derive(Clone, Debug)]
pub(super) struct Pki {
    folder: PathBuf,
}

impl Pki {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) fn certificate(&self, name: &str) -> String {
        self.folder
            .join(format!("{name}.crt"))
            .display()
            .to_string()
    }

    pub(super) fn public_key(&self, name: &str) -> String {
        self.folder
            .join(format!("{name}.pub"))
            .display()
            .to_string()
    }

    pub(super) fn key(&self, name: &str) -> String {
        self.folder
            .join(format!("{name}.key"))
            .display()
            .to_string()
    }
}

/// A certificate to make: file name, common name, organisation (a group, for clients), names it serves.
struct Wanted {
    name: &'static str,
    user: String,
    group: Option<&'static str>,
    serves: Vec<&'static str>,
}

fn wanted() -> Vec<Wanted> {
    let client = |name, user: &str, group| Wanted {
        name,
        user: user.to_owned(),
        group,
        serves: Vec::new(),
    };
    vec![
        Wanted {
            name: "apiserver",
            user: "kube-apiserver".to_owned(),
            group: None,
            serves: vec![
                "127.0.0.1",
                NODE_ADDRESS,
                SERVICE_ADDRESS,
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
            ],
        },
        Wanted {
            serves: vec![NODE_ADDRESS, NODE_NAME],
            ..client(
                "kubelet",
                &format!("system:node:{NODE_NAME}"),
                Some("system:nodes"),
            )
        },
        client("admin", "admin", Some("system:masters")),
        client("controller-manager", "system:kube-controller-manager", None),
        client("scheduler", "system:kube-scheduler", None),
        client("proxy", "system:kube-proxy", None),
    ]
}

/// Makes all files in `folder`.
pub(super) fn create(folder: &Path) -> anyhow::Result<Pki> {
    std::fs::create_dir_all(folder)?;
    let pki = Pki::at(folder.to_owned());
    let write = |path: String, text: &str| {
        std::fs::write(&path, text).with_context(|| format!("writing {path}"))
    };
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = name("lathe-e2e", None);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    write(
        pki.certificate("ca"),
        &authority.self_signed(&authority_key)?.pem(),
    )?;
    write(pki.key("ca"), &authority_key.serialize_pem())?;
    let issuer = Issuer::new(authority, authority_key);
    for certificate in wanted() {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&certificate.user, certificate.group);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        params.subject_alt_names = certificate
            .serves
            .iter()
            .map(|served| match served.parse::<IpAddr>() {
                Ok(address) => Ok(SanType::IpAddress(address)),
                Err(_) => Ok(SanType::DnsName((*served).try_into()?)),
            })
            .collect::<Result<_, rcgen::Error>>()?;
        write(
            pki.certificate(certificate.name),
            &params.signed_by(&key, &issuer)?.pem(),
        )?;
        write(pki.key(certificate.name), &key.serialize_pem())?;
    }
    let tokens = KeyPair::generate()?;
    write(pki.key("service-accounts"), &tokens.serialize_pem())?;
    write(pki.public_key("service-accounts"), &tokens.public_key_pem())?;
    Ok(pki)
}

fn name(user: &str, group: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name
}
