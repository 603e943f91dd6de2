//! What the demo shows: GPUs as bars of memory slices, and the latest steps. Pure: a picture in, lines of text out.

use std::fmt::Write as _;

/// One GPU of the picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuBar {
    /// NVML index.
    pub(crate) index: usize,
    /// Memory slices of the board: the width of the bar.
    pub(crate) slices: u32,
    /// Whether MIG mode is on.
    pub(crate) mig: bool,
    /// GPU instances.
    pub(crate) instances: Vec<InstanceBar>,
    /// Short text after the bar: power and temperature, or what is wrong.
    pub(crate) note: String,
}

/// One GPU instance of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceBar {
    /// First memory slice.
    pub(crate) start: u32,
    /// Number of memory slices.
    pub(crate) size: u32,
    /// What stands in the bar, for example `3g.40gb`.
    pub(crate) label: String,
    /// Whether a workload runs in it.
    pub(crate) busy: bool,
}

/// Everything on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Lines above the bars: what this is, where the kubeconfig is, what to try.
    pub(crate) header: Vec<String>,
    /// The GPUs.
    pub(crate) gpus: Vec<GpuBar>,
    /// Node labels worth showing, `key=value`.
    pub(crate) labels: Vec<String>,
    /// Steps, oldest first.
    pub(crate) steps: Vec<String>,
}

/// Columns per memory slice at a width of `columns`: at least enough to tell slices apart, at most what a profile name needs.
fn slice_width(columns: usize, slices: u32) -> usize {
    const AROUND_THE_BAR: usize = 36;
    let room = columns.saturating_sub(AROUND_THE_BAR);
    (room / slices.max(1) as usize).clamp(3, 8)
}

/// Draws the bar of one GPU, brackets included.
pub(crate) fn bar(gpu: &GpuBar, columns: usize) -> String {
    let unit = slice_width(columns, gpu.slices);
    let width = unit * gpu.slices as usize;
    if !gpu.mig {
        return format!("[{:^width$}]", "whole GPU");
    }
    let mut cells: Vec<char> = vec!['·'; width];
    for instance in &gpu.instances {
        let from = (instance.start as usize * unit).min(width);
        let to = ((instance.start + instance.size) as usize * unit).min(width);
        let fill = if instance.busy { '▓' } else { ' ' };
        let room = to.saturating_sub(from).saturating_sub(1);
        for cell in cells.iter_mut().take(to).skip(from) {
            *cell = fill;
        }
        let label: Vec<char> = instance.label.chars().take(room).collect();
        let offset = from + (room - label.len()) / 2;
        for (cell, letter) in cells.iter_mut().skip(offset).zip(label) {
            *cell = letter;
        }
        if let Some(edge) = to.checked_sub(1).and_then(|last| cells.get_mut(last)) {
            *edge = if instance.busy { '▓' } else { '|' };
        }
    }
    // The bracket already closes the last instance.
    if cells.last() == Some(&'|') {
        cells.pop();
        return format!("[{} ]", cells.into_iter().collect::<String>());
    }
    format!("[{}]", cells.into_iter().collect::<String>())
}

/// Draws the picture for a terminal of `columns` × `rows`; the steps take what room is left.
pub(crate) fn draw(picture: &Picture, columns: usize, rows: usize) -> Vec<String> {
    let mut lines = picture.header.clone();
    lines.push(String::new());
    for gpu in &picture.gpus {
        let mut line = format!("GPU {:<2} {}", gpu.index, bar(gpu, columns));
        let _infallible = write!(line, " {}", gpu.note);
        lines.push(line);
    }
    lines.push(String::new());
    lines.extend(picture.labels.iter().map(|label| format!("  {label}")));
    lines.push(String::new());
    let room = rows.saturating_sub(lines.len() + 1).max(1);
    let first = picture.steps.len().saturating_sub(room);
    lines.extend(picture.steps.iter().skip(first).cloned());
    for line in &mut lines {
        if let Some((cut, _)) = line.char_indices().nth(columns) {
            line.truncate(cut);
        }
    }
    lines.truncate(rows);
    lines
}

#[cfg(test)]
mod tests {
    use super::{GpuBar, InstanceBar, Picture, bar, draw};

    fn instance(start: u32, size: u32, label: &str) -> InstanceBar {
        InstanceBar {
            start,
            size,
            label: label.to_owned(),
            busy: false,
        }
    }

    fn gpu(mig: bool, instances: Vec<InstanceBar>) -> GpuBar {
        GpuBar {
            index: 0,
            slices: 8,
            mig,
            instances,
            note: "70 W".to_owned(),
        }
    }

    #[test]
    fn a_gpu_without_mig_is_one_block() {
        assert_eq!(
            bar(&gpu(false, vec![]), 68),
            "[           whole GPU            ]"
        );
    }

    #[test]
    fn an_instance_takes_its_slices_and_free_slices_are_dotted() {
        // 68 columns leave 4 per slice; a 3g at slice 4 takes columns 16 to 31.
        assert_eq!(
            bar(&gpu(true, vec![instance(4, 4, "3g.40gb")]), 68),
            "[················    3g.40gb     ]"
        );
        assert_eq!(
            bar(&gpu(true, vec![instance(0, 2, "2g.20gb")]), 68),
            "[2g.20gb|························]"
        );
    }

    #[test]
    fn a_busy_instance_is_shaded() {
        let busy = |start, size, label| InstanceBar {
            busy: true,
            ..instance(start, size, label)
        };
        // Also where the name takes all the room there is.
        assert_eq!(
            bar(&gpu(true, vec![busy(0, 2, "2g.20gb")]), 68),
            "[2g.20gb▓························]"
        );
        assert_eq!(
            bar(&gpu(true, vec![busy(0, 4, "3g")]), 68),
            "[▓▓▓▓▓▓3g▓▓▓▓▓▓▓▓················]"
        );
    }

    #[test]
    fn an_instance_outside_the_bar_is_cut_not_a_crash() {
        assert_eq!(
            bar(&gpu(true, vec![instance(7, 9, "x")]), 68)
                .chars()
                .count(),
            34
        );
        assert_eq!(
            bar(&gpu(true, vec![instance(40, 2, "x")]), 68)
                .chars()
                .count(),
            34
        );
    }

    #[test]
    fn the_newest_steps_stay_and_nothing_exceeds_the_terminal() {
        let picture = Picture {
            header: vec!["h".repeat(200)],
            gpus: vec![gpu(false, vec![])],
            labels: vec!["a=b".to_owned()],
            steps: (0..50).map(|step| format!("step {step}")).collect(),
        };
        let lines = draw(&picture, 60, 12);
        assert_eq!(lines.len(), 11);
        assert!(lines.iter().all(|line| line.chars().count() <= 60));
        assert_eq!(lines.last().map(String::as_str), Some("step 49"));
        assert!(lines.contains(&"  a=b".to_owned()));
    }
}
