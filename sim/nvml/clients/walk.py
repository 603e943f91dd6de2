"""Walks a simulated node with nvidia-ml-py, as an unmodified client of the driver library.

Usage: LD_LIBRARY_PATH=ROOT/usr/lib/x86_64-linux-gnu python walk.py ROOT

Every modelled getter is asked on every GPU and MIG device; instances of every profile are created and destroyed, with and
without a placement, up to what fits, and where they must be refused. What is known of the boards (boards.py) is compared.
Ends with the number of comparisons and of mismatches; exits 1 if there is a mismatch.
"""

import os
import sys

from pynvml import *  # noqa: F403: the module is made for it

import getters
from boards import BOARDS
from mig import mig
from tally import INVALID, IN_USE, NOT_FOUND, tally


def system():
    tally.where = "system"
    version = tally.answers("driver version", nvmlSystemGetDriverVersion)
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


def forked():
    """A child of a fork can go on asking."""
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
        getters.identity(index, gpu, board, pci)
        getters.memory(gpu, board)
        getters.pcie(gpu, board)
        getters.clocks(gpu, board)
        getters.power_and_heat(gpu, board)
        getters.health(gpu, board)
        getters.usage(gpu, board)
        getters.links(gpu, board, count > 1)
        getters.fields(gpu)
        getters.modes(gpu)
        getters.events(gpu)
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

