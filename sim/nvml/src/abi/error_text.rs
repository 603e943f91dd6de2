//! `nvmlErrorString`: the only exported function that neither needs an initialised library nor returns a code.

use std::ffi::{CStr, c_char};

use crate::Code;

/// The text of a code, as the driver's library prints it.
fn text(code: Code) -> &'static CStr {
    match code {
        Code::SUCCESS => c"Success",
        Code::UNINITIALIZED => c"Uninitialized",
        Code::INVALID_ARGUMENT => c"Invalid Argument",
        Code::NOT_SUPPORTED => c"Not Supported",
        Code::NO_PERMISSION => c"Insufficient Permissions",
        Code::ALREADY_INITIALIZED => c"Already Initialized",
        Code::NOT_FOUND => c"Not Found",
        Code::INSUFFICIENT_SIZE => c"Insufficient Size",
        Code::INSUFFICIENT_POWER => c"Insufficient External Power",
        Code::DRIVER_NOT_LOADED => c"Driver Not Loaded",
        Code::TIMEOUT => c"Timeout",
        Code::IRQ_ISSUE => c"Interrupt Request Issue",
        Code::LIBRARY_NOT_FOUND => c"NVML Shared Library Not Found",
        Code::FUNCTION_NOT_FOUND => c"Function Not Found",
        Code::CORRUPTED_INFOROM => c"Corrupted infoROM",
        Code::GPU_IS_LOST => c"GPU is lost",
        Code::RESET_REQUIRED => c"GPU requires reset",
        Code::OPERATING_SYSTEM => c"GPU access blocked by the operating system",
        Code::LIB_RM_VERSION_MISMATCH => c"Driver/library version mismatch",
        Code::IN_USE => c"In use by another client",
        Code::MEMORY => c"Insufficient Memory",
        Code::NO_DATA => c"No data",
        Code::VGPU_ECC_NOT_SUPPORTED => c"vGPU does not support ECC",
        Code::INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        Code::FREQ_NOT_SUPPORTED => c"Requested frequency is not supported",
        Code::ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        Code::DEPRECATED => c"Requested functionality has been deprecated",
        Code::NOT_READY => c"Not ready",
        Code::GPU_NOT_FOUND => c"No GPUs were found",
        Code::INVALID_STATE => c"Invalid state",
        Code::RESET_TYPE_NOT_SUPPORTED => c"Reset type not supported",
        _ => c"Unknown Error",
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    text(Code(result)).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_text() {
        let texts: std::collections::HashSet<_> =
            Code::ALL.iter().map(|code| text(*code)).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        assert_eq!(text(Code(77)), text(Code::UNKNOWN));
    }
}
