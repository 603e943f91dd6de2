//! Initialisation and shutdown. These do not go through the ordinary path: they are what makes it work.

use super::{
    dispatch::{guarded, hurdles, load},
    session,
};

/// `nvmlInit` flags: no GPUs needed, do not attach, force initialisation.
const KNOWN_FLAGS: u32 = 0b111;

fn initialise(symbol: &'static str, flags: u32) -> u32 {
    guarded(|| {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(crate::Code::INVALID_ARGUMENT);
        }
        session::init(|store| hurdles(store, load(store)?, symbol, None).map(drop))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    initialise("nvmlInit_v2", 0)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    initialise("nvmlInit", 0)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(flags: u32) -> u32 {
    initialise("nvmlInitWithFlags", flags)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    guarded(session::shutdown)
}
