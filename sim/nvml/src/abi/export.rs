//! The macros that turn a table of functions into exported C symbols.
//!
//! A line of `exports!` is `kind name(arguments) |call| body`, where the kind is `query`, `privileged` (a query for root) or
//! `mutation`; the body answers `Ok(())` or the code. Names and argument names are the header's. Every exported function goes through `dispatch`.

macro_rules! exports {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),* $(,)?) |$call:pat_param| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name($($arg: $type),*) -> u32 {
            $crate::abi::dispatch::$kind(
                stringify!($name),
                &[$((stringify!($arg), &$arg as &dyn $crate::abi::argument::Argument)),*],
                |$call| $body,
            )
        }
    )*};
}

/// Functions that the simulation does not model: they answer `NOT_SUPPORTED`, as a driver does for hardware that lacks
/// the feature. They take no parameters: in the C calling conventions of Linux the caller owns the arguments, so a
/// function may ignore them.
macro_rules! unmodelled {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> u32 {
            $crate::abi::dispatch::unmodelled(stringify!($name))
        }
    )*};
}

pub(super) use {exports, unmodelled};
