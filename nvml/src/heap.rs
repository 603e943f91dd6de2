//! How the process's threads share the C library's heap.
//!
//! Lanes are many threads that allocate little. glibc gives each of them a heap of its own ("arena"), and each keeps what
//! its thread needed once; the driver library allocates there too. On a node with many GPUs that is most of a part's memory.

/// Lets all threads allocate from one heap. To be called before there are threads; a C library without arenas needs none of it.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers and sets a limit inside the allocator, which is thread-safe.
    unsafe {
        // It fails only for numbers that this C library does not know: then the heaps stay apart.
        mallopt(M_ARENA_MAX, 1);
    }
}

/// `malloc.h`: how many arenas there may be.
#[cfg(target_env = "gnu")]
const M_ARENA_MAX: std::ffi::c_int = -8;

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// glibc: sets a parameter of the allocator.
    fn mallopt(parameter: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
}
