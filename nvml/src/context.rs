//! One job's view of the library: makes calls, keeps their times, and turns codes into errors that say whose they are.
//!
//! All calls go through [`Context::call`]; the `unsafe` of each argument shape is in one helper here, so the modules that
//! read and write GPUs are safe code.

use std::ffi::{c_char, c_uint};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;

use crate::Code;
use crate::driver::BETWEEN;
use crate::error::{Error, GpuRef};
use crate::lane::Progress;
use crate::library::{Library, Symbol};
use crate::plain::{Plain, text, zeroed};

/// How long calls may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A call that reads.
    pub(crate) read: Duration,
    /// A call that changes the GPU.
    pub(crate) write: Duration,
}

/// See the module's words.
pub(crate) struct Context<'a> {
    pub(crate) library: &'a Arc<Library>,
    pub(crate) root: &'a Path,
    pub(crate) limits: Limits,
    pub(crate) gpu: Option<GpuRef>,
    pub(crate) progress: &'a Progress,
    /// Set when the caller no longer waits.
    pub(crate) abandoned: &'a AtomicBool,
}

impl Context<'_> {
    /// Makes a call that may take up to `limit`. A missing function is `FUNCTION_NOT_FOUND`.
    pub(crate) fn call_within<F: Copy>(
        &self,
        limit: Duration,
        symbol: Symbol<F>,
        call: impl FnOnce(F) -> sys::nvmlReturn_t,
    ) -> Result<(), Error> {
        let Some(function) = symbol.function else {
            return Err(self.error(symbol.name, Code::FUNCTION_NOT_FOUND));
        };
        self.bounded(limit, symbol.name, || call(function))
            .and_then(|code| self.check(symbol.name, Code(code)))
    }

    /// Makes a call that reads.
    pub(crate) fn call<F: Copy>(
        &self,
        symbol: Symbol<F>,
        call: impl FnOnce(F) -> sys::nvmlReturn_t,
    ) -> Result<(), Error> {
        self.call_within(self.limits.read, symbol, call)
    }

    /// Does anything that may hang in the driver (an NVML call, or a read under `/proc` or `/sys`), under its own name.
    pub(crate) fn bounded<T>(
        &self,
        limit: Duration,
        name: &'static str,
        work: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        if self.abandoned.load(Ordering::Acquire) {
            return Err(self.progress.as_hung());
        }
        self.progress.enter(name, limit);
        let result = work();
        self.progress.enter(BETWEEN, self.limits.read);
        Ok(result)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), Error> {
        if code == Code::SUCCESS {
            return Ok(());
        }
        if code.is_driver_gone() {
            self.library.note_gone();
        }
        Err(self.error(call, code))
    }

    /// The error for an answer of `call`.
    pub(crate) fn error(&self, call: &'static str, code: Code) -> Error {
        Error::Call {
            gpu: self.gpu.clone(),
            call,
            code,
        }
    }

    /// `f(&mut out)`.
    pub(crate) fn get<T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(*mut T) -> sys::nvmlReturn_t>,
    ) -> Result<T, Error> {
        let mut out = zeroed();
        // SAFETY: the function is the library's of this signature; `out` is valid for the call and any value is valid.
        self.call(symbol, |f| unsafe { f(&raw mut out) })?;
        Ok(out)
    }

    /// `f(object, &mut out)`; `object` is a handle or a plain argument.
    pub(crate) fn get_of<O: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, *mut T) -> sys::nvmlReturn_t>,
        object: O,
    ) -> Result<T, Error> {
        self.fill(symbol, object, zeroed())
    }

    /// `f(object, &mut out)` with `out` prepared by the caller, such as a version word.
    pub(crate) fn fill<O: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, *mut T) -> sys::nvmlReturn_t>,
        object: O,
        mut out: T,
    ) -> Result<T, Error> {
        // SAFETY: as in `get`; a handle comes from this opening of the library, which checks handles itself.
        self.call(symbol, |f| unsafe { f(object, &raw mut out) })?;
        Ok(out)
    }

    /// `f(object, &mut a, &mut b)`.
    pub(crate) fn get_two<O: Plain, A: Plain, B: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, *mut A, *mut B) -> sys::nvmlReturn_t>,
        object: O,
    ) -> Result<(A, B), Error> {
        let (mut a, mut b) = (zeroed(), zeroed());
        // SAFETY: as in `get_of`.
        self.call(symbol, |f| unsafe { f(object, &raw mut a, &raw mut b) })?;
        Ok((a, b))
    }

    /// `f(object, argument, &mut out)`.
    pub(crate) fn get_with<O: Plain, K: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, K, *mut T) -> sys::nvmlReturn_t>,
        object: O,
        argument: K,
    ) -> Result<T, Error> {
        self.get_with_within(self.limits.read, symbol, object, argument)
    }

    /// As [`get_with`](Self::get_with), for calls that change the GPU.
    pub(crate) fn write_with<O: Plain, K: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, K, *mut T) -> sys::nvmlReturn_t>,
        object: O,
        argument: K,
    ) -> Result<T, Error> {
        self.get_with_within(self.limits.write, symbol, object, argument)
    }

    fn get_with_within<O: Plain, K: Plain, T: Plain>(
        &self,
        limit: Duration,
        symbol: Symbol<unsafe extern "C" fn(O, K, *mut T) -> sys::nvmlReturn_t>,
        object: O,
        argument: K,
    ) -> Result<T, Error> {
        let mut out = zeroed();
        // SAFETY: as in `get_of`.
        self.call_within(limit, symbol, |f| unsafe {
            f(object, argument, &raw mut out)
        })?;
        Ok(out)
    }

    /// `f(handle, argument, &placement, &mut out)`, a call that changes the GPU.
    pub(crate) fn write_placed<O: Plain, P: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, u32, *const P, *mut T) -> sys::nvmlReturn_t>,
        object: O,
        argument: u32,
        placement: P,
    ) -> Result<T, Error> {
        let mut out = zeroed();
        // SAFETY: as in `get_of`; `placement` is valid for the call.
        self.call_within(self.limits.write, symbol, |f| unsafe {
            f(object, argument, &raw const placement, &raw mut out)
        })?;
        Ok(out)
    }

    /// `f(object)`, a call that changes the GPU.
    pub(crate) fn write<O: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O) -> sys::nvmlReturn_t>,
        object: O,
    ) -> Result<(), Error> {
        // SAFETY: as in `get_of`.
        self.call_within(self.limits.write, symbol, |f| unsafe { f(object) })
    }

    /// `f(object, argument)`, a call that changes the GPU.
    pub(crate) fn set<O: Plain, K: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, K) -> sys::nvmlReturn_t>,
        object: O,
        argument: K,
    ) -> Result<(), Error> {
        // SAFETY: as in `get_of`.
        self.call_within(self.limits.write, symbol, |f| unsafe {
            f(object, argument)
        })
    }

    /// `f(object, buffer, size)`: a string of up to `N` bytes.
    pub(crate) fn text_of<const N: usize, O: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, *mut c_char, c_uint) -> sys::nvmlReturn_t>,
        object: O,
    ) -> Result<String, Error> {
        let mut buffer = [0; N];
        // SAFETY: as in `get_of`; the size is the buffer's.
        self.call(symbol, |f| unsafe {
            f(object, buffer.as_mut_ptr(), N as c_uint)
        })?;
        Ok(text(&buffer))
    }

    /// `f(buffer, size)`: a string of up to `N` bytes.
    pub(crate) fn text<const N: usize>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(*mut c_char, c_uint) -> sys::nvmlReturn_t>,
    ) -> Result<String, Error> {
        let mut buffer = [0; N];
        // SAFETY: the function is the library's of this signature; the size is the buffer's.
        self.call(symbol, |f| unsafe { f(buffer.as_mut_ptr(), N as c_uint) })?;
        Ok(text(&buffer))
    }

    /// `f(object, &mut count, array)`: an array whose length the driver says (`INSUFFICIENT_SIZE` with the needed count).
    pub(crate) fn list<O: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, *mut c_uint, *mut T) -> sys::nvmlReturn_t>,
        object: O,
    ) -> Result<Vec<T>, Error> {
        let mut capacity: usize = 16;
        // The list may grow between two calls; three times in a row means that something else is wrong.
        for _ in 0..3 {
            let mut items: Vec<T> = vec![zeroed(); capacity];
            let mut count = capacity as c_uint;
            // SAFETY: as in `get_of`; `count` says how many items fit.
            let answer = self.call(symbol, |f| unsafe {
                f(object, &raw mut count, items.as_mut_ptr())
            });
            match answer {
                Ok(()) => {
                    items.truncate(count as usize);
                    return Ok(items);
                }
                Err(error) if error.code() == Some(Code::INSUFFICIENT_SIZE) => {
                    capacity = (count as usize).max(capacity).min(MAX_ITEMS / 2) * 2;
                }
                Err(error) => return Err(error),
            }
        }
        Err(self.error(symbol.name, Code::INSUFFICIENT_SIZE))
    }

    /// `f(object, argument, array, &mut count)` with room for `N` items.
    pub(crate) fn list_with<const N: usize, O: Plain, T: Plain>(
        &self,
        symbol: Symbol<unsafe extern "C" fn(O, c_uint, *mut T, *mut c_uint) -> sys::nvmlReturn_t>,
        object: O,
        argument: u32,
    ) -> Result<Vec<T>, Error> {
        let mut items = [zeroed(); N];
        let mut count = N as c_uint;
        // SAFETY: as in `get_of`; the array has `N` items, more than the driver can have of what is listed this way.
        self.call(symbol, |f| unsafe {
            f(object, argument, items.as_mut_ptr(), &raw mut count)
        })?;
        Ok(items[..(count as usize).min(N)].to_vec())
    }
}

/// No list of the driver is longer; a count beyond it is nonsense, not a reason to allocate.
const MAX_ITEMS: usize = 1 << 16;
