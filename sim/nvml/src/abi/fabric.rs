//! Registration of a GPU with its NVLink fabric.

use nvml_wrapper_sys::bindings::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
};

use super::{
    dispatch::Call,
    export::exports,
    handle::Handle,
    pointer::Out,
    structs::{nvmlGpuFabricClique_v1_t, nvmlGpuFabricInfo_v4_t, put_versioned, version},
};
use crate::{
    Code,
    model::fabric::{Fabric, FabricState},
};

fn fabric(call: &Call) -> Result<&Fabric, Code> {
    let fabric = &call.gpu()?.fabric;
    if fabric.state == FabricState::NotSupported {
        Err(Code::NOT_SUPPORTED)
    } else {
        Ok(fabric)
    }
}

exports! {
    query nvmlDeviceGetGpuFabricInfo(device: Handle, gpuFabricInfo: Out<nvmlGpuFabricInfo_t>) |call| {
        let fabric = fabric(call)?;
        gpuFabricInfo.put(nvmlGpuFabricInfo_t {
            clusterUuid: fabric.cluster,
            status: fabric.status,
            cliqueId: fabric.clique,
            state: fabric.state.number(),
        })
    };
    query nvmlDeviceGetGpuFabricInfoV(device: Handle, gpuFabricInfo: Out<nvmlGpuFabricInfo_v3_t>) |call| {
        let asked = gpuFabricInfo.cast::<u32>().get()?;
        if asked == version::<nvmlGpuFabricInfo_v2_t>(2) {
            let fabric = fabric(call)?;
            return gpuFabricInfo.cast().put(nvmlGpuFabricInfo_v2_t {
                version: asked,
                clusterUuid: fabric.cluster,
                status: fabric.status,
                cliqueId: fabric.clique,
                state: fabric.state.number(),
                healthMask: fabric.health,
            });
        }
        super::structs::check_version(gpuFabricInfo, 3)?;
        let fabric = fabric(call)?;
        put_versioned(gpuFabricInfo, 3, |version| nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: fabric.cluster,
            status: fabric.status,
            cliqueId: fabric.clique,
            state: fabric.state.number(),
            healthMask: fabric.health,
            healthSummary: fabric.summary(),
        })
    };
    query nvmlDeviceGetGpuFabricInfo_v4(device: Handle, gpuFabricInfo: Out<nvmlGpuFabricInfo_v4_t>) |call| {
        let fabric = fabric(call)?;
        let mut cliques = [nvmlGpuFabricClique_v1_t { kind: 0, id: 0 }; 64];
        // Type 0, unicast by pointer, is what the earlier versions called the clique.
        cliques[0].id = fabric.clique;
        gpuFabricInfo.put(nvmlGpuFabricInfo_v4_t {
            clusterUuid: fabric.cluster,
            status: fabric.status,
            cliques,
            numCliques: 1,
            state: fabric.state.number(),
            healthMask: fabric.health,
            healthSummary: fabric.summary(),
        })
    };
}
