//! What a container needs of a node to use a GPU: device nodes, driver files and their links, as Container Device Interface
//! specs.
//!
//! The crate reads the node's file system and knows no driver call, no kubelet and no API server.
