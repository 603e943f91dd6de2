"""What a whole GPU answers: every modelled getter, compared with the board where it is known."""

import ctypes

from pynvml import *  # noqa: F403: the module is made for it

from tally import INVALID, NOT_FOUND, OK, UNSUPPORTED, address, tally

ALL_LINKS = 0xFFFFFFFF


def identity(index, gpu, board, pci):
    tally.same("index", nvmlDeviceGetIndex(gpu), index)
    uuid, serial = nvmlDeviceGetUUID(gpu), nvmlDeviceGetSerial(gpu)
    tally.true("shape of the UUID", uuid.startswith("GPU-") and len(uuid) == 40)
    same = lambda other: address(other) == address(gpu)  # noqa: E731
    tally.true("found by UUID", same(nvmlDeviceGetHandleByUUID(uuid)))
    tally.true("found by UUID struct", same(nvmlDeviceGetHandleByUUIDV(uuid.encode(), NVML_UUID_TYPE_ASCII)))
    tally.true("found by binary UUID",
               same(nvmlDeviceGetHandleByUUIDV(bytes.fromhex(uuid[4:].replace("-", "")), NVML_UUID_TYPE_BINARY)))
    tally.true("found by serial", same(nvmlDeviceGetHandleBySerial(serial)))
    tally.true("found by bus id", same(nvmlDeviceGetHandleByPciBusId(pci.busId)))
    tally.same("bus id", pci.busId, f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.0")
    extended = nvmlPciInfoExt_v1_t()
    extended.version = nvmlPciInfoExt_v1
    nvmlDeviceGetPciInfoExt(gpu, ctypes.byref(extended))
    tally.same("PCI ids twice", extended.pciDeviceId, pci.pciDeviceId)
    tally.same("base class", extended.baseClass, 3)
    for name in ("Brand", "MinorNumber", "BoardId", "BoardPartNumber", "VbiosVersion", "VirtualizationMode", "ModuleId",
                 "DisplayMode", "DisplayActive", "BusType", "PowerSource", "GspFirmwareMode", "Pdi", "Hostname_v1"):
        tally.answers(name, lambda name=name: globals()[f"nvmlDeviceGet{name}"](gpu))
    tally.same("several GPUs on the board", nvmlDeviceGetMultiGpuBoard(gpu), 0)
    tally.same("GSP firmware", nvmlDeviceGetGspFirmwareVersion(gpu).decode(), nvmlSystemGetDriverVersion())
    for kind in range(2):
        tally.answers("InfoROM object", lambda kind=kind: nvmlDeviceGetInforomVersion(gpu, kind), UNSUPPORTED)
    tally.answers("InfoROM image", lambda: nvmlDeviceGetInforomImageVersion(gpu), UNSUPPORTED)
    tally.answers("InfoROM checksum", lambda: nvmlDeviceGetInforomConfigurationChecksum(gpu), UNSUPPORTED)
    tally.answers("InfoROM check", lambda: nvmlDeviceValidateInforom(gpu), UNSUPPORTED)
    capabilities = c_nvmlDeviceCapabilities_v1_t()
    tally.same("capabilities", nvmlDeviceGetCapabilities(gpu, ctypes.byref(capabilities)), OK)
    tally.answers("C2C", lambda: nvmlDeviceGetC2cModeInfoV(gpu), UNSUPPORTED)
    tally.answers("NUMA node", lambda: nvmlDeviceGetNumaNodeId(gpu), UNSUPPORTED)
    for version in (c_nvmlPlatformInfo_v1_t, c_nvmlPlatformInfo_v2_t):
        info = version()
        tally.answers("platform", lambda info=info: nvmlDeviceGetPlatformInfo(gpu, ctypes.byref(info)), UNSUPPORTED)
    for scope in (0, 1):
        tally.answers("CPU affinity", lambda scope=scope: nvmlDeviceGetCpuAffinityWithinScope(gpu, 8, scope))
        tally.answers("memory affinity", lambda scope=scope: nvmlDeviceGetMemoryAffinity(gpu, 8, scope), UNSUPPORTED)
    tally.answers("CPU affinity", lambda: nvmlDeviceGetCpuAffinity(gpu, 8))
    if board:
        tally.same("name", nvmlDeviceGetName(gpu), board.name)
        tally.same("architecture", nvmlDeviceGetArchitecture(gpu), board.architecture)
        tally.same("compute capability", tuple(nvmlDeviceGetCudaComputeCapability(gpu)), board.capability)
        tally.same("brand", nvmlDeviceGetBrand(gpu), 14)
        modes = {"none": 0, "hmm": 1, "ats": 2}
        tally.same("addressing mode", nvmlDeviceGetAddressingMode(gpu), modes.get(board.addressing))


def memory(gpu, board):
    first, second = nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2)
    tally.same("memory total twice", first.total, second.total)
    tally.same("memory adds up", second.free + second.used + second.reserved, second.total)
    tally.same("first version counts the reserve as used", first.used, second.used + second.reserved)
    bar1 = nvmlDeviceGetBAR1MemoryInfo(gpu)
    tally.same("BAR1 adds up", bar1.bar1Free + bar1.bar1Used, bar1.bar1Total)
    tally.answers("bus width", lambda: nvmlDeviceGetMemoryBusWidth(gpu))
    if board:
        tally.same("memory MiB", second.total >> 20, board.memory)
        tally.same("reserved MiB", second.reserved >> 20, board.reserved)
        tally.same("BAR1 MiB", bar1.bar1Total >> 20, board.bar1)


def pcie(gpu, board):
    for name in ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PcieSpeed", "PcieLinkMaxSpeed", "PcieReplayCounter"):
        tally.answers(name, lambda name=name: globals()[f"nvmlDeviceGet{name}"](gpu))
    for counter in (0, 1):
        tally.answers("PCIe throughput", lambda counter=counter: nvmlDeviceGetPcieThroughput(gpu, counter))
    tally.same("width", nvmlDeviceGetMaxPcieLinkWidth(gpu), 16)
    if board and board.pcie:
        tally.same("link generation", nvmlDeviceGetMaxPcieLinkGeneration(gpu), board.pcie[0])
        tally.same("device generation", nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu), board.pcie[1])


def clocks(gpu, board):
    for kind in range(4):
        for identifier in (0, 1, 2, 3):
            call = lambda kind=kind, identifier=identifier: nvmlDeviceGetClock(gpu, kind, identifier)  # noqa: E731
            tally.answers("clock", call, UNSUPPORTED, 26)
        tally.true("clock below its top", nvmlDeviceGetClockInfo(gpu, kind) <= nvmlDeviceGetMaxClockInfo(gpu, kind))
        tally.answers("boost clock", lambda kind=kind: nvmlDeviceGetMaxCustomerBoostClock(gpu, kind))
        for call in (nvmlDeviceGetApplicationsClock, nvmlDeviceGetDefaultApplicationsClock):
            tally.answers("application clock", lambda kind=kind, call=call: call(gpu, kind), UNSUPPORTED, 26)
    memory_clocks = nvmlDeviceGetSupportedMemoryClocks(gpu)
    tally.same("top memory clock", memory_clocks[0], nvmlDeviceGetMaxClockInfo(gpu, NVML_CLOCK_MEM))
    graphics = nvmlDeviceGetSupportedGraphicsClocks(gpu, memory_clocks[0])
    tally.same("top graphics clock", graphics[0], nvmlDeviceGetMaxClockInfo(gpu, NVML_CLOCK_GRAPHICS))
    tally.true("graphics clocks descend", graphics == sorted(graphics, reverse=True))
    tally.refuses("graphics clocks of no memory clock", lambda: nvmlDeviceGetSupportedGraphicsClocks(gpu, 1), NOT_FOUND)
    for name in ("PerformanceState", "PowerState", "SupportedPerformanceStates", "CurrentClocksEventReasons",
                 "CurrentClocksThrottleReasons", "SupportedClocksEventReasons", "SupportedClocksThrottleReasons"):
        tally.answers(name, lambda name=name: globals()[f"nvmlDeviceGet{name}"](gpu))
    tally.answers("range of P0", lambda: nvmlDeviceGetMinMaxClockOfPState(gpu, 0, 0))
    for policy in (0, 1, 2, 3, 4, 5, 10, 11):
        tally.answers("violation", lambda policy=policy: nvmlDeviceGetViolationStatus(gpu, policy))
    nvmlDeviceSetGpuLockedClocks(gpu, graphics[0], graphics[0])
    tally.same("locked clock", nvmlDeviceGetClockInfo(gpu, 0), graphics[0])
    nvmlDeviceResetGpuLockedClocks(gpu)
    nvmlDeviceSetMemoryLockedClocks(gpu, memory_clocks[-1], memory_clocks[0])
    nvmlDeviceResetMemoryLockedClocks(gpu)
    if board and board.clocks:
        for kind, expected in ((0, board.clocks[0]), (1, board.clocks[0]), (2, board.clocks[1]), (3, board.clocks[2])):
            tally.same("top clock", nvmlDeviceGetMaxClockInfo(gpu, kind), expected)


def power_and_heat(gpu, board):
    low, high = nvmlDeviceGetPowerManagementLimitConstraints(gpu)
    default = nvmlDeviceGetPowerManagementDefaultLimit(gpu)
    tally.true("default limit in its range", low <= default <= high)
    tally.same("power management", nvmlDeviceGetPowerManagementMode(gpu), 1)
    tally.true("power below its limit", 0 < nvmlDeviceGetPowerUsage(gpu) <= nvmlDeviceGetEnforcedPowerLimit(gpu))
    before = nvmlDeviceGetTotalEnergyConsumption(gpu)
    tally.true("energy never falls", nvmlDeviceGetTotalEnergyConsumption(gpu) >= before)
    nvmlDeviceSetPowerManagementLimit(gpu, low)
    tally.same("power limit as set", nvmlDeviceGetPowerManagementLimit(gpu), low)
    nvmlDeviceSetPowerManagementLimit_v2(gpu, NVML_POWER_SCOPE_GPU, default)
    tally.same("power limit as set again", nvmlDeviceGetPowerManagementLimit(gpu), default)
    tally.refuses("power limit out of range", lambda: nvmlDeviceSetPowerManagementLimit(gpu, high + 1), INVALID)
    temperature = nvmlDeviceGetTemperature(gpu, NVML_TEMPERATURE_GPU)
    tally.true("temperature twice", abs(nvmlDeviceGetTemperatureV(gpu, NVML_TEMPERATURE_GPU) - temperature) <= 1)
    thresholds = [tally.answers("threshold", lambda kind=kind: nvmlDeviceGetTemperatureThreshold(gpu, kind), UNSUPPORTED)
                  for kind in range(4)]
    tally.true("colder than the slowdown", temperature < thresholds[1] <= thresholds[0])
    tally.answers("margin", lambda: nvmlDeviceGetMarginTemperature(gpu), UNSUPPORTED)
    tally.answers("thermal settings", lambda: nvmlDeviceGetThermalSettings(gpu, 0))
    fans = nvmlDeviceGetNumFans(gpu)
    for call in (nvmlDeviceGetFanSpeed, lambda gpu: nvmlDeviceGetFanSpeed_v2(gpu, 0)):
        if fans:
            tally.answers("fan speed", lambda call=call: call(gpu))
        else:
            tally.refuses("fan speed without a fan", lambda call=call: call(gpu), UNSUPPORTED)
    if not board:
        return
    if board.power:
        for name, found, watts in zip(("default", "lowest", "highest"), (default, low, high), board.power):
            tally.same(f"{name} power limit", found, None if watts is None else watts * 1000)
    if board.thermal:
        if board.thermal[0] > 0:
            for kind, expected in ((0, board.thermal[0]), (1, board.thermal[1]), (3, board.thermal[2])):
                tally.same("threshold", thresholds[kind], expected)
        else:
            for field, expected in zip((193, 194, 196), board.thermal):
                tally.same("T.limit", nvmlDeviceGetFieldValues(gpu, [field])[0].value.siVal, expected)


def health(gpu, board):
    ecc = tally.answers("ECC mode", lambda: nvmlDeviceGetEccMode(gpu), UNSUPPORTED)
    tally.answers("default ECC mode", lambda: nvmlDeviceGetDefaultEccMode(gpu), UNSUPPORTED)
    codes = () if ecc and ecc[0] else (UNSUPPORTED,)
    for kind in (0, 1):
        for life in (0, 1):
            tally.same("errors", tally.answers(
                "errors", lambda kind=kind, life=life: nvmlDeviceGetTotalEccErrors(gpu, kind, life), *codes), [0, None])
            tally.answers("detailed", lambda kind=kind, life=life: nvmlDeviceGetDetailedEccErrors(gpu, kind, life), *codes)
            for place in range(8):
                tally.answers("counter", lambda kind=kind, life=life, place=place:
                              nvmlDeviceGetMemoryErrorCounter(gpu, kind, life, place), UNSUPPORTED)
    status = c_nvmlEccSramErrorStatus_v1_t()
    tally.answers("SRAM errors", lambda: nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status)), *codes)
    counts = c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t()
    tally.answers("unique SRAM errors",
                  lambda: nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(gpu, ctypes.byref(counts)), *codes)
    rows = tally.answers("remapped rows", lambda: nvmlDeviceGetRemappedRows(gpu), UNSUPPORTED)
    histogram = tally.answers("histogram", lambda: nvmlDeviceGetRowRemapperHistogram(gpu), UNSUPPORTED)
    info = c_nvmlRemappedRowsInfo_v2_t()
    tally.answers("remapped rows, second version",
                  lambda: nvmlDeviceGetRemappedRows_v2(gpu, ctypes.byref(info)), UNSUPPORTED)
    tally.answers("unrepairable memory", lambda: nvmlDeviceGetUnrepairableMemoryFlag_v1(gpu), UNSUPPORTED)
    tally.answers("repair status", lambda: nvmlDeviceGetRepairStatus(gpu), UNSUPPORTED)
    for cause in (0, 1):
        tally.answers("retired pages", lambda cause=cause: nvmlDeviceGetRetiredPages(gpu, cause), UNSUPPORTED)
        tally.answers("retired pages", lambda cause=cause: nvmlDeviceGetRetiredPages_v2(gpu, cause), UNSUPPORTED)
    tally.answers("pages pending", lambda: nvmlDeviceGetRetiredPagesPendingStatus(gpu), UNSUPPORTED)
    if board and board.banks:
        tally.same("remapped rows", list(rows), [[0, 0, 0, 0]])
        tally.same("banks", (histogram.max, histogram.high, histogram.none), (board.banks, 0, 0))
    if board and board.architecture >= 7:
        tally.same("pages are not retired", nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_RETIRED_DBE])[0].nvmlReturn, UNSUPPORTED)


def usage(gpu, board):
    tally.same("idle", nvmlDeviceGetUtilizationRates(gpu).gpu, 0)
    for name in ("EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization", "DynamicPstatesInfo"):
        tally.answers(name, lambda name=name: globals()[f"nvmlDeviceGet{name}"](gpu))
    tally.answers("cores", lambda: nvmlDeviceGetNumGpuCores(gpu))
    for kind in (0, 1, 2, 3, 4, 5, 6, 8, 9):
        tally.answers("samples", lambda kind=kind: nvmlDeviceGetSamples(gpu, kind, 0), NOT_FOUND)
    for encoder in range(3):
        tally.answers("encoder", lambda encoder=encoder: nvmlDeviceGetEncoderCapacity(gpu, encoder), UNSUPPORTED)
    tally.answers("encoder sessions", lambda: nvmlDeviceGetEncoderStats(gpu), UNSUPPORTED)
    processes(gpu)
    tally.refuses("utilisation of no process", lambda: nvmlDeviceGetProcessUtilization(gpu, 0), NOT_FOUND)
    tally.refuses("utilisation of no process", lambda: nvmlDeviceGetProcessesUtilizationInfo(gpu, 0), NOT_FOUND)
    nvmlDeviceSetAccountingMode(gpu, 1)
    tally.same("accounting", nvmlDeviceGetAccountingMode(gpu), 1)
    tally.answers("accounting buffer", lambda: nvmlDeviceGetAccountingBufferSize(gpu))
    tally.same("accounted", nvmlDeviceGetAccountingPids(gpu), [[]])
    tally.refuses("account of no process", lambda: nvmlDeviceGetAccountingStats(gpu, 1), NOT_FOUND)
    tally.refuses("account of no process", lambda: nvmlDeviceGetAccountingStats_v2(gpu, 1), NOT_FOUND)
    nvmlDeviceSetAccountingMode(gpu, 0)
    gpm(gpu, board)


def processes(device):
    for name in ("Compute", "Graphics", "MPSCompute"):
        for version in ("_v2", "_v3"):
            call = globals()[f"nvmlDeviceGet{name}RunningProcesses{version}"]
            tally.same(f"{name} processes", tally.answers(name, lambda call=call: call(device)), [[]])
    for mode in range(3):
        tally.same("process details", nvmlDeviceGetRunningProcessDetailList(device, nvmlProcessDetailList_v1, mode), [[]])


def gpm(device, board):
    supported = nvmlGpmQueryDeviceSupport(device).isSupportedDevice
    if board:
        tally.same("GPM", supported, int(board.architecture >= 9))
    samples = [nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        if supported:
            tally.answers("GPM sample", lambda sample=sample: nvmlGpmSampleGet(device, sample))
        else:
            tally.refuses("GPM sample", lambda sample=sample: nvmlGpmSampleGet(device, sample), UNSUPPORTED)
    if supported:
        request = c_nvmlGpmMetricsGet_t()
        request.version = NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 3
        request.sample1, request.sample2 = samples
        for place, metric in enumerate((NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL, NVML_GPM_METRIC_PCIE_TX_PER_SEC)):
            request.metrics[place].metricId = metric
        tally.answers("GPM metrics", lambda: nvmlGpmMetricsGet(request))
        tally.same("an idle GPU", [request.metrics[place].value for place in range(3)], [[0.0, 0.0, 0.0]])
    for sample in samples:
        nvmlGpmSampleFree(sample)


def links(gpu, board, several):
    count = (board.nvlink[0] if board and board.nvlink else None)
    for link in range(18):
        state = tally.answers("link", lambda link=link: nvmlDeviceGetNvLinkState(gpu, link), INVALID, UNSUPPORTED)
        for call in (nvmlDeviceGetNvLinkVersion, nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo):
            tally.answers("link", lambda link=link, call=call: call(gpu, link), INVALID, UNSUPPORTED)
        for number in range(5):
            tally.answers("link errors", lambda link=link, number=number: nvmlDeviceGetNvLinkErrorCounter(gpu, link, number),
                          INVALID, UNSUPPORTED)
        for number in range(6):
            tally.answers("link ability", lambda link=link, number=number: nvmlDeviceGetNvLinkCapability(gpu, link, number),
                          INVALID, UNSUPPORTED)
        if count and link < count:
            tally.same("link version", nvmlDeviceGetNvLinkVersion(gpu, link), board.nvlink[2])
            if several:
                tally.same("link is up", state, 1)
                values = nvmlDeviceGetFieldValues(gpu, [(NVML_FI_DEV_NVLINK_GET_SPEED, link)])
                tally.same("link speed", values[0].value.uiVal, board.nvlink[1])
    if count:
        tally.same("links", nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.uiVal, count)
        tally.refuses("a link too many", lambda: nvmlDeviceGetNvLinkState(gpu, count), INVALID)
    mode = c_nvmlNvlinkGetBwMode_v1_t()
    tally.answers("bandwidth mode", lambda: nvmlDeviceGetNvlinkBwMode(gpu, ctypes.byref(mode)), UNSUPPORTED)
    info = c_nvmlNvLinkInfo_v1_t()
    tally.answers("link info", lambda: nvmlDeviceGetNvLinkInfo(gpu, ctypes.byref(info)), UNSUPPORTED)
    tally.answers("bandwidth mode of the system", nvmlSystemGetNvlinkBwMode, UNSUPPORTED)
    fabric = c_nvmlGpuFabricInfo_t()
    state = tally.answers("fabric", lambda: nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(fabric)), UNSUPPORTED)
    for version in (c_nvmlGpuFabricInfo_v2_t, c_nvmlGpuFabricInfo_v3_t):
        info = version()
        again = tally.answers("fabric", lambda info=info: nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info)), UNSUPPORTED)
        tally.same("fabric in every version", again, [state])
        if again is not None:
            tally.same("fabric state", info.state, 3)


def fields(gpu):
    """All field ids at once: the call succeeds, each field answers or says that it does not."""
    wanted = [(identifier, scope) for identifier in range(1, 274) for scope in (0, ALL_LINKS)]
    for value in nvmlDeviceGetFieldValues(gpu, wanted):
        tally.true(f"field {value.fieldId}", value.nvmlReturn in (OK, INVALID, UNSUPPORTED))
    tally.same("field beyond the last", nvmlDeviceGetFieldValues(gpu, [100000])[0].nvmlReturn, INVALID)
    energy = nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])[0]
    tally.true("energy as a field", energy.value.ullVal <= nvmlDeviceGetTotalEnergyConsumption(gpu))
    for value in nvmlDeviceClearFieldValues(gpu, [NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION]):
        tally.same("clearing energy", value.nvmlReturn, UNSUPPORTED)


def modes(gpu):
    for call, setter in ((nvmlDeviceGetPersistenceMode, nvmlDeviceSetPersistenceMode),
                         (nvmlDeviceGetComputeMode, nvmlDeviceSetComputeMode)):
        before = call(gpu)
        for value in ((0, 1) if setter is nvmlDeviceSetPersistenceMode else (0, 2, 3)):
            setter(gpu, value)
            tally.same("mode as set", call(gpu), value)
        setter(gpu, before)
    tally.refuses("a compute mode that is gone", lambda: nvmlDeviceSetComputeMode(gpu, 1), INVALID)
    for kind in (0, 1):
        tally.answers("restriction", lambda kind=kind: nvmlDeviceGetAPIRestriction(gpu, kind))
    pci = nvmlDeviceGetPciInfo(gpu)
    tally.same("drain state", nvmlDeviceQueryDrainState(pci), 0)


def events(gpu):
    supported = nvmlDeviceGetSupportedEventTypes(gpu)
    tally.true("XIDs are reported", supported & nvmlEventTypeXidCriticalError)
    wanted = nvmlEventSetCreate()
    nvmlDeviceRegisterEvents(gpu, supported, wanted)
    tally.refuses("no event", lambda: nvmlEventSetWait_v2(wanted, 0), 10)
    nvmlEventSetFree(wanted)
