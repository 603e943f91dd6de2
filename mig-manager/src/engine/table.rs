//! A node plan for people: one block per GPU, one line per kind of change.

use std::fmt;

use gpu::{Created, Destroyed, GpuPlan};

use super::plan::{NodePlan, PlannedGpu, Verdict, client, devices};

impl fmt::Display for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "config {}", self.config)?;
        if let Some(name) = &self.interrupted {
            writeln!(f, "first: finish or undo the interrupted apply of {name}")?;
        }
        if self.gpus.is_empty() {
            writeln!(f, "no GPU of this node is meant: nothing to do")?;
        }
        for gpu in &self.gpus {
            write!(f, "{gpu}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PlannedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}  {}  {}", self.id, self.name, self.id.uuid)?;
        match &self.verdict {
            Verdict::Unchanged { .. } => line(f, "unchanged", &devices_or_off(self)),
            Verdict::Change { plan } => changes(f, self, plan),
            Verdict::ModeFirst { plan } => {
                changes(f, self, plan)?;
                line(
                    f,
                    "then",
                    "plan the devices: this driver lists no profiles before",
                )
            }
            Verdict::Impossible { reason } => line(f, "impossible", reason),
            Verdict::Unreadable { reason } => line(f, "unreadable", reason),
        }
    }
}

fn devices_or_off(gpu: &PlannedGpu) -> String {
    if gpu.goal.mig_enabled() {
        devices(&gpu.kept_devices)
    } else {
        "MIG off".to_owned()
    }
}

fn changes(f: &mut fmt::Formatter<'_>, gpu: &PlannedGpu, plan: &GpuPlan) -> fmt::Result {
    if !plan.kept.is_empty() {
        line(f, "keep", &devices(&gpu.kept_devices))?;
    }
    for gone in &plan.destroyed {
        line(f, "destroy", &destroyed(gone))?;
    }
    if let Some(enabled) = plan.mode {
        line(
            f,
            "mode",
            if enabled {
                "turn MIG on"
            } else {
                "turn MIG off"
            },
        )?;
    }
    if plan.reset {
        line(
            f,
            "reset",
            "needed, unless the driver makes it with the mode change",
        )?;
    }
    for new in &plan.created {
        line(f, "create", &created(new))?;
    }
    for blocker in &plan.blockers {
        line(f, "blocked by", &client(blocker))?;
    }
    Ok(())
}

fn line(
    f: &mut fmt::Formatter<'_>,
    label: &str,
    text: &(impl fmt::Display + ?Sized),
) -> fmt::Result {
    writeln!(f, "  {label:<10} {text}")
}

fn destroyed(gone: &Destroyed) -> String {
    let name = match &gone.profile {
        Some(profile) => profile.to_string(),
        None => "an unlisted profile".to_owned(),
    };
    let at = format!(
        "{name} at {} (GPU instance {})",
        gone.placement, gone.gpu_instance
    );
    if gone.whole {
        return at;
    }
    let places: Vec<String> = gone
        .compute
        .iter()
        .map(|c| c.placement.to_string())
        .collect();
    format!("compute instances at {} of {at}", places.join(", "))
}

fn created(new: &Created) -> String {
    let inside: Vec<String> = new
        .compute
        .iter()
        .map(|c| format!("{} at {}", c.profile, c.placement))
        .collect();
    match (new.whole, new.compute.as_slice()) {
        (true, [only]) if only.profile == new.profile => {
            format!("{} at {}", new.profile, new.placement)
        }
        (true, _) => format!(
            "{} at {} with {}",
            new.profile,
            new.placement,
            inside.join(", ")
        ),
        (false, _) => format!(
            "{} in {} at {}",
            inside.join(", "),
            new.profile,
            new.placement
        ),
    }
}
