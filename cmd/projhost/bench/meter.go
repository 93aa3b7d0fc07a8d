package bench

import (
	"runtime"
	"time"
)

// meter measures one run of this process. Every run begins with a collected
// heap.
type meter struct {
	wall   time.Duration
	cpu    time.Duration // of the whole process, 0 where it is not known
	bytes  uint64        // allocated on Go's heap
	allocs uint64
}

func (m *meter) start() {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.bytes, m.allocs = mem.TotalAlloc, mem.Mallocs
	m.cpu = cpuTime()
	m.wall = time.Duration(time.Now().UnixNano())
}

func (m *meter) stop() {
	m.wall = time.Duration(time.Now().UnixNano()) - m.wall
	m.cpu = cpuTime() - m.cpu
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.bytes, m.allocs = mem.TotalAlloc-m.bytes, mem.Mallocs-m.allocs
}
