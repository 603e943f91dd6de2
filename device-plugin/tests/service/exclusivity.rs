//! A device that a pod has is not given to another one under another name.

use crate::rig::{Rig, Setup};

const RENAMED: &str = "resources: {gpus: [{pattern: '*', name: a100}]}";
const SHARED: &str = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}";

/// Two GPUs. The pod `first` has one of them as `nvidia.com/gpu`; then they are called `nvidia.com/a100`.
async fn renamed() -> (Rig, String) {
    let rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    let given = rig.kubelet().admit("first", "nvidia.com/gpu", 1).await;
    let [id] = given.unwrap().ids.try_into().unwrap();
    rig.write_file(RENAMED);
    rig.until("gpu 0, a100 2").await;
    (rig, id)
}

/// Two `nvidia.com/a100` are one too many; what the pod's status says.
async fn refusal(rig: &Rig) -> String {
    let both = rig.kubelet().admit("both", "nvidia.com/a100", 2).await;
    both.unwrap_err()
}

#[tokio::test]
async fn another_name_is_no_other_device() {
    let (rig, first) = renamed().await;
    assert_eq!(
        refusal(&rig).await,
        format!(
            "nvidia.com/a100: {first} cannot be given: container main of pod default/first has {first} as nvidia.com/gpu; end that pod first"
        )
    );
    // The kubelet takes both for free; the plugin prefers the one that is.
    let second = rig.kubelet().admit("second", "nvidia.com/a100", 1).await;
    assert_ne!(second.unwrap().ids, [first.as_str()]);
    let third = rig.kubelet().admit("third", "nvidia.com/a100", 1).await;
    assert!(third.unwrap_err().contains("pod default/first has"));
    rig.pods.remove("first");
    let third = rig.kubelet().admit("third", "nvidia.com/a100", 1).await;
    assert_eq!(third.unwrap().ids, [first]);
}

#[tokio::test]
async fn neither_process_needs_a_memory() {
    let (mut rig, first) = renamed().await;
    rig.stop_plugin().await.unwrap();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 0, a100 2").await;
    assert!(refusal(&rig).await.contains(&first));
    rig.start_kubelet();
    rig.until("a100 2").await;
    assert!(refusal(&rig).await.contains(&first));
}

/// Who had a GPU alone has one of its shares from then on.
#[tokio::test]
async fn no_share_beyond_those_there_are() {
    let rig = Setup::of("h100-sxm5-80gb", 1).start().await;
    rig.until("gpu 1").await;
    rig.kubelet()
        .admit("first", "nvidia.com/gpu", 1)
        .await
        .unwrap();
    rig.write_file(SHARED);
    rig.until("gpu 2").await;
    rig.kubelet()
        .admit("second", "nvidia.com/gpu", 1)
        .await
        .unwrap();
    let third = rig.kubelet().admit("third", "nvidia.com/gpu", 1).await;
    let refusal = third.unwrap_err();
    assert!(
        refusal.contains("it has 2 shares, and as many containers have one"),
        "{refusal}"
    );
    rig.pods.remove("first");
    rig.kubelet()
        .admit("third", "nvidia.com/gpu", 1)
        .await
        .unwrap();
}
