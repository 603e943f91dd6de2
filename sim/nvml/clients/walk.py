"""Walks a simulated node with nvidia-ml-py, as an unmodified client of the driver library.

Usage: LD_LIBRARY_PATH=ROOT/usr/lib/x86_64-linux-gnu python walk.py ROOT

Every modelled getter is asked on every GPU and MIG device; instances of every profile are created and destroyed, with and
without a placement, up to what fits, and where they must be refused. What is known of the boards (boards.py) is compared.
Ends with the number of comparisons and of mismatches; exits 1 if there is a mismatch.
"""

import ctypes
import os
import sys

from pynvml import *  # noqa: F403: the module is made for it

from boards import BOARDS

OK, INVALID, UNSUPPORTED, NOT_FOUND, IN_USE, FULL, VERSION = 0, 2, 3, 6, 19, 23, 25
WHOLE = 0xFFFFFFFF


class Tally:
    """Counts comparisons and prints those that fail."""

    def __init__(self):
        self.compared = 0
        self.mismatches = 0
        self.where = ""

    def same(self, what, found, expected):
        """Compares, unless nothing is known. A collection of several values stands for any of them."""
        if expected is None:
            return
        self.compared += 1
        several = isinstance(expected, (list, range))
        if found not in expected if several else found != expected:
            self.mismatches += 1
            print(f"{self.where}: {what}: {found!r}, expected {expected!r}")

    def true(self, what, holds):
        self.same(what, bool(holds), True)

    def answers(self, what, call, *codes):
        """The call succeeds, or fails with one of the codes. Gives its answer, or None."""
        self.compared += 1
        try:
            return call()
        except NVMLError as error:
            if error.value not in codes:
                self.mismatches += 1
                print(f"{self.where}: {what}: {error} ({error.value})")
        return None

    def refuses(self, what, call, code):
        """The call fails with just this code."""
        self.compared += 1
        try:
            result = call()
            found = OK if result is None else getattr(result, "value", result)
        except NVMLError as error:
            found = error.value
        if found != code:
            self.mismatches += 1
            print(f"{self.where}: {what}: {found!r}, expected code {code}")


tally = Tally()


def any_of(values):
    """A collection as `Tally.same` takes it for any of its members."""
    return list(values) if isinstance(values, tuple) else values


def address(handle):
    """The number that a handle is."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def system():
    tally.where = "system"
    version = tally.answers("driver version", nvmlSystemGetDriverVersion)
    tally.same("NVML version", nvmlSystemGetNVMLVersion(), nvmlSystemGetNVMLVersion())
    tally.true("NVML version ends with the driver's", nvmlSystemGetNVMLVersion().endswith(version))
    tally.same("CUDA version twice", nvmlSystemGetCudaDriverVersion(), nvmlSystemGetCudaDriverVersion_v2())
    branch = tally.answers("branch", nvmlSystemGetDriverBranch).branch
    tally.true("branch begins with the driver's", branch.lower().startswith("r" + version.split(".")[0]))
    tally.true("own process name", "python" in nvmlSystemGetProcessName(os.getpid()))
    tally.refuses("name of no process", lambda: nvmlSystemGetProcessName(0x3FFFFFFF), NOT_FOUND)
    tally.same("excluded devices", nvmlGetExcludedDeviceCount(), 0)
    tally.refuses("excluded device 0", lambda: nvmlGetExcludedDeviceInfoByIndex(0), INVALID)
    tally.same("units", nvmlUnitGetCount(), 0)
    tally.answers("HIC version", nvmlSystemGetHicVersion)
    tally.same("confidential computing", nvmlSystemGetConfComputeState().ccFeature, 0)
    tally.answers("confidential computing capabilities", nvmlSystemGetConfComputeCapabilities)
    tally.same("ready state", nvmlSystemGetConfComputeGpusReadyState(), 1)
    tally.same("text of an error", nvmlErrorString(IN_USE), "In use by another client")
    tally.answers("GPUs near CPU 0", lambda: nvmlSystemGetTopologyGpuSet(0))
    request = nvmlSystemEventSetCreate(nvmlSystemEventSetCreateRequest_v1)
    nvmlSystemRegisterEvents(nvmlSystemRegisterEventRequest_v1, 3, request)
    data = (c_nvmlSystemEventData_v1_t * 4)()
    tally.same("system events", nvmlSystemEventSetWait(nvmlSystemEventSetWaitRequest_v1, request, 0, data, 4), [[]])
    nvmlSystemEventSetFree(nvmlSystemEventSetFreeRequest_v1, request)


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
    wanted = [(identifier, scope) for identifier in range(1, 274) for scope in (0, WHOLE)]
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


def neighbours(gpus):
    tally.where = "topology"
    for one in gpus:
        for other in gpus:
            path = tally.answers("path", lambda one=one, other=other: nvmlDeviceGetTopologyCommonAncestor(one, other))
            tally.same("path to itself", path == 0, one is other)
            tally.same("same board", nvmlDeviceOnSameBoard(one, other), int(one is other))
            for index in range(5):
                tally.answers("P2P", lambda one=one, other=other, index=index: nvmlDeviceGetP2PStatus(one, other, index))
        found = sum(len(nvmlDeviceGetTopologyNearestGpus(one, level)) for level in (10, 20, 30, 40, 50))
        tally.same("every other GPU is at some level", found, len(gpus) - 1)


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


def mig_device(gpu, board, profile, instance, info, computes):
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
    device, uuid = mig_device(gpu, board, profile, instance, info, 1)
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


def forked():
    """A child of a fork can go on asking, and is a client of its own."""
    tally.where = "fork"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(nvmlDeviceGetCount()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    tally.same("devices seen by the child", int(os.read(reader, 8)), nvmlDeviceGetCount())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    library = os.path.join(os.path.realpath(sys.argv[1]), "usr/lib/x86_64-linux-gnu")
    nvmlInit()
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        tally.true("the library is the node's", any(library in line for line in maps))
    system()
    count = nvmlDeviceGetCount()
    tally.refuses("a GPU too many", lambda: nvmlDeviceGetHandleByIndex(count), INVALID)
    for index in range(count):
        tally.where = f"GPU {index}"
        gpu = nvmlDeviceGetHandleByIndex(index)
        pci = nvmlDeviceGetPciInfo(gpu)
        tally.same("vendor", pci.pciDeviceId & 0xFFFF, 0x10DE)
        board = BOARDS.get(pci.pciDeviceId >> 16)
        identity(index, gpu, board, pci)
        memory(gpu, board)
        pcie(gpu, board)
        clocks(gpu, board)
        power_and_heat(gpu, board)
        health(gpu, board)
        usage(gpu, board)
        links(gpu, board, count > 1)
        fields(gpu)
        modes(gpu)
        events(gpu)
    neighbours([nvmlDeviceGetHandleByIndex(index) for index in range(count)])
    for index in range(count):
        tally.where = f"GPU {index}"
        gpu = nvmlDeviceGetHandleByIndex(index)
        mig(index, gpu, BOARDS.get(nvmlDeviceGetPciInfo(gpu).pciDeviceId >> 16))
    forked()
    nvmlShutdown()
    tally.where = "end"
    tally.refuses("a call after the end", nvmlDeviceGetCount, 1)
    print(f"{count} GPUs: {tally.compared} comparisons, {tally.mismatches} mismatches")
    sys.exit(1 if tally.mismatches else 0)


if __name__ == "__main__":
    main()
