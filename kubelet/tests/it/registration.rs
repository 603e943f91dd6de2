//! Plugin registration: what the kubelet is told, and what becomes of what it says.

use kubelet::api::registration::registration_client::RegistrationClient;
use kubelet::api::registration::{InfoRequest, RegistrationStatus};
use kubelet::registration::{Kind, PluginInfo, Registration, Status, socket_name};
use kubelet::{Error, Folder};
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use crate::{bounded, connect};

fn info() -> PluginInfo {
    PluginInfo {
        kind: Kind::Dra,
        name: "gpu.example.com".to_owned(),
        endpoint: "/var/lib/kubelet/plugins/gpu.example.com/dra.sock".into(),
        versions: vec!["v1.DRAPlugin".to_owned(), "v1beta1.DRAPlugin".to_owned()],
    }
}

#[tokio::test]
async fn the_kubelet_is_told_who_we_are_and_its_answer_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let registry = Folder::open(scratch.path()).await.unwrap();
    let name = socket_name("gpu.example.com", None);
    let registration = Registration::open(&registry, &name, info()).await.unwrap();
    let mut status = registration.status();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(registration.run(shutdown.clone()));
    assert_eq!(*status.borrow(), Status::Waiting);

    let socket = scratch.path().join(&name);
    let mut kubelet = RegistrationClient::new(connect(&socket).await);
    let told = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(told.r#type, "DRAPlugin");
    assert_eq!(told.name, "gpu.example.com");
    assert_eq!(
        told.endpoint,
        "/var/lib/kubelet/plugins/gpu.example.com/dra.sock"
    );
    assert_eq!(
        told.supported_versions,
        ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    );

    let refusal = Status::Refused {
        reason: "no handler registered".to_owned(),
    };
    for (accepted, error, expected) in [
        (false, "no handler registered", refusal),
        (true, "", Status::Registered),
    ] {
        let answer = RegistrationStatus {
            plugin_registered: accepted,
            error: error.to_owned(),
        };
        kubelet.notify_registration_status(answer).await.unwrap();
        bounded(status.changed()).await.unwrap();
        assert_eq!(*status.borrow_and_update(), expected);
    }

    // A kubelet that asks again has forgotten us.
    kubelet.get_info(InfoRequest {}).await.unwrap();
    bounded(status.changed()).await.unwrap();
    assert_eq!(*status.borrow_and_update(), Status::Waiting);

    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
    assert!(!socket.exists());
}

#[rstest]
#[case::as_documented("gpu.example.com-reg.sock")]
#[case::two("a@b@reg.sock")]
#[case::no_host("gpu.example.com@")]
#[tokio::test]
async fn a_socket_the_kubelet_could_not_call_is_refused(#[case] name: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let registry = Folder::open(scratch.path()).await.unwrap();
    let error = Registration::open(&registry, name, info())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Name { .. }), "{error}");
    assert!(!scratch.path().join(name).exists());
}
