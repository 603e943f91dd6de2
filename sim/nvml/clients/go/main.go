// Walks a simulated node with go-nvml, as an unmodified client of the driver library.
//
// Usage: LD_LIBRARY_PATH=ROOT/usr/lib/x86_64-linux-gnu go run .
//
// It does what device plugins and partitioners do: lists devices and MIG profiles, partitions a GPU, finds the MIG
// devices, waits for an event, and puts everything back. Between the calls it lets the garbage collector run, which would
// crash on handles that look like Go memory. Expected values are NVIDIA's. It exits 1 on any mismatch.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var compared, mismatches int

// same compares a value that a call gave.
func same[T comparable](what string, found, expected T) {
	compared++
	if found != expected {
		mismatches++
		fmt.Printf("%s: %v, expected %v\n", what, found, expected)
	}
}

// answers reports a call that fails, and gives its value.
func answers[T any](what string) func(T, nvml.Return) T {
	return func(value T, result nvml.Return) T {
		same(what, result, nvml.SUCCESS)
		return value
	}
}

// slices gives the memory slices and the highest number of MIG devices of a board by its widest profile.
func slices(widest uint32) (uint32, int) {
	switch widest {
	case 4:
		return 4, 4
	case 12:
		return 12, 4
	default:
		return 8, 7
	}
}

func devices() []nvml.Device {
	count := answers[int]("count")(nvml.DeviceGetCount())
	var found []nvml.Device
	for index := 0; index < count; index++ {
		device := answers[nvml.Device]("device")(nvml.DeviceGetHandleByIndex(index))
		uuid := answers[string]("uuid")(device.GetUUID())
		same("shape of the UUID", strings.HasPrefix(uuid, "GPU-") && len(uuid) == 40, true)
		again := answers[nvml.Device]("by uuid")(nvml.DeviceGetHandleByUUID(uuid))
		same("index by UUID", answers[int]("index")(again.GetIndex()), index)
		answers[string]("name")(device.GetName())
		answers[nvml.PciInfo]("pci")(device.GetPciInfo())
		answers[int]("minor")(device.GetMinorNumber())
		memory := answers[nvml.Memory_v2]("memory")(device.GetMemoryInfo_v2())
		first := answers[nvml.Memory]("memory, first version")(device.GetMemoryInfo())
		same("memory twice", memory.Total, first.Total)
		answers[uint32]("power")(device.GetPowerUsage())
		answers[nvml.Utilization]("utilisation")(device.GetUtilizationRates())
		processes := answers[[]nvml.ProcessInfo]("processes")(device.GetComputeRunningProcesses())
		same("processes", len(processes), 0)
		major, minor, result := device.GetCudaComputeCapability()
		same("capability", result, nvml.SUCCESS)
		same("capability is one", major > 6 && minor >= 0, true)
		found = append(found, device)
		runtime.GC()
	}
	_, result := nvml.DeviceGetHandleByIndex(count)
	same("a device too many", result, nvml.ERROR_INVALID_ARGUMENT)
	return found
}

// profiles lists the profiles by id and checks their placements.
func profiles(device nvml.Device) map[uint32]nvml.GpuInstanceProfileInfo {
	found := map[uint32]nvml.GpuInstanceProfileInfo{}
	for index := 0; index < nvml.GPU_INSTANCE_PROFILE_COUNT; index++ {
		info, result := device.GetGpuInstanceProfileInfo(index)
		if result == nvml.ERROR_NOT_SUPPORTED || result == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		same("profile", result, nvml.SUCCESS)
		second := answers[nvml.GpuInstanceProfileInfo_v2]("profile, second version")(device.GetGpuInstanceProfileInfoV(index).V2())
		same("profile id twice", second.Id, info.Id)
		placements := answers[[]nvml.GpuInstancePlacement]("placements")(device.GetGpuInstancePossiblePlacements(&info))
		same("at least as many placements as instances", len(placements) >= int(info.InstanceCount), true)
		for place := 1; place < len(placements); place++ {
			same("placements ascend", placements[place-1].Start < placements[place].Start, true)
		}
		found[info.Id] = info
	}
	return found
}

// partition fills a GPU with its smallest instances, each with the compute instance that takes it whole, checks the MIG
// devices, and undoes it all.
func partition(index int, device nvml.Device) {
	activation, result := device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	same("set mode", result, nvml.SUCCESS)
	same("activation", activation, nvml.SUCCESS)
	device = answers[nvml.Device]("device after the mode")(nvml.DeviceGetHandleByIndex(index))
	known := profiles(device)
	whole := answers[[]nvml.GpuInstancePlacement]("placement of the whole")(device.GetGpuInstancePossiblePlacements(pointer(known[0])))
	size, most := slices(whole[0].Size)
	same("MIG devices at most", answers[int]("most")(device.GetMaxMigDeviceCount()), most)

	smallest := uint32(19)
	if size != 8 {
		smallest = 14
	}
	profile := known[smallest]
	same("instances of the smallest profile", int(profile.InstanceCount), most)
	set := answers[nvml.EventSet]("event set")(nvml.EventSetCreate())
	same("register", device.RegisterEvents(nvml.EventMigConfigChange, set), nvml.SUCCESS)
	_, result = set.Wait(0)
	same("no event yet", result, nvml.ERROR_TIMEOUT)
	for number := 0; number < most; number++ {
		instance := answers[nvml.GpuInstance]("create instance")(device.CreateGpuInstance(&profile))
		compute := answers[nvml.ComputeInstanceProfileInfo]("compute profile")(instance.GetComputeInstanceProfileInfo(
			nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED))
		answers[nvml.ComputeInstance]("create compute instance")(instance.CreateComputeInstance(&compute))
		runtime.GC()
	}
	_, result = device.CreateGpuInstance(&profile)
	same("an instance too many", result, nvml.ERROR_INSUFFICIENT_RESOURCES)
	event := answers[nvml.EventData]("event")(set.Wait(1000))
	same("event is a change of MIG", event.EventType, uint64(nvml.EventMigConfigChange))
	same("event of this GPU", answers[int]("index of the event")(event.Device.GetIndex()), index)
	same("free set", set.Free(), nvml.SUCCESS)

	last := -1
	for number := 0; number < most; number++ {
		mig := answers[nvml.Device]("MIG device")(device.GetMigDeviceHandleByIndex(number))
		same("is a MIG device", answers[bool]("kind")(mig.IsMigDeviceHandle()), true)
		id := answers[int]("instance id")(mig.GetGpuInstanceId())
		same("ids ascend", id > last, true)
		last = id
		attributes := answers[nvml.DeviceAttributes]("attributes")(mig.GetAttributes())
		same("memory of the MIG device", attributes.MemorySizeMB, profile.MemorySizeMB)
		same("multiprocessors of the MIG device", attributes.MultiprocessorCount, profile.MultiprocessorCount)
		uuid := answers[string]("MIG UUID")(mig.GetUUID())
		same("shape of the MIG UUID", strings.HasPrefix(uuid, "MIG-"), true)
		parent := answers[nvml.Device]("parent")(mig.GetDeviceHandleFromMigDeviceHandle())
		same("index of the parent", answers[int]("index")(parent.GetIndex()), index)
	}
	_, result = device.GetMigDeviceHandleByIndex(most)
	same("a MIG device too many", result, nvml.ERROR_NOT_FOUND)

	for _, instance := range answers[[]nvml.GpuInstance]("instances")(device.GetGpuInstances(&profile)) {
		same("destroy with a compute instance inside", instance.Destroy(), nvml.ERROR_IN_USE)
		info := answers[nvml.GpuInstanceInfo]("instance info")(instance.GetInfo())
		same("placement is one unit", info.Placement.Size, unit(size))
		compute := answers[nvml.ComputeInstance]("compute instance")(instance.GetComputeInstanceById(0))
		same("destroy compute instance", compute.Destroy(), nvml.SUCCESS)
		same("destroy instance", instance.Destroy(), nvml.SUCCESS)
	}
	activation, result = device.SetMigMode(nvml.DEVICE_MIG_DISABLE)
	same("unset mode", result, nvml.SUCCESS)
	same("deactivation", activation, nvml.SUCCESS)
}

// unit is the size of the smallest instance in memory slices.
func unit(slices uint32) uint32 {
	if slices == 12 {
		return 3
	}
	return 1
}

func pointer[T any](value T) *T {
	return &value
}

func main() {
	if result := nvml.Init(); result != nvml.SUCCESS {
		fmt.Println("init:", nvml.ErrorString(result))
		os.Exit(1)
	}
	answers[string]("driver version")(nvml.SystemGetDriverVersion())
	answers[int]("CUDA version")(nvml.SystemGetCudaDriverVersion_v2())
	found := devices()
	for index, device := range found {
		_, _, result := device.GetMigMode()
		if result == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		same("mode", result, nvml.SUCCESS)
		partition(index, device)
	}
	same("shutdown", nvml.Shutdown(), nvml.SUCCESS)
	fmt.Printf("%d GPUs: %d comparisons, %d mismatches\n", len(found), compared, mismatches)
	if mismatches > 0 {
		os.Exit(1)
	}
}
