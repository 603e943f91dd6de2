//! Initialisation and shutdown. These do not go through the ordinary path: they are what makes it work.

use super::{
    dispatch::{guarded, hurdles, load},
    events, gpm, session,
};
use crate::Code;

/// `nvmlInit` flags: no GPUs needed, do not attach, force initialisation.
const KNOWN_FLAGS: u32 = 0b111;

fn initialise(symbol: &'static str, flags: u32) -> u32 {
    guarded(|| {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Code::INVALID_ARGUMENT);
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
    guarded(|| {
        let client = session::current()?;
        let store = client.store();
        match hurdles(store, load(store)?, "nvmlShutdown", None) {
            // Leaving takes no driver.
            Ok(_) | Err(Code::DRIVER_NOT_LOADED | Code::LIB_RM_VERSION_MISMATCH) => {}
            Err(code) => return Err(code),
        }
        if session::shutdown()? {
            events::forget_sets();
            gpm::forget_samples();
        }
        Ok(())
    })
}
