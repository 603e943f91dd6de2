//! Pointers that a C caller passes, as types whose methods check for null and write whole values.
//!
//! The contract of every NVML function is that a pointer argument is either null or points to memory that is valid, for
//! the call's length, for the type (and the element count) that the header names. These types are made only by C callers
//! of the exported functions, so their methods rely on that contract and the rest of the library needs no `unsafe`.
//! Must not know what is written.

use std::ffi::{CStr, c_char, c_uint};

use crate::Code;

/// Where the caller wants one `T` (or the first of several), or null.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Whether the caller passed nothing.
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// `INVALID_ARGUMENT` for null.
    pub(super) fn required(self) -> Result<Self, Code> {
        if self.is_null() {
            Err(Code::INVALID_ARGUMENT)
        } else {
            Ok(self)
        }
    }

    /// What lies there now: the input half of an in-out argument.
    pub(super) fn get(self) -> Result<T, Code> {
        self.required()?;
        // SAFETY: not null, and by the module's contract valid for a `T` of plain C data.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes one value.
    pub(super) fn put(self, value: T) -> Result<(), Code> {
        self.required()?;
        // SAFETY: not null, and by the module's contract valid for writing a `T`.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The element at `index` of an array that the contract says is at least that long.
    pub(super) fn at(self, index: usize) -> Self {
        Out(self.0.wrapping_add(index))
    }

    /// Writes several values into an array that the contract says is large enough.
    pub(super) fn put_all(self, values: impl IntoIterator<Item = T>) -> Result<(), Code> {
        self.required()?;
        for (index, value) in values.into_iter().enumerate() {
            self.at(index).put(value)?;
        }
        Ok(())
    }

    /// The same address as a pointer to another type, for structs that begin with their version number.
    pub(super) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// A pointer out of a struct that the caller filled in.
    ///
    /// # Safety
    /// The pointer is null or valid as the module's contract says.
    pub(super) unsafe fn from_caller(pointer: *mut T) -> Self {
        Out(pointer)
    }
}

impl Out<c_char> {
    /// Writes a text with its final zero; `INSUFFICIENT_SIZE` when `length` bytes cannot hold it.
    pub(super) fn put_text(self, length: c_uint, text: &str) -> Result<(), Code> {
        self.required()?;
        if text.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let bytes = text.bytes().chain(std::iter::once(0));
        self.put_all(bytes.map(|byte| byte as c_char))
    }
}

/// Fills an array whose count is in-out: capacity in, number out. A capacity that is too small (also 0, to ask for the
/// number) gives `INSUFFICIENT_SIZE` with the number written.
pub(super) fn put_list<T: Copy>(
    array: Out<T>,
    count: Out<c_uint>,
    values: &[T],
) -> Result<(), Code> {
    let capacity = count.get()? as usize;
    count.put(values.len() as c_uint)?;
    if capacity < values.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if values.is_empty() {
        return Ok(());
    }
    array.put_all(values.iter().copied())
}

/// Fills an array which the caller, by the function's contract, made large enough for every answer; a null array asks for
/// the number alone.
pub(super) fn put_whole<T: Copy>(
    array: Out<T>,
    count: Out<c_uint>,
    values: &[T],
) -> Result<(), Code> {
    count.put(values.len() as c_uint)?;
    if array.is_null() {
        return Ok(());
    }
    array.put_all(values.iter().copied())
}

/// A struct that the caller passes in, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// The value; `INVALID_ARGUMENT` for null.
    pub(super) fn get(self) -> Result<T, Code> {
        Out(self.0.cast_mut()).get()
    }
}

/// A zero-terminated text from the caller, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    /// The text; `INVALID_ARGUMENT` for null or for bytes that are not UTF-8 (nothing that NVML knows is).
    pub(super) fn get(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, and by the module's contract a zero-terminated string that lives as long as the call, which
        // is longer than this borrow.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
    }
}

/// A text in a field of fixed length, cut if need be so that a final zero always fits.
pub(super) fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (slot, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *slot = byte as c_char;
    }
    field
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn out<T>(value: &mut T) -> Out<T> {
        Out(value)
    }

    #[test]
    fn text_needs_room_for_its_zero() {
        let mut buffer = [1 as c_char; 4];
        assert_eq!(
            Out(buffer.as_mut_ptr()).put_text(3, "abc"),
            Err(Code::INSUFFICIENT_SIZE)
        );
        assert_eq!(buffer, [1; 4], "nothing written when it does not fit");
        Out(buffer.as_mut_ptr()).put_text(4, "abc").unwrap();
        assert_eq!(buffer.map(|c| c as u8), *b"abc\0");
    }

    #[test]
    fn null_is_an_invalid_argument() {
        assert_eq!(
            Out::<u32>(std::ptr::null_mut()).put(1),
            Err(Code::INVALID_ARGUMENT)
        );
        assert_eq!(
            Out::<c_char>(std::ptr::null_mut()).put_text(9, ""),
            Err(Code::INVALID_ARGUMENT)
        );
        assert_eq!(Text(std::ptr::null()).get(), Err(Code::INVALID_ARGUMENT));
    }

    #[test]
    fn lists_tell_the_number_they_need() {
        let mut array = [0_u32; 3];
        let mut count = 2;
        let list = Out(array.as_mut_ptr());
        assert_eq!(
            put_list(list, out(&mut count), &[7, 8, 9]),
            Err(Code::INSUFFICIENT_SIZE)
        );
        assert_eq!((count, array), (3, [0; 3]));
        put_list(list, out(&mut count), &[7, 8, 9]).unwrap();
        assert_eq!(array, [7, 8, 9]);
        let mut none = 0;
        put_list(Out::<u32>(std::ptr::null_mut()), out(&mut none), &[]).unwrap();
    }

    #[test]
    fn fixed_fields_always_end_in_zero() {
        assert_eq!(fixed::<4>("abcdef").map(|c| c as u8), *b"abc\0");
        assert_eq!(fixed::<4>("a").map(|c| c as u8), *b"a\0\0\0");
    }
}
