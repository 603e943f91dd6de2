//! Gives the simulated driver library the soname of the real one, so that a program which asks the loader for
//! `libnvidia-ml.so.1` (from `LD_LIBRARY_PATH` or a container's library folder) finds it under that name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Every simulated node has a copy of the library, and debug information is nine tenths of an unoptimised one.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
}
