//! The messages and services on the wire, generated at build time from `proto/`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

/// Plugin registration (`pluginregistration`).
pub mod registration {
    include!(concat!(
        env!("OUT_DIR"),
        "/registration/pluginregistration.rs"
    ));
}

/// Device plugin API (`v1beta1`).
pub mod device_plugin {
    include!(concat!(env!("OUT_DIR"), "/device_plugin/v1beta1.rs"));
}

/// Pod resources API (`v1`).
pub mod pod_resources {
    include!(concat!(env!("OUT_DIR"), "/pod_resources/v1.rs"));
}

/// DRA plugin API.
pub mod dra {
    /// `k8s.io.kubelet.pkg.apis.dra.v1`.
    pub mod v1 {
        include!(concat!(
            env!("OUT_DIR"),
            "/dra/k8s.io.kubelet.pkg.apis.dra.v1.rs"
        ));
    }
    /// `k8s.io.kubelet.pkg.apis.dra.v1beta1`: the service alone; its messages are those of [`super::v1`].
    pub mod v1beta1 {
        include!(concat!(
            env!("OUT_DIR"),
            "/dra/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs"
        ));
    }
}

/// Health of DRA devices.
pub mod health {
    /// `v1`.
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/health/v1.rs"));
    }
    /// `v1alpha1`: the service alone; its messages are those of [`super::v1`].
    pub mod v1alpha1 {
        include!(concat!(env!("OUT_DIR"), "/health/v1alpha1.rs"));
    }
}
