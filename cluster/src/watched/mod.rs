//! Files that may change while they are in use: mounted ConfigMaps, and what people edit on a node.
//!
//! Folders are watched, not polled. Where no watch can be had (the folder is not there, or the kernel's limit on watches is
//! used up) they are looked at from time to time until one can.

mod file;
mod folder;

pub use file::WatchedFile;
pub use folder::WatchedFolder;
