//! GPU instances: profiles, placements, creation and destruction.
//!
//! Three numbers must not be mixed up: `profile` is an enumeration index, `profileId` the id that a profile's info holds,
//! and `id` names an instance. The first struct of a family has no version word; later ones share one entry point.

use nvml_wrapper_sys::bindings::{
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};
use serde_json::json;

use super::{
    argument::Shown,
    call::{Call, handle_in},
    export::exports,
    handle::{Handle, Named},
    pointer::{In, Out, fixed, put_whole},
    structs::version,
};
use crate::{
    Code,
    model::{
        Gpu, GpuInstance, Placement,
        board::{InstanceProfile, MigSpec},
    },
};

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of the 13.3 header: below it a profile that a board lacks is NOT_SUPPORTED, from it
/// on the index is invalid.
const PROFILE_INDICES: u32 = 0x12;

/// `NVML_GPU_INSTANCE_PROFILE_CAPS_GFX`.
const CAPABILITY_GRAPHICS: u32 = 0x2;

impl Shown for nvmlGpuInstancePlacement_t {
    fn shown(&self) -> serde_json::Value {
        json!({ "start": self.start, "size": self.size })
    }
}

fn profile_by_index(gpu: &Gpu, index: u32) -> Result<&InstanceProfile, Code> {
    let spec: &MigSpec = gpu.mig_spec()?;
    if index >= PROFILE_INDICES {
        return Err(Code::INVALID_ARGUMENT);
    }
    spec.by_index(index).ok_or(Code::NOT_SUPPORTED)
}

/// Writes the info in the version that the caller asked for in its first word.
fn put_info(
    info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    profile: &InstanceProfile,
) -> Result<(), Code> {
    let asked = info.cast::<u32>().get()?;
    let engines = profile.engines;
    // As `nvidia-smi mig -lgip` prints it. The header does not say whether the prefix is part of the name.
    let name = fixed(&format!("MIG {}", profile.name));
    if asked == version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        info.put(nvmlGpuInstanceProfileInfo_v2_t {
            version: asked,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: engines.copy,
            decoderCount: engines.decoder,
            encoderCount: engines.encoder,
            jpegCount: engines.jpeg,
            ofaCount: engines.ofa,
            memorySizeMB: profile.memory_mib,
            name,
        })
    } else if asked == version::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
        info.cast().put(nvmlGpuInstanceProfileInfo_v3_t {
            version: asked,
            id: profile.id,
            sliceCount: profile.slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: engines.copy,
            decoderCount: engines.decoder,
            encoderCount: engines.encoder,
            jpegCount: engines.jpeg,
            ofaCount: engines.ofa,
            memorySizeMB: profile.memory_mib,
            name,
            capabilities: if profile.graphics {
                CAPABILITY_GRAPHICS
            } else {
                0
            },
        })
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}

fn put_placements(
    call: &Call,
    profile: u32,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<u32>,
) -> Result<(), Code> {
    let offered = call.gpu()?.possible_placements(profile)?;
    let offered: Vec<_> = offered
        .iter()
        .map(|place| nvmlGpuInstancePlacement_t {
            start: place.start,
            size: place.size,
        })
        .collect();
    put_whole(placements, count, &offered)
}

fn create(
    call: &Call,
    profile: u32,
    placement: Option<Placement>,
    created: Out<Handle>,
) -> Result<(), Code> {
    call.gpu()?;
    let position = call.position()?;
    let created = created.required()?;
    let now = call.now_us();
    let (id, handle) = call.update(|node| {
        let instance =
            node.create_gpu_instance(position, profile, placement, std::process::id(), now)?;
        let gpu = position as u32;
        Ok((
            instance,
            handle_in(node, Named::Instance { gpu, instance })?,
        ))
    })?;
    call.note("created", id);
    created.put(handle)
}

/// GPU instances while MIG is on; without them the driver answers NOT_SUPPORTED.
fn instances(gpu: &Gpu) -> Result<&[GpuInstance], Code> {
    gpu.mig_spec()?;
    if gpu.mig.current {
        Ok(&gpu.mig.instances)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

exports! {
    query nvmlDeviceGetGpuInstanceProfileInfo(
        device: Handle,
        profile: u32,
        info: Out<nvmlGpuInstanceProfileInfo_t>,
    ) |call| {
        let profile = profile_by_index(call.gpu()?, profile)?;
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.engines.copy,
            decoderCount: profile.engines.decoder,
            encoderCount: profile.engines.encoder,
            jpegCount: profile.engines.jpeg,
            ofaCount: profile.engines.ofa,
            memorySizeMB: profile.memory_mib,
        })
    };
    query nvmlDeviceGetGpuInstanceProfileInfoV(
        device: Handle,
        profile: u32,
        info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    ) |call| {
        put_info(info, profile_by_index(call.gpu()?, profile)?)
    };
    query nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: Handle,
        profileId: u32,
        info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    ) |call| {
        put_info(info, call.gpu()?.mig_spec()?.by_id(profileId).ok_or(Code::INVALID_ARGUMENT)?)
    };
    privileged nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle,
        profileId: u32,
        placements: Out<nvmlGpuInstancePlacement_t>,
        count: Out<u32>,
    ) |call| {
        put_placements(call, profileId, placements, count)
    };
    privileged nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Handle,
        profileId: u32,
        placements: Out<nvmlGpuInstancePlacement_t>,
        count: Out<u32>,
    ) |call| {
        put_placements(call, profileId, placements, count)
    };
    privileged nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: Handle,
        profileId: u32,
        count: Out<u32>,
    ) |call| {
        count.put(call.gpu()?.remaining_capacity(profileId)?)
    };
    mutation nvmlDeviceCreateGpuInstance(
        device: Handle,
        profileId: u32,
        gpuInstance: Out<Handle>,
    ) |call| {
        create(call, profileId, None, gpuInstance)
    };
    mutation nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle,
        profileId: u32,
        placement: In<nvmlGpuInstancePlacement_t>,
        gpuInstance: Out<Handle>,
    ) |call| {
        let wanted = placement.get()?;
        create(call, profileId, Some(Placement { start: wanted.start, size: wanted.size }), gpuInstance)
    };
    privileged nvmlDeviceGetGpuInstances(
        device: Handle,
        profileId: u32,
        gpuInstances: Out<Handle>,
        count: Out<u32>,
    ) |call| {
        let gpu = call.gpu()?;
        let existing = instances(gpu)?;
        gpu.mig_spec()?.by_id(profileId).ok_or(Code::INVALID_ARGUMENT)?;
        let position = call.position()? as u32;
        let of_profile = existing.iter().filter(|instance| instance.profile == profileId);
        let handles = of_profile
            .map(|instance| call.handle_of(Named::Instance { gpu: position, instance: instance.id }))
            .collect::<Result<Vec<Handle>, Code>>()?;
        count.required()?;
        gpuInstances.required()?;
        put_whole(gpuInstances, count, &handles)
    };
    privileged nvmlDeviceGetGpuInstanceById(device: Handle, id: u32, gpuInstance: Out<Handle>) |call| {
        let found = instances(call.gpu()?)?.iter().find(|instance| instance.id == id).ok_or(Code::NOT_FOUND)?;
        gpuInstance.put(call.handle_of(Named::Instance { gpu: call.position()? as u32, instance: found.id })?)
    };
    query nvmlGpuInstanceGetInfo(gpuInstance: Handle, info: Out<nvmlGpuInstanceInfo_t>) |call| {
        let (_, instance) = call.instance()?;
        info.put(nvmlGpuInstanceInfo_t {
            device: call.gpu_handle(call.position()?)?.pointer(),
            id: instance.id,
            profileId: instance.profile,
            placement: nvmlGpuInstancePlacement_t { start: instance.placement.start, size: instance.placement.size },
        })
    };
    mutation nvmlGpuInstanceDestroy(gpuInstance: Handle) |call| {
        let (_, instance) = call.instance()?;
        let (position, now) = (call.position()?, call.now_us());
        call.update(|node| node.destroy_gpu_instance(position, instance.id, now))
    };
}
