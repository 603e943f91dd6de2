//! Rules of the driver as captures and documents state them.
