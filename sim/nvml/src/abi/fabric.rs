//! Registration of a GPU with its NVLink fabric.

use super::{
    call::Call,
    export::exports,
    handle::Handle,
    pointer::Out,
    structs::{FabricInfoV1, FabricInfoV2, FabricInfoV3, FabricInfoV4, check_version, version},
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

fn first(fabric: &Fabric) -> FabricInfoV1 {
    FabricInfoV1 {
        clusterUuid: fabric.cluster,
        status: fabric.status,
        cliqueId: fabric.clique,
        state: fabric.state.number().into(),
    }
}

fn second(fabric: &Fabric, version: u32) -> FabricInfoV2 {
    FabricInfoV2 {
        version,
        first: first(fabric),
        healthMask: fabric.health,
    }
}

exports! {
    query nvmlDeviceGetGpuFabricInfo(device: Handle, gpuFabricInfo: Out<FabricInfoV1>) |call| {
        gpuFabricInfo.put(first(fabric(call)?))
    };
    query nvmlDeviceGetGpuFabricInfoV(device: Handle, gpuFabricInfo: Out<FabricInfoV3>) |call| {
        let asked = gpuFabricInfo.cast::<u32>().get()?;
        if asked == version::<FabricInfoV2>(2) {
            return gpuFabricInfo.cast().put(second(fabric(call)?, asked));
        }
        check_version(gpuFabricInfo, 3)?;
        let fabric = fabric(call)?;
        gpuFabricInfo.put(FabricInfoV3 { second: second(fabric, asked), healthSummary: fabric.summary().into() })
    };
    query nvmlDeviceGetGpuFabricInfo_v4(device: Handle, gpuFabricInfo: Out<FabricInfoV4>) |call| {
        let fabric = fabric(call)?;
        let mut cliques = [[0; 2]; 64];
        // Type 0, unicast by pointer, is what the earlier versions called the clique.
        cliques[0] = [0, fabric.clique];
        gpuFabricInfo.put(FabricInfoV4 {
            clusterUuid: fabric.cluster,
            status: fabric.status,
            cliques,
            numCliques: 1,
            state: fabric.state.number().into(),
            healthMask: fabric.health,
            healthSummary: fabric.summary().into(),
        })
    };
}
