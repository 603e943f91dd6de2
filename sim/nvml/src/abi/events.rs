//! Event sets: XIDs, ECC errors and configuration changes of GPUs, and binding of GPUs to the driver.
//!
//! The node keeps one ring of numbered events. A set is a position in that ring with the GPUs and kinds it wants, so that
//! every set of every process gets every event. Sets belong to this process.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlSystemEventData_v1_t, nvmlSystemEventSetCreateRequest_v1_t,
    nvmlSystemEventSetFreeRequest_v1_t, nvmlSystemEventSetWaitRequest_v1_t,
    nvmlSystemRegisterEventRequest_v1_t,
};

use super::{
    call::{Call, handle_in},
    export::exports,
    handle::{Handle, Named},
    pointer::Out,
    structs::{EventDataV1, check_version},
    waiting::Watch,
};
use crate::{
    Code,
    model::{
        Node,
        events::{Event, kind, system_kind},
    },
};

/// Instance id of an event that is about the whole GPU.
const WHOLE_GPU: u32 = 0xFFFF_FFFF;

/// What the simulated GPUs can report.
const SUPPORTED: u64 = kind::XID
    | kind::CLOCK
    | kind::PSTATE
    | kind::MIG_CONFIG_CHANGE
    | kind::GPU_UNAVAILABLE
    | kind::RECOVERY_ACTION;
/// What GPUs with ECC report besides.
const SUPPORTED_WITH_ECC: u64 = kind::SINGLE_BIT_ECC | kind::DOUBLE_BIT_ECC;

/// One wish of a set.
struct Wish {
    /// Position of the GPU in the node; `None` for system events, which are about no GPU that a client need know.
    gpu: Option<usize>,
    /// Wanted kinds.
    kinds: u64,
    /// Number of the newest event when the wish was made: older ones are not for it.
    since: u64,
}

impl Wish {
    fn wants(&self, event: &Event) -> bool {
        let about = match self.gpu {
            Some(gpu) => !event.system && event.gpu == gpu,
            None => event.system,
        };
        about && self.kinds & event.kind != 0 && event.sequence > self.since
    }
}

/// One event set.
#[derive(Default)]
struct Set {
    /// Number of the last event taken.
    taken: u64,
    wishes: Vec<Wish>,
}

/// The sets of this process.
struct Sets {
    next: u32,
    sets: BTreeMap<u32, Set>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets {
    next: 1,
    sets: BTreeMap::new(),
});

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sets {
    fn create(&mut self, newest: u64) -> u32 {
        let number = self.next;
        self.next += 1;
        self.sets.insert(
            number,
            Set {
                taken: newest,
                wishes: Vec::new(),
            },
        );
        number
    }

    fn get(&mut self, number: u32) -> Result<&mut Set, Code> {
        self.sets.get_mut(&number).ok_or(Code::INVALID_ARGUMENT)
    }
}

/// Frees all sets: they belong to the library's use that ended.
pub(super) fn forget_sets() {
    sets().sets.clear();
}

fn set_number(handle: Handle) -> Result<u32, Code> {
    match handle.named() {
        Some(Named::EventSet { number }) => Ok(number),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn system_set_number<T>(pointer: *mut T) -> Result<u32, Code> {
    match Handle::from_pointer(pointer).named() {
        Some(Named::SystemEventSet { number }) => Ok(number),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// The next event that a set wants, which is then taken. Events nobody wants are passed over, and so are those of single
/// instances where the caller may not see them.
fn take(call: &Call, number: u32, node: &Node) -> Result<Option<Event>, Code> {
    let all = call.privileged().is_ok();
    let mut sets = sets();
    let set = sets.get(number)?;
    let found = node
        .events
        .after(set.taken)
        .filter(|event| all || event.instance.is_none())
        .find(|event| set.wishes.iter().any(|wish| wish.wants(event)))
        .cloned();
    set.taken = found
        .as_ref()
        .map_or(node.events.last, |event| event.sequence);
    Ok(found)
}

/// Whether a set waits for a GPU that is lost.
fn waits_for_lost(number: u32, node: &Node) -> Result<bool, Code> {
    let mut sets = sets();
    let mut gpus = sets
        .get(number)?
        .wishes
        .iter()
        .filter_map(|wish| node.gpus.get(wish.gpu?));
    Ok(gpus.any(|gpu| gpu.is_lost()))
}

/// Waits for the next event of a set: queued events first, then the loss of a GPU it waits for, then time.
fn wait(call: &Call, number: u32, timeout_ms: u32) -> Result<Event, Code> {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    let look = || -> Result<Option<Event>, Code> {
        let node = call.latest()?;
        match take(call, number, &node)? {
            Some(event) => Ok(Some(event)),
            None if waits_for_lost(number, &node)? => Err(Code::GPU_IS_LOST),
            None => Ok(None),
        }
    };
    if let Some(event) = look()? {
        return Ok(event);
    }
    let watch = Watch::new(call.client().store().folder());
    loop {
        if let Some(event) = look()? {
            return Ok(event);
        }
        if Instant::now() >= deadline {
            return Err(Code::TIMEOUT);
        }
        watch.wait(deadline);
    }
}

/// Handle of the GPU that an event is about, as it is now.
fn device_of(call: &Call, event: &Event) -> Result<Handle, Code> {
    let gpu = event.gpu as u32;
    handle_in(&*call.latest()?, Named::Gpu { gpu })
}

exports! {
    query nvmlEventSetCreate(set: Out<Handle>) |call| {
        let number = sets().create(call.node().events.last);
        set.put(Handle::new(Named::EventSet { number }, 0))
    };
    query nvmlDeviceGetSupportedEventTypes(device: Handle, eventTypes: Out<u64>) |call| {
        let ecc = if call.gpu()?.board.ecc { SUPPORTED_WITH_ECC } else { 0 };
        eventTypes.put(SUPPORTED | ecc)
    };
    query nvmlDeviceRegisterEvents(device: Handle, eventTypes: u64, set: Handle) |call| {
        let ecc = if call.gpu()?.board.ecc { SUPPORTED_WITH_ECC } else { 0 };
        if eventTypes & !(SUPPORTED | ecc) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let wish = Wish { gpu: Some(call.position()?), kinds: eventTypes, since: call.node().events.last };
        sets().get(set_number(set)?)?.wishes.push(wish);
        Ok(())
    };
    query nvmlEventSetWait_v2(set: Handle, data: Out<nvmlEventData_t>, timeoutms: u32) |call| {
        let data = data.required()?;
        let event = wait(call, set_number(set)?, timeoutms)?;
        data.put(nvmlEventData_t {
            device: device_of(call, &event)?.pointer(),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: event.instance.unwrap_or(WHOLE_GPU),
            computeInstanceId: event.compute.unwrap_or(WHOLE_GPU),
        })
    };
    query nvmlEventSetWait(set: Handle, data: Out<EventDataV1>, timeoutms: u32) |call| {
        let data = data.required()?;
        let event = wait(call, set_number(set)?, timeoutms)?;
        let device = device_of(call, &event)?.pointer();
        data.put(EventDataV1 { device, eventType: event.kind, eventData: event.data })
    };
    query nvmlEventSetFree(set: Handle) |_| {
        let number = set_number(set)?;
        sets().sets.remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    };

    query nvmlSystemEventSetCreate(request: Out<nvmlSystemEventSetCreateRequest_v1_t>) |call| {
        check_version(request, 1)?;
        let number = sets().create(call.node().events.last);
        let set = Handle::new(Named::SystemEventSet { number }, 0).pointer();
        request.put(nvmlSystemEventSetCreateRequest_v1_t { set, ..request.get()? })
    };
    query nvmlSystemRegisterEvents(request: Out<nvmlSystemRegisterEventRequest_v1_t>) |call| {
        check_version(request, 1)?;
        let asked = request.get()?;
        if asked.eventTypes & !(system_kind::BIND | system_kind::UNBIND) != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let wish = Wish { gpu: None, kinds: asked.eventTypes, since: call.node().events.last };
        sets().get(system_set_number(asked.set)?)?.wishes.push(wish);
        Ok(())
    };
    query nvmlSystemEventSetWait(request: Out<nvmlSystemEventSetWaitRequest_v1_t>) |call| {
        check_version(request, 1)?;
        let mut asked = request.get()?;
        let number = system_set_number(asked.set)?;
        // SAFETY: the header has the caller put a pointer to `dataSize` entries there.
        let data = unsafe { Out::from_caller(asked.data) }.required()?;
        if asked.dataSize == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let mut next = Some(wait(call, number, asked.timeoutms)?);
        asked.numEvent = 0;
        while let Some(event) = next {
            let pci = call.node().gpus.get(event.gpu).map(|gpu| gpu.pci).unwrap_or_default();
            let id = pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device);
            data.at(asked.numEvent as usize).put(nvmlSystemEventData_v1_t { eventType: event.kind, gpuId: id })?;
            asked.numEvent += 1;
            next = if asked.numEvent < asked.dataSize { take(call, number, &*call.latest()?)? } else { None };
        }
        request.put(asked)
    };
    query nvmlSystemEventSetFree(request: Out<nvmlSystemEventSetFreeRequest_v1_t>) |_| {
        check_version(request, 1)?;
        let number = system_set_number(request.get()?.set)?;
        sets().sets.remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    };
}
