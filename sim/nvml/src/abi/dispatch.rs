//! The one path of every call: initialised? → node → fault → latency → whose handle? → body → trace.
//!
//! Faults and latencies are applied outside any lock, so that a slow or hanging GPU holds up nobody else. A panic in a
//! body becomes UNKNOWN: nothing may unwind into a C caller. Must not know any NVML function.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value};

use super::{
    argument::Argument,
    call::{Call, named_gpu},
    session,
};
use crate::{
    Code,
    model::{
        DriverState, Effect, Fault, Node,
        faults::{self, Action},
        latency::Class,
    },
    store::{Store, now_us},
    trace,
};

/// How often a hanging call looks whether the fault was cleared.
const HANG_STEP: Duration = Duration::from_millis(10);

/// Arguments with the names they have in the header.
pub(super) type Arguments<'a> = &'a [(&'static str, &'a dyn Argument)];

/// A call that only asks.
pub(super) fn query(
    symbol: &'static str,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Call) -> Result<(), Code>,
) -> u32 {
    guarded(|| run(symbol, false, arguments, body))
}

/// A call that only asks, for root alone where the node enforces that.
pub(super) fn privileged(
    symbol: &'static str,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Call) -> Result<(), Code>,
) -> u32 {
    query(symbol, arguments, |call| {
        call.privileged()?;
        body(call)
    })
}

/// A call that changes the node: always traced, and for root alone where the node enforces that.
pub(super) fn mutation(
    symbol: &'static str,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Call) -> Result<(), Code>,
) -> u32 {
    guarded(|| {
        run(symbol, true, arguments, |call| {
            call.privileged()?;
            body(call)
        })
    })
}

/// A call of a function that is not modelled. Its attempt to change something is still an attempt to the trace.
pub(super) fn unmodelled(symbol: &'static str) -> u32 {
    let mutating = Class::of(symbol) == Class::Write;
    guarded(|| run(symbol, mutating, &[], |_| Err(Code::NOT_SUPPORTED)))
}

/// Turns a panic into UNKNOWN.
pub(super) fn guarded(body: impl FnOnce() -> Result<(), Code>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

fn run(
    symbol: &'static str,
    mutating: bool,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Call) -> Result<(), Code>,
) -> Result<(), Code> {
    let client = session::current()?;
    let node = if mutating || begins_afresh(symbol) {
        client.store().load_after_resets()
    } else {
        client.store().load_living()
    };
    let node = node.map_err(|_| Code::DRIVER_NOT_LOADED)?;
    let handle = arguments.iter().find_map(|(_, argument)| argument.handle());
    let traced = mutating || node.trace;
    let begun_us = now_us(&node);
    let (result, notes) = match hurdles(client.store(), node, symbol, handle.and_then(named_gpu)) {
        Err(code) => (Err(code), Vec::new()),
        Ok(node) => {
            let call = Call::new(client.clone(), node, handle);
            let result = body(&call);
            (result, call.into_notes())
        }
    };
    if traced {
        let inputs = arguments
            .iter()
            .filter_map(|(name, argument)| Some((*name, argument.traced()?)));
        let args: Map<String, Value> = inputs
            .chain(notes)
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let entry = trace::Entry {
            time_ns: begun_us * 1000,
            pid: std::process::id(),
            symbol: symbol.to_owned(),
            mutating,
            args,
            result: result.err().unwrap_or(Code::SUCCESS).0,
        };
        // The trace is for tests: that it cannot be written (a read-only or full disk) must not change what a call does.
        let _ = trace::append(client.store().folder(), &entry);
    }
    result
}

/// What a call meets before its body: a driver that is gone, injected faults, latency. Answers the node as it is after that.
pub(super) fn hurdles(
    store: &Store,
    node: Arc<Node>,
    symbol: &'static str,
    gpu: Option<usize>,
) -> Result<Arc<Node>, Code> {
    check_driver(&node)?;
    let mut node = node;
    let mut action = faults::check(&node, symbol, gpu);
    if action == Action::Count {
        action = store
            .update(|node| faults::count(node, symbol, gpu))
            .map_err(|_| Code::UNKNOWN)?;
        node = load(store)?;
    }
    match action {
        Action::Proceed | Action::Count => {}
        Action::Fail(code) => return Err(code),
        Action::Delay(time) => std::thread::sleep(time),
        Action::Hang => {
            let is_hang =
                |fault: &&Fault| fault.effect == Effect::Hang && fault.concerns(symbol, gpu);
            let hanging: Vec<u64> = node
                .faults
                .iter()
                .filter(is_hang)
                .map(|fault| fault.id)
                .collect();
            while node.faults.iter().any(|fault| hanging.contains(&fault.id)) {
                std::thread::sleep(HANG_STEP);
                node = load(store)?;
            }
        }
    }
    let latency = node.latency.of(symbol);
    std::thread::sleep(latency);
    if action == Action::Proceed && latency.is_zero() {
        Ok(node)
    } else {
        load(store)
    }
}

/// Whether a query is one that a client makes to see a GPU anew: resets asked for through sysfs are done before it.
fn begins_afresh(symbol: &str) -> bool {
    symbol == "nvmlDeviceGetMigMode" || symbol.starts_with("nvmlDeviceGetHandleBy")
}

/// The code of every call while the driver does not answer.
pub(super) fn check_driver(node: &Node) -> Result<(), Code> {
    match node.driver.state {
        DriverState::Loaded => Ok(()),
        DriverState::Unloaded => Err(Code::DRIVER_NOT_LOADED),
        DriverState::Mismatch => Err(Code::LIB_RM_VERSION_MISMATCH),
    }
}

/// The node as it is now. A state that is gone is like a driver that is gone.
pub(super) fn load(store: &Store) -> Result<Arc<Node>, Code> {
    store.load().map_err(|_| Code::DRIVER_NOT_LOADED)
}
