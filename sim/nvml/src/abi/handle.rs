//! The opaque handles given to callers: numbers that name a thing, never addresses.
//!
//! A handle says what kind of thing it names, in which generation of the driver it was made, and which thing. It stays
//! meaningful after the thing is gone, so that a stale handle can be recognised; it is never dereferenced. Its top bits
//! make it a non-canonical address: no heap of any language can hold it, so neither Go's pointer checks nor a garbage
//! collector mistake it for memory of theirs. Must not know whether the thing exists.

/// Bits 48..64 of every handle.
const MARK: u64 = 0x4E56;

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A whole GPU, by its place in the node.
    Gpu { gpu: u32 },
    /// A MIG device: a compute instance seen as a device.
    MigDevice {
        gpu: u32,
        instance: u32,
        compute: u32,
    },
    /// A GPU instance.
    Instance { gpu: u32, instance: u32 },
    /// A compute instance.
    Compute {
        gpu: u32,
        instance: u32,
        compute: u32,
    },
    /// An event set of this process.
    EventSet { number: u32 },
    /// A system event set of this process.
    SystemEventSet { number: u32 },
    /// A GPM sample of this process.
    Sample { number: u32 },
}

/// An opaque handle as it crosses the C boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Handle(u64);

impl Handle {
    /// Makes the handle of a thing in a driver generation (of which the low 16 bits count).
    pub(super) fn new(named: Named, generation: u64) -> Self {
        // kind: 4 bits, generation: 16 bits, then either gpu 8 + instance 10 + compute 10 bits, or a number of 28 bits.
        let (kind, payload) = match named {
            Named::Gpu { gpu } => (1, u64::from(gpu) << 20),
            Named::MigDevice {
                gpu,
                instance,
                compute,
            } => (2, pack(gpu, instance, compute)),
            Named::Instance { gpu, instance } => (3, pack(gpu, instance, 0)),
            Named::Compute {
                gpu,
                instance,
                compute,
            } => (4, pack(gpu, instance, compute)),
            Named::EventSet { number } => (5, u64::from(number)),
            Named::SystemEventSet { number } => (6, u64::from(number)),
            Named::Sample { number } => (7, u64::from(number)),
        };
        Handle(MARK << 48 | kind << 44 | (generation & 0xFFFF) << 28 | payload & 0x0FFF_FFFF)
    }

    /// What the handle names; `None` for null and for anything that is no handle of this library.
    pub(super) fn named(self) -> Option<Named> {
        if self.0 >> 48 != MARK {
            return None;
        }
        let gpu = (self.0 >> 20 & 0xFF) as u32;
        let instance = (self.0 >> 10 & 0x3FF) as u32;
        let compute = (self.0 & 0x3FF) as u32;
        let number = (self.0 & 0x0FFF_FFFF) as u32;
        match self.0 >> 44 & 0xF {
            1 => Some(Named::Gpu { gpu }),
            2 => Some(Named::MigDevice {
                gpu,
                instance,
                compute,
            }),
            3 => Some(Named::Instance { gpu, instance }),
            4 => Some(Named::Compute {
                gpu,
                instance,
                compute,
            }),
            5 => Some(Named::EventSet { number }),
            6 => Some(Named::SystemEventSet { number }),
            7 => Some(Named::Sample { number }),
            _ => None,
        }
    }

    /// Whether the handle was made in this driver generation.
    pub(super) fn is_of(self, generation: u64) -> bool {
        self.0 >> 28 & 0xFFFF == generation & 0xFFFF
    }

    /// The handle as a pointer field of a C struct.
    pub(super) fn pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    /// A handle out of a pointer field of a C struct.
    pub(super) fn from_pointer<T>(pointer: *mut T) -> Self {
        Handle(pointer.addr() as u64)
    }

    /// The number itself, for the trace.
    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

fn pack(gpu: u32, instance: u32, compute: u32) -> u64 {
    u64::from(gpu) << 20 | u64::from(instance & 0x3FF) << 10 | u64::from(compute & 0x3FF)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn named() -> impl Strategy<Value = Named> {
        let id = 0..1024_u32;
        prop_oneof![
            (0..256_u32).prop_map(|gpu| Named::Gpu { gpu }),
            (0..256_u32, id.clone(), id.clone()).prop_map(|(gpu, instance, compute)| {
                Named::MigDevice {
                    gpu,
                    instance,
                    compute,
                }
            }),
            (0..256_u32, id.clone()).prop_map(|(gpu, instance)| Named::Instance { gpu, instance }),
            (0..256_u32, id.clone(), id).prop_map(|(gpu, instance, compute)| Named::Compute {
                gpu,
                instance,
                compute
            }),
            (0..1_u32 << 28).prop_map(|number| Named::EventSet { number }),
            (0..1_u32 << 28).prop_map(|number| Named::SystemEventSet { number }),
            (0..1_u32 << 28).prop_map(|number| Named::Sample { number }),
        ]
    }

    proptest! {
        #[test]
        fn a_handle_names_what_it_was_made_for(named in named(), generation in any::<u64>()) {
            let handle = Handle::new(named, generation);
            prop_assert_eq!(handle.named(), Some(named));
            prop_assert!(handle.is_of(generation));
            prop_assert!(!handle.is_of(generation.wrapping_add(1)));
            prop_assert_eq!(Handle::from_pointer(handle.pointer::<u8>()), handle);
            // Neither the lower nor the upper half of a 48-bit address space.
            prop_assert!(!matches!(handle.bits() >> 47, 0 | 0x1FFFF));
        }

        #[test]
        fn ordinary_addresses_are_no_handles(address in 0_u64..1 << 48) {
            prop_assert_eq!(Handle(address).named(), None);
        }
    }
}
