//! GPUs that are asked how they are, each on its own: one that hangs holds up no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::work::on_thread;
use crate::health::Readings;

/// How long a GPU may take to say how it is, if nothing else is said.
pub(super) const LOOK_WAIT: Duration = Duration::from_secs(1);

/// Longer than a driver call may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How a GPU says that it is.
#[derive(Debug)]
pub(super) struct Answer {
    /// UUID of the GPU.
    pub(super) gpu: String,
    /// When it was asked.
    pub(super) asked: Instant,
    /// `None` when it did not say.
    pub(super) readings: Option<Readings>,
}

/// The questions that are not answered yet.
pub(super) struct Looks {
    session: Arc<nvml::Session>,
    /// A GPU that does not say how it is within this time is not waited for, and not offered until it does.
    patience: Duration,
    /// When each GPU was asked.
    open: BTreeMap<String, Instant>,
    /// One per question at most, and one question per GPU.
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
}

impl Looks {
    pub(super) fn new(session: Arc<nvml::Session>, patience: Duration) -> Self {
        Self {
            session,
            patience,
            open: BTreeMap::new(),
            answers: mpsc::unbounded_channel(),
        }
    }

    /// Asks a GPU, unless it still thinks about the last question.
    pub(super) fn ask(&mut self, gpu: String) {
        if self.is_asked(&gpu) {
            return;
        }
        let asked = Instant::now();
        self.open.insert(gpu.clone(), asked);
        let (session, answers) = (self.session.clone(), self.answers.0.clone());
        tokio::spawn(async move {
            let uuid = gpu.clone();
            let ask = move || session.driver()?.find(&uuid)?.run(Readings::read);
            let readings = on_thread("health", LIMIT, ask).await;
            let readings = readings.and_then(Result::ok);
            // The loop may have ended.
            let _ = answers.send(Answer {
                gpu,
                asked,
                readings,
            });
        });
    }

    /// Waits for the next answer.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.1.recv().await?;
        self.open.remove(&answer.gpu);
        Some(answer)
    }

    /// Whether a GPU has not answered yet.
    pub(super) fn is_asked(&self, gpu: &str) -> bool {
        self.open.contains_key(gpu)
    }

    /// Whether no answer is worth waiting for.
    pub(super) fn is_settled(&self) -> bool {
        let given_up = |asked: &Instant| asked.elapsed() >= self.patience;
        self.open.values().all(given_up)
    }

    /// When the next GPU is given up.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let given_up = self.open.values().map(|asked| *asked + self.patience);
        // One that is past was acted on already.
        given_up.filter(|when| *when > now).min()
    }
}
