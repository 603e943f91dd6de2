//! Resets, driver reloads and reboots, as somebody with root does them.

use super::{Error, SimulatedNode, refused};
use crate::{
    model::{DriverState, latency::Class},
    store::now_us,
};

impl SimulatedNode {
    /// Resets a GPU. Takes the time that the node's latency says.
    pub fn reset(&self, gpu: usize) -> Result<(), Error> {
        let node = self.state()?;
        std::thread::sleep(node.latency.of_class(Class::Reset));
        self.on_gpu(gpu, |node, _| node.reset(gpu, std::process::id()))?
            .map_err(refused("GPU reset"))
    }

    /// Unloads the driver.
    pub fn unload_driver(&self) -> Result<(), Error> {
        self.store
            .update(|node| node.unload_driver(std::process::id()))?
            .map_err(refused("driver unload"))
    }

    /// Loads the driver.
    pub fn load_driver(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| node.load_driver(now_us(node)))?)
    }

    /// Unloads the driver and loads it again.
    pub fn reload_driver(&self) -> Result<(), Error> {
        self.unload_driver()?;
        self.load_driver()
    }

    /// Makes the kernel module's version differ from the library's, as after an upgrade without a reload.
    pub fn mismatch_driver(&self) -> Result<(), Error> {
        Ok(self
            .store
            .update(|node| node.driver.state = DriverState::Mismatch)?)
    }

    /// Reboots the node.
    pub fn reboot(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| node.reboot(now_us(node)))?)
    }
}
