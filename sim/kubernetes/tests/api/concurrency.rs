//! Many writers at once: nothing is lost, and a watch sees every version in order.

use proptest::prelude::{ProptestConfig, proptest};
use proptest::prop_assert_eq;
use serde_json::json;

use crate::http::{CONFIG_MAPS, cluster, config_map, version_of};

/// Each writer adds one to the counter, `rounds` times, by read and conditional write.
async fn count(writers: usize, rounds: usize) -> (u64, Vec<(u64, u64)>, u64) {
    let cluster = cluster().await;
    let path = format!("{CONFIG_MAPS}/counter");
    let mut body = config_map("counter");
    body["data"] = json!({"n": "0"});
    let (_, made) = cluster.post(CONFIG_MAPS, &body).await;
    let start = version_of(&made);
    let increment = async || {
        for _ in 0..rounds {
            loop {
                let (_, mut object) = cluster.get(&path).await;
                let n: u64 = object["data"]["n"].as_str().unwrap().parse().unwrap();
                object["data"]["n"] = json!((n + 1).to_string());
                match cluster.put(&path, &object).await.0 {
                    200 => break,
                    409 => {}
                    code => panic!("{code}"),
                }
            }
        }
    };
    let all: Vec<_> = (0..writers).map(|_| increment()).collect();
    let mut events = cluster
        .watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={start}"))
        .await;
    let (_, seen) = tokio::join!(futures::future::join_all(all), async {
        let mut seen = Vec::new();
        while seen.len() < writers * rounds {
            let event = events.next().await.unwrap();
            let n = event["object"]["data"]["n"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            seen.push((version_of(&event["object"]), n));
        }
        seen
    });
    let (_, last) = cluster.get(&path).await;
    (
        last["data"]["n"].as_str().unwrap().parse().unwrap(),
        seen,
        start,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_update_is_lost(writers in 1_usize..8, rounds in 1_usize..6) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (total, seen, start) = runtime.block_on(count(writers, rounds));
        let expected = (writers * rounds) as u64;
        prop_assert_eq!(total, expected);
        for (place, (version, n)) in seen.iter().enumerate() {
            prop_assert_eq!(*n, place as u64 + 1, "a watch skips nothing");
            prop_assert_eq!(*version, start + place as u64 + 1, "versions come in order, without holes");
        }
    }
}
