"""MIG on one GPU: its mode, its profiles, instances of every profile, and what must be refused."""

import ctypes

from pynvml import *  # noqa: F403: the module is made for it

from getters import gpm, processes
from tally import FULL, INVALID, IN_USE, NOT_FOUND, OK, UNSUPPORTED, address, any_of, tally


def placements(gpu, profile):
    count = ctypes.c_uint()
    nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, None, ctypes.byref(count))
    places = (c_nvmlGpuInstancePlacement_t * count.value)()
    nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places]


def instance_id(slices, start, size):
    """The whole is 0, halves are 1 and 2, quarters 3 to 6, eighths from 7 on."""
    return slices // size - 1 + start // size


def profiles(gpu, board):
    known = {profile.index: profile for profile in board.profiles}
    for index in range(0x14):
        profile = known.get(index)
        for version in (1, 2):
            call = lambda index=index, version=version: nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version)  # noqa: E731
            if profile is None:
                # The header 13.3 has 18 indices.
                tally.refuses(f"profile {index}", call, UNSUPPORTED if index < 18 else INVALID)
                continue
            info = tally.answers(f"profile {index}", call)
            tally.same("profile id", info.id, profile.id)
            tally.same("slices", info.sliceCount, profile.slices)
            tally.same("instances", info.instanceCount, profile.count)
            tally.same("P2P", info.isP2pSupported, 0)
            tally.same("multiprocessors", info.multiprocessorCount, profile.sm)
            tally.same(f"memory of {profile.id}", info.memorySizeMB, any_of(profile.memory))
            found = (info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount)
            for engine, number, expected in zip(("copy", "decoder", "encoder", "JPEG", "OFA"), found, profile.engines):
                tally.same(f"{engine} engines of {profile.id}", number, expected)
            if version == 2:
                name = info.name.decode() if isinstance(info.name, bytes) else info.name
                tally.same("name", name.removeprefix("MIG "), profile.names)
                tally.same("found by id", nvmlDeviceGetGpuInstanceProfileInfoById(gpu, profile.id).id, profile.id)
        if profile:
            tally.same("placements", placements(gpu, profile.id), [[(start, profile.size) for start in profile.starts]])
    tally.refuses("no such profile", lambda: nvmlDeviceGetGpuInstanceProfileInfoById(gpu, 99), INVALID)


def listed(gpu, profile):
    count = ctypes.c_uint(profile.count)
    instances = (c_nvmlGpuInstance_t * 16)()
    nvmlDeviceGetGpuInstances(gpu, profile.id, instances, ctypes.byref(count))
    return [nvmlGpuInstanceGetInfo(instances[place]).id for place in range(count.value)]


def mig_device(gpu, board, profile, info):
    """The MIG device of the one compute instance that there is."""
    device = tally.answers("MIG device", lambda: nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
    tally.refuses("second MIG device", lambda: nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1), NOT_FOUND)
    tally.same("is a MIG device", nvmlDeviceIsMigDeviceHandle(device).value, 1)
    tally.same("index", nvmlDeviceGetIndex(device), 0)
    tally.same("parent", address(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)), address(gpu))
    tally.same("instance", nvmlDeviceGetGpuInstanceId(device), info.id)
    tally.same("compute instance", nvmlDeviceGetComputeInstanceId(device), 0)
    uuid = nvmlDeviceGetUUID(device)
    tally.true("shape of the UUID", uuid.startswith("MIG-") and len(uuid) == 40)
    tally.same("found by UUID", address(nvmlDeviceGetHandleByUUID(uuid)), address(device))
    earlier = f"MIG-{nvmlDeviceGetUUID(gpu)}/{info.id}/0"
    tally.same("found by UUID of earlier drivers", address(nvmlDeviceGetHandleByUUID(earlier)), address(device))
    names = [f"{board.name} MIG {name}" for name in profile.names]
    tally.same("name", nvmlDeviceGetName(device), names)
    attributes = nvmlDeviceGetAttributes(device)
    tally.same("memory of the device", attributes.memorySizeMB, any_of(profile.memory))
    tally.same("multiprocessors of the device", attributes.multiprocessorCount, profile.sm)
    tally.same("slices of the device", (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount),
               (profile.slices, profile.slices))
    tally.same("copy engines of the device", attributes.sharedCopyEngineCount, profile.engines[0])
    tally.same("total memory", nvmlDeviceGetMemoryInfo(device).total >> 20, attributes.memorySizeMB)
    bar1 = nvmlDeviceGetBAR1MemoryInfo(device).bar1Total
    tally.same("share of BAR1", bar1 >> 20, (nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total >> 20) * profile.size // board.slices)
    processes(device)
    gpm(device, board)
    tally.answers("error counter", lambda: nvmlDeviceGetMemoryErrorCounter(device, 0, 0, 2), UNSUPPORTED)
    nvmlDeviceSetComputeMode(device, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    tally.same("compute mode", nvmlDeviceGetComputeMode(device), NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    for call in (nvmlDeviceGetUtilizationRates, nvmlDeviceGetPowerUsage, nvmlDeviceGetPciInfo, nvmlDeviceGetMinorNumber,
                 nvmlDeviceGetSerial, nvmlDeviceGetEccMode, nvmlDeviceGetMigMode):
        tally.refuses(f"{call.__name__} of a MIG device", lambda call=call: call(device), UNSUPPORTED)
    wanted = nvmlEventSetCreate()
    tally.refuses("events of a MIG device", lambda: nvmlDeviceRegisterEvents(device, 8, wanted), UNSUPPORTED)
    nvmlEventSetFree(wanted)
    return device, uuid


def compute_profiles(instance, profile):
    """The compute-instance profiles of a GPU instance; gives the one that fills it."""
    known = dict(profile.compute) if profile.compute else None
    widest = None
    for index in range(10):
        for version in (1, 2):
            call = lambda index=index, version=version: nvmlGpuInstanceGetComputeInstanceProfileInfo(  # noqa: E731
                instance, index, 0, version)
            if index == 9:
                tally.refuses("compute profile beyond the last", call, INVALID)
                continue
            if known is not None and index not in known:
                tally.refuses(f"compute profile {index} of {profile.id}", call, UNSUPPORTED)
                continue
            info = tally.answers(f"compute profile {index} of {profile.id}", call, *([] if known else [UNSUPPORTED]))
            if info is None:
                continue
            if known:
                tally.same("compute profile id", info.id, index)
                tally.same(f"instances of compute profile {index}", info.instanceCount, known[index])
            tally.same("engines are shared", info.sharedCopyEngineCount, profile.engines[0])
            tally.same("capacity", nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, info.id), info.instanceCount)
            if info.sliceCount == profile.slices:
                widest = info
    tally.refuses("engines of its own", lambda: nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 1), INVALID)
    tally.same("multiprocessors of the widest", widest.multiprocessorCount, profile.sm)
    return widest


def compute_instances(gpu, instance, profile, widest):
    """Fills a GPU instance with its smallest compute instances, then leaves one that takes it whole."""
    smallest = 7 if profile.compute and profile.compute[0][0] == 7 else 0
    made = []
    for place in range(nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, smallest)):
        compute = tally.answers("compute instance", lambda: nvmlGpuInstanceCreateComputeInstance(instance, smallest))
        info = nvmlComputeInstanceGetInfo(compute)
        tally.same("lowest free id", info.id, place)
        found = nvmlGpuInstanceGetComputeInstanceById(instance, info.id)
        tally.same("found by id", address(found), address(compute))
        made.append(compute)
    tally.same("slices used", len(made), profile.slices)
    tally.refuses("one too many", lambda: nvmlGpuInstanceCreateComputeInstance(instance, smallest), FULL)
    tally.refuses("the widest on top", lambda: nvmlGpuInstanceCreateComputeInstance(instance, widest.id), FULL)
    count = ctypes.c_uint(8)
    handles = (c_nvmlComputeInstance_t * 8)()
    nvmlGpuInstanceGetComputeInstances(instance, smallest, handles, ctypes.byref(count))
    tally.same("compute instances listed", count.value, len(made))
    for compute in made:
        nvmlComputeInstanceDestroy(compute)
    tally.refuses("destroying twice", lambda: nvmlComputeInstanceDestroy(made[0]), INVALID)
    place = c_nvmlComputeInstancePlacement_t(0, widest.sliceCount)
    compute = tally.answers("widest, placed",
                            lambda: nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, widest.id, ctypes.byref(place)))
    info = nvmlComputeInstanceGetInfo(compute)
    tally.same("placement", (info.placement.start, info.placement.size), (0, widest.sliceCount))
    tally.same("parents", (address(info.device), address(info.gpuInstance)), (address(gpu), address(instance)))
    return compute


def one_profile(gpu, board, profile):
    tally.same("capacity", nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.id), profile.count)
    instance = tally.answers("create", lambda: nvmlDeviceCreateGpuInstance(gpu, profile.id))
    info = nvmlGpuInstanceGetInfo(instance)
    start = next(start for start in profile.starts if instance_id(board.slices, start, profile.size) == info.id)
    tally.same(f"first choice of {profile.id}", info.id, profile.preference[0])
    tally.same("profile", info.profileId, profile.id)
    tally.same("placement", (info.placement.start, info.placement.size), (start, profile.size))
    tally.same("found by id", address(nvmlDeviceGetGpuInstanceById(gpu, info.id)), address(instance))
    tally.same("listed", listed(gpu, profile), [[info.id]])
    tally.refuses("MIG device without compute instance", lambda: nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0), NOT_FOUND)
    tally.refuses("remapped rows under instances", lambda: nvmlDeviceGetRemappedRows(gpu), UNSUPPORTED)
    widest = compute_profiles(instance, profile)
    compute = compute_instances(gpu, instance, profile, widest)
    device, uuid = mig_device(gpu, board, profile, info)
    tally.refuses("destroying under a compute instance", lambda: nvmlGpuInstanceDestroy(instance), IN_USE)
    nvmlComputeInstanceDestroy(compute)
    tally.refuses("a device that is gone", lambda: nvmlDeviceGetName(device), INVALID)
    compute = nvmlGpuInstanceCreateComputeInstance(instance, widest.id)
    again = nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
    tally.same("UUID of the same geometry", again, uuid)
    nvmlComputeInstanceDestroy(compute)
    nvmlGpuInstanceDestroy(instance)
    tally.refuses("an instance that is gone", lambda: nvmlGpuInstanceGetInfo(instance), INVALID)


def every_placement(gpu, board, profile):
    create = lambda start, size: nvmlDeviceCreateGpuInstanceWithPlacement(  # noqa: E731
        gpu, profile.id, ctypes.byref(c_nvmlGpuInstancePlacement_t(start, size)))
    for start in profile.starts:
        instance = tally.answers("create placed", lambda start=start: create(start, profile.size))
        info = nvmlGpuInstanceGetInfo(instance)
        tally.same(f"id of {profile.id} at {start}", info.id, instance_id(board.slices, start, profile.size))
        tally.same("placement", (info.placement.start, info.placement.size), (start, profile.size))
        tally.refuses("the same place twice", lambda start=start: create(start, profile.size), FULL)
        nvmlGpuInstanceDestroy(instance)
    tally.refuses("a place too far", lambda: create(board.slices, profile.size), INVALID)
    tally.refuses("a size that is not the profile's", lambda: create(0, profile.size + 1), INVALID)


def fill(gpu, profile):
    """As many as fit, where the driver puts them, and one more."""
    made = [nvmlDeviceCreateGpuInstance(gpu, profile.id) for _ in range(profile.count)]
    ids = [nvmlGpuInstanceGetInfo(instance).id for instance in made]
    tally.same(f"ids of {profile.count} × {profile.id}", ids, [list(profile.preference[:profile.count])])
    tally.same("listed in ascending order", listed(gpu, profile), [sorted(ids)])
    tally.same("capacity", nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.id), 0)
    tally.refuses("one too many", lambda: nvmlDeviceCreateGpuInstance(gpu, profile.id), FULL)
    for instance in made:
        nvmlGpuInstanceDestroy(instance)


def mig(index, gpu, board):
    if not board or not board.profiles:
        tally.refuses("MIG mode", lambda: nvmlDeviceGetMigMode(gpu), UNSUPPORTED)
        tally.refuses("setting MIG mode", lambda: nvmlDeviceSetMigMode(gpu, 1), UNSUPPORTED)
        tally.same("MIG devices", nvmlDeviceGetMaxMigDeviceCount(gpu), 0)
        tally.refuses("profiles", lambda: nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0), UNSUPPORTED)
        return
    tally.same("mode", nvmlDeviceGetMigMode(gpu), [[0, 0]])
    resetless = nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED])[0].value.uiVal
    tally.same("mode without a reset", resetless, int(board.architecture >= 9))
    profiles(gpu, board)
    first = board.profiles[0].id
    for what, call in (("create", lambda: nvmlDeviceCreateGpuInstance(gpu, first)),
                       ("capacity", lambda: nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, first)),
                       ("by id", lambda: nvmlDeviceGetGpuInstanceById(gpu, 0)),
                       ("MIG device", lambda: nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))):
        tally.refuses(f"{what} with MIG off", call, UNSUPPORTED)
    tally.same("MIG devices with MIG off", nvmlDeviceGetMaxMigDeviceCount(gpu), 0)
    tally.same("activation", nvmlDeviceSetMigMode(gpu, 1), OK)
    gpu = nvmlDeviceGetHandleByIndex(index)
    tally.same("mode", nvmlDeviceGetMigMode(gpu), [[1, 1]])
    tally.same("MIG devices", nvmlDeviceGetMaxMigDeviceCount(gpu), 4 if board.slices != 8 else 7)
    tally.refuses("MIG device of no instance", lambda: nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0), NOT_FOUND)
    tally.refuses("instance that is not there", lambda: nvmlDeviceGetGpuInstanceById(gpu, 0), NOT_FOUND)
    tally.refuses("no such profile", lambda: nvmlDeviceCreateGpuInstance(gpu, 99), INVALID)
    for call in (nvmlDeviceGetUtilizationRates, nvmlDeviceGetEncoderUtilization, nvmlDeviceGetDecoderUtilization,
                 nvmlDeviceGetJpgUtilization, nvmlDeviceGetOfaUtilization, nvmlDeviceGetNumGpuCores,
                 nvmlDeviceGetComputeMode, nvmlDeviceGetAttributes):
        tally.refuses(f"{call.__name__} under MIG", lambda call=call: call(gpu), UNSUPPORTED)
    tally.refuses("links under MIG", lambda: nvmlDeviceGetNvLinkState(gpu, 0), UNSUPPORTED)
    tally.same("accounting under MIG", nvmlDeviceGetAccountingMode(gpu), 0)
    profiles(gpu, board)
    for profile in board.profiles:
        tally.where = f"GPU {index} profile {profile.names[0]}"
        one_profile(gpu, board, profile)
        every_placement(gpu, board, profile)
        fill(gpu, profile)
    tally.where = f"GPU {index}"
    instance = nvmlDeviceCreateGpuInstance(gpu, first)
    tally.same("turning MIG off over an instance", nvmlDeviceSetMigMode(gpu, 0), IN_USE)
    nvmlGpuInstanceDestroy(instance)
    # On Ampere the refused wish is kept, so this also takes it back.
    tally.same("turning MIG off", nvmlDeviceSetMigMode(gpu, 0), OK)
    gpu = nvmlDeviceGetHandleByIndex(index)
    tally.same("mode", nvmlDeviceGetMigMode(gpu), [[0, 0]])
