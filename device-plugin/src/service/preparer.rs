//! Keeps ready what has to lie ready ([`Wanted`]): prepares it when it is another, again after a failure, and again while the node
//! lacks something. Device nodes are made by whoever first uses the driver, without an event that says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::prepare::{Prepared, Wanted};
use super::work::on_thread;

/// How long the node's folders may take. They are local; a mount that hangs must not hide what else happens.
const LIMIT: Duration = Duration::from_secs(5);

/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was prepared last.
#[derive(Default)]
pub(super) struct Preparer {
    good: Option<(Wanted, Prepared)>,
    /// When to look again for what `good` lacks.
    lacking: Option<Pause>,
    failed: Option<Failed>,
    /// What lies ready may not lie there any more.
    doubted: bool,
    /// Work that took too long may still be at it; a second one beside it would only hang too.
    busy: Arc<AtomicBool>,
}

struct Failed {
    wanted: Wanted,
    prepared: Prepared,
    reason: String,
    pause: Pause,
}

/// A pause before another try.
#[derive(Clone, Copy)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl Pause {
    /// Longer than the one before, if there was one.
    fn after(former: Option<Self>) -> Self {
        let length = former.map_or(PAUSES.0, |former| (former.length * 2).min(PAUSES.1));
        Self {
            length,
            until: Instant::now() + length,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Preparer {
    /// When to try again.
    pub(super) fn due(&self) -> Option<Instant> {
        let failed = self.failed.as_ref().map(|failed| failed.pause);
        failed.or(self.lacking).map(|pause| pause.until)
    }

    /// Somebody may have touched what lies ready: it is seen to, which writes nothing if nothing is amiss.
    pub(super) fn look_again(&mut self) {
        self.doubted = true;
    }

    /// Why what lies ready is not what should.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.failed.as_ref().map(|failed| failed.reason.as_str())
    }

    /// What lies ready, after seeing to it that this is as wanted. Waits a few seconds at most.
    pub(super) async fn prepared(&mut self, wanted: Wanted) -> Prepared {
        let former = self.good.as_ref().filter(|(then, _)| *then == wanted);
        if let Some(failed) = &self.failed {
            if failed.wanted == wanted && !failed.pause.is_over() {
                return failed.prepared.clone();
            }
        } else if let Some((_, prepared)) = former
            && !self.doubted
            && self.lacking.is_none_or(|pause| !pause.is_over())
        {
            return prepared.clone();
        }
        let lacking = self.lacking.filter(|_| former.is_some());
        self.doubted = false;
        match self.prepare(&wanted).await {
            Ok(prepared) => {
                self.failed = None;
                self.lacking = (!prepared.is_complete()).then(|| Pause::after(lacking));
                self.good = Some((wanted, prepared.clone()));
                prepared
            }
            Err(reason) => {
                let failed = self.failed.as_ref().filter(|then| then.wanted == wanted);
                let pause = Pause::after(failed.map(|failed| failed.pause));
                let prepared = wanted.after_failure(self.good.as_ref(), &reason);
                self.failed = Some(Failed {
                    wanted,
                    prepared: prepared.clone(),
                    reason,
                    pause,
                });
                prepared
            }
        }
    }

    async fn prepare(&self, wanted: &Wanted) -> Result<Prepared, String> {
        let slow = || {
            format!(
                "the node's folders do not answer within {} s",
                LIMIT.as_secs()
            )
        };
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(slow());
        }
        let (free, wanted) = (Free(self.busy.clone()), wanted.clone());
        let work = move || {
            let _free = free;
            wanted.prepare()
        };
        match on_thread("prepare", LIMIT, work).await {
            Some(prepared) => prepared.map_err(|error| error.to_string()),
            None => Err(slow()),
        }
    }
}

/// The work is done, or was never begun, or panicked.
struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use cdi::Roots;
    use configuration::plugin::PluginFile;

    use super::*;
    use crate::allocation::Options;
    use crate::resources::Gpu;
    use crate::service::prepare::Places;

    #[tokio::test]
    async fn a_device_node_that_comes_late_is_found() {
        let root = tempfile::tempdir().unwrap();
        let libraries = root.path().join("usr/lib64");
        fs::create_dir_all(&libraries).unwrap();
        fs::write(libraries.join("libcuda.so.1.2"), "").unwrap();
        let devices = root.path().join("dev");
        fs::create_dir(&devices).unwrap();
        let file = "flags: {plugin: {deviceListStrategy: cdi-cri}}";
        let (file, _) = PluginFile::parse("f", file.as_bytes()).unwrap();
        let wanted = Wanted {
            gpus: vec![Gpu {
                uuid: "GPU-0".to_owned(),
                minor: Some(0),
                ..Gpu::default()
            }],
            driver_version: "1.2".to_owned(),
            options: Arc::new(Options::new(&file).unwrap()),
            places: Arc::new(Places {
                roots: Roots::at(root.path()),
                specs: root.path().join("cdi"),
                hook_program: None,
                disabled_hooks: Vec::new(),
            }),
        };
        let mut preparer = Preparer::default();
        let prepared = preparer.prepared(wanted.clone()).await;
        assert!(prepared.fault("GPU-0").unwrap().contains("/dev/nvidia0"));
        for node in ["nvidia0", "nvidiactl", "nvidia-uvm"] {
            fs::write(devices.join(node), "").unwrap();
        }
        let due = preparer.due().unwrap();
        let soon = preparer.prepared(wanted.clone()).await;
        // A busy machine may take as long as the pause.
        if Instant::now() < due {
            assert_eq!(soon, prepared, "not before the pause is over");
        }
        tokio::time::sleep_until(due.into()).await;
        let prepared = preparer.prepared(wanted).await;
        assert_eq!(prepared.fault("GPU-0"), None);
        assert_eq!(preparer.due(), None, "nothing is lacking any more");
    }
}
