package projhost

import (
	"runtime"
	"unsafe"

	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// The module's state beside the plugin. The host restores all of memory before
// each batch, so what is reachable from here keeps its place.
var (
	region      []byte // where the host writes frames
	description []byte
	initialised bool
)

func plugin() bridge.Guest {
	if served == nil {
		panic("projhost: no plugin is served; call projhost.Serve in an init function")
	}
	return guest{served}
}

//go:wasmexport ph_abi_v1
func phABI() int32 { return 0 }

//go:wasmexport ph_alloc
func phAlloc(size int32) int32 {
	region = make([]byte, max(size, 1))
	if initialised {
		reserve()
	}
	return int32(uintptr(unsafe.Pointer(unsafe.SliceData(region))))
}

//go:wasmexport ph_describe
func phDescribe() int64 {
	defer reportPanic()
	description = plugin().Describe()
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(description))))<<32 | int64(len(description))
}

//go:wasmexport ph_init
func phInit(ptr, size int32) int32 {
	initialised = true
	return plugin().Init(view(ptr, size))
}

//go:wasmexport ph_keys
func phKeys(ptr, size int32) int32 { return plugin().Keys(view(ptr, size)) }

//go:wasmexport ph_apply
func phApply(ptr, size int32) int32 { return plugin().Apply(view(ptr, size)) }

// view is what the host wrote into the region.
func view(ptr, size int32) []byte {
	if size == 0 {
		return nil
	}
	from := int(uint32(ptr)) - int(uintptr(unsafe.Pointer(unsafe.SliceData(region))))
	return region[from : from+int(size)]
}

// reserve grows the heap once, before the host takes its snapshot, so that
// batches do not: an instance whose memory has grown cannot be restored.
//
// Left alone, the heap grows until the collector's first cycle, which comes when
// it has reached 4 MiB or twice what is in use. The ballast is what is missing
// to there, and a margin for what is allocated while the collector works; or
// what the plugin's author asked for.
func reserve() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	const margin = 512 << 10
	size := int(m.NextGC) - int(m.HeapAlloc) + margin
	if served != nil && served.heapSet {
		size = served.heap
	}
	if size > 0 {
		ballast = make([]byte, size)
		ballast = nil
		runtime.GC()
	}
}

// ballast is global so that its allocation is not optimised away.
var ballast []byte
