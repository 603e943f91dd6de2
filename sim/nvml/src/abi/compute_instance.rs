//! Compute instances: profiles, placements, creation and destruction inside a GPU instance.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t,
};
use serde_json::json;

use super::{
    argument::Shown,
    call::{Call, handle_in},
    export::exports,
    handle::{Handle, Named},
    pointer::{In, Out, fixed, put_whole},
    structs::{ComputeInstanceInfoV1, version},
};
use crate::{
    Code,
    model::{
        Placement,
        board::{ComputeProfile, InstanceProfile},
    },
};

/// `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` of the 13.3 header.
const PROFILE_INDICES: u32 = 9;
/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT`: only shared engines exist.
const ENGINE_PROFILES: u32 = 1;

impl Shown for nvmlComputeInstancePlacement_t {
    fn shown(&self) -> serde_json::Value {
        json!({ "start": self.start, "size": self.size })
    }
}

/// The profile of the call's GPU instance, with one of its compute-instance profiles.
fn profile_by_index(
    call: &Call,
    index: u32,
    engines: u32,
) -> Result<(&InstanceProfile, &ComputeProfile), Code> {
    let (gpu, instance) = call.instance()?;
    if index >= PROFILE_INDICES || engines >= ENGINE_PROFILES {
        return Err(Code::INVALID_ARGUMENT);
    }
    let profile = gpu.profile_of(instance).ok_or(Code::UNKNOWN)?;
    Ok((
        profile,
        profile.compute_by_index(index).ok_or(Code::NOT_SUPPORTED)?,
    ))
}

fn create(
    call: &Call,
    profile: u32,
    placement: Option<Placement>,
    created: Out<Handle>,
) -> Result<(), Code> {
    let (_, instance) = call.instance()?;
    let created = created.required()?;
    let (position, now) = (call.position()?, call.now_us());
    let (id, handle) = call.update(|node| {
        let compute =
            node.create_compute_instance(position, instance.id, profile, placement, now)?;
        let named = Named::Compute {
            gpu: position as u32,
            instance: instance.id,
            compute,
        };
        Ok((compute, handle_in(node, named)?))
    })?;
    call.note("created", id);
    created.put(handle)
}

exports! {
    query nvmlGpuInstanceGetComputeInstanceProfileInfo(
        gpuInstance: Handle,
        profile: u32,
        engProfile: u32,
        info: Out<nvmlComputeInstanceProfileInfo_t>,
    ) |call| {
        let (instance, compute) = profile_by_index(call, profile, engProfile)?;
        info.put(nvmlComputeInstanceProfileInfo_t {
            id: compute.id,
            sliceCount: compute.slices,
            instanceCount: compute.max_instances,
            multiprocessorCount: compute.multiprocessors,
            sharedCopyEngineCount: instance.engines.copy,
            sharedDecoderCount: instance.engines.decoder,
            sharedEncoderCount: instance.engines.encoder,
            sharedJpegCount: instance.engines.jpeg,
            sharedOfaCount: instance.engines.ofa,
        })
    };
    query nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        gpuInstance: Handle,
        profile: u32,
        engProfile: u32,
        info: Out<nvmlComputeInstanceProfileInfo_v2_t>,
    ) |call| {
        let (instance, compute) = profile_by_index(call, profile, engProfile)?;
        let asked = info.cast::<u32>().get()?;
        let name = fixed(&format!("MIG {}", instance.device_name(compute)));
        let second = nvmlComputeInstanceProfileInfo_v2_t {
            version: asked,
            id: compute.id,
            sliceCount: compute.slices,
            instanceCount: compute.max_instances,
            multiprocessorCount: compute.multiprocessors,
            sharedCopyEngineCount: instance.engines.copy,
            sharedDecoderCount: instance.engines.decoder,
            sharedEncoderCount: instance.engines.encoder,
            sharedJpegCount: instance.engines.jpeg,
            sharedOfaCount: instance.engines.ofa,
            name,
        };
        if asked == version::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
            info.put(second)
        } else if asked == version::<nvmlComputeInstanceProfileInfo_v3_t>(3) {
            info.cast().put(nvmlComputeInstanceProfileInfo_v3_t {
                version: asked,
                id: second.id,
                sliceCount: second.sliceCount,
                instanceCount: second.instanceCount,
                multiprocessorCount: second.multiprocessorCount,
                sharedCopyEngineCount: second.sharedCopyEngineCount,
                sharedDecoderCount: second.sharedDecoderCount,
                sharedEncoderCount: second.sharedEncoderCount,
                sharedJpegCount: second.sharedJpegCount,
                sharedOfaCount: second.sharedOfaCount,
                name,
                capabilities: 0,
            })
        } else {
            Err(Code::ARGUMENT_VERSION_MISMATCH)
        }
    };
    privileged nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        gpuInstance: Handle,
        profileId: u32,
        placements: Out<nvmlComputeInstancePlacement_t>,
        count: Out<u32>,
    ) |call| {
        let (gpu, instance) = call.instance()?;
        let offered = gpu.compute_possible_placements(instance.id, profileId)?;
        let offered: Vec<_> =
            offered.iter().map(|place| nvmlComputeInstancePlacement_t { start: place.start, size: place.size }).collect();
        put_whole(placements, count, &offered)
    };
    privileged nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        gpuInstance: Handle,
        profileId: u32,
        count: Out<u32>,
    ) |call| {
        let (gpu, instance) = call.instance()?;
        count.put(gpu.compute_remaining_capacity(instance.id, profileId)?)
    };
    mutation nvmlGpuInstanceCreateComputeInstance(
        gpuInstance: Handle,
        profileId: u32,
        computeInstance: Out<Handle>,
    ) |call| {
        create(call, profileId, None, computeInstance)
    };
    mutation nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        gpuInstance: Handle,
        profileId: u32,
        placement: In<nvmlComputeInstancePlacement_t>,
        computeInstance: Out<Handle>,
    ) |call| {
        let wanted = placement.get()?;
        create(call, profileId, Some(Placement { start: wanted.start, size: wanted.size }), computeInstance)
    };
    privileged nvmlGpuInstanceGetComputeInstances(
        gpuInstance: Handle,
        profileId: u32,
        computeInstances: Out<Handle>,
        count: Out<u32>,
    ) |call| {
        let (gpu, instance) = call.instance()?;
        let profile = gpu.profile_of(instance).ok_or(Code::UNKNOWN)?;
        profile.compute_by_id(profileId).ok_or(Code::INVALID_ARGUMENT)?;
        let position = call.position()? as u32;
        let of_profile = instance.compute.iter().filter(|compute| compute.profile == profileId);
        let handles = of_profile
            .map(|compute| call.handle_of(Named::Compute { gpu: position, instance: instance.id, compute: compute.id }))
            .collect::<Result<Vec<Handle>, Code>>()?;
        computeInstances.required()?;
        put_whole(computeInstances, count, &handles)
    };
    privileged nvmlGpuInstanceGetComputeInstanceById(
        gpuInstance: Handle,
        id: u32,
        computeInstance: Out<Handle>,
    ) |call| {
        let (_, instance) = call.instance()?;
        let compute = instance.compute_by_id(id).ok_or(Code::NOT_FOUND)?;
        let named = Named::Compute { gpu: call.position()? as u32, instance: instance.id, compute: compute.id };
        computeInstance.put(call.handle_of(named)?)
    };
    query nvmlComputeInstanceGetInfo_v2(
        computeInstance: Handle,
        info: Out<nvmlComputeInstanceInfo_t>,
    ) |call| {
        let (_, instance, compute) = call.compute()?;
        let position = call.position()?;
        let parent = Named::Instance { gpu: position as u32, instance: instance.id };
        info.put(nvmlComputeInstanceInfo_t {
            device: call.gpu_handle(position)?.pointer(),
            gpuInstance: call.handle_of(parent)?.pointer(),
            id: compute.id,
            profileId: compute.profile,
            placement: nvmlComputeInstancePlacement_t { start: compute.placement.start, size: compute.placement.size },
        })
    };
    query nvmlComputeInstanceGetInfo(
        computeInstance: Handle,
        info: Out<ComputeInstanceInfoV1>,
    ) |call| {
        let (_, instance, compute) = call.compute()?;
        let position = call.position()?;
        let parent = Named::Instance { gpu: position as u32, instance: instance.id };
        info.put(ComputeInstanceInfoV1 {
            device: call.gpu_handle(position)?.pointer(),
            gpuInstance: call.handle_of(parent)?.pointer(),
            id: compute.id,
            profileId: compute.profile,
        })
    };
    mutation nvmlComputeInstanceDestroy(computeInstance: Handle) |call| {
        let (_, instance, compute) = call.compute()?;
        let (position, now) = (call.position()?, call.now_us());
        call.update(|node| node.destroy_compute_instance(position, instance.id, compute.id, now))
    };
}
