//! What is said to `nvidia-cuda-mps-control`, and what its answers mean (manual page of that program).

use super::plan::Daemon;

/// Ends the program and its servers.
pub(super) const QUIT: &str = "quit";

/// Asks for the default thread percentage. NVIDIA's device plugin takes any answer for a sign of life.
pub(super) const GET_PERCENTAGE: &str = "get_default_active_thread_percentage";

/// Asks for the process ids of servers, one per line.
pub(super) const SERVERS: &str = "get_server_list";

/// Asks for the process ids of a server's clients, one per line.
pub(super) fn clients(server: u32) -> String {
    format!("get_client_list {server}")
}

/// The defaults of servers that start from now on. GPUs go by UUID: an index would be counted among those that the daemon
/// sees.
pub(super) fn defaults(limits: &Daemon) -> Vec<String> {
    let percentage = limits.thread_percentage();
    let mut commands = vec![format!("set_default_active_thread_percentage {percentage}")];
    let memory = memory(limits).map(|limit| format!("set_default_device_pinned_mem_limit {limit}"));
    commands.extend(memory);
    commands
}

/// The same for a server that runs; its clients from now on observe them.
pub(super) fn of_server(server: u32, limits: &Daemon) -> Vec<String> {
    let percentage = limits.thread_percentage();
    let mut commands = vec![format!(
        "set_active_thread_percentage {server} {percentage}"
    )];
    let memory =
        memory(limits).map(|limit| format!("set_device_pinned_mem_limit {server} {limit}"));
    commands.extend(memory);
    commands
}

fn memory(limits: &Daemon) -> impl Iterator<Item = String> + '_ {
    let gpus = limits.gpus.iter();
    gpus.filter_map(|gpu| Some(format!("{} {}M", gpu.uuid, gpu.memory_mib?)))
}

/// `25.0`.
pub(super) fn percentage(answer: &str) -> Option<f64> {
    let number: f64 = answer.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

/// Process ids, one per line; other lines are remarks.
pub(super) fn pids(answer: &str) -> Vec<u32> {
    answer
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::mps::plan::SharedGpu;

    fn limits() -> Daemon {
        let gpu = |uuid: &str, replicas, memory_mib| SharedGpu {
            uuid: uuid.to_owned(),
            index: 0,
            replicas,
            memory_mib,
        };
        Daemon {
            gpus: vec![gpu("GPU-a", 4, Some(20_480)), gpu("GPU-b", 2, None)],
        }
    }

    #[test]
    fn limits_as_the_program_takes_them() {
        assert_eq!(
            defaults(&limits()),
            [
                "set_default_active_thread_percentage 50",
                "set_default_device_pinned_mem_limit GPU-a 20480M"
            ]
        );
        assert_eq!(
            of_server(1024, &limits()),
            [
                "set_active_thread_percentage 1024 50",
                "set_device_pinned_mem_limit 1024 GPU-a 20480M"
            ]
        );
    }

    #[rstest]
    #[case("25.0\n", Some(25.0))]
    #[case("100", Some(100.0))]
    #[case("", None)]
    #[case("nan", None)]
    #[case("Cannot find MPS control daemon process", None)]
    fn percentages(#[case] answer: &str, #[case] wanted: Option<f64>) {
        assert_eq!(percentage(answer), wanted);
    }

    #[rstest]
    #[case("", &[])]
    #[case("\n", &[])]
    #[case("1024\n2048\n", &[1024, 2048])]
    #[case("Server not found\n", &[])]
    fn process_ids(#[case] answer: &str, #[case] wanted: &[u32]) {
        assert_eq!(pids(answer), wanted);
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(answer in "(?s).{0,64}") {
            let _ = (percentage(&answer), pids(&answer));
        }
    }
}
