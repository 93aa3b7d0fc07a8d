package plugins

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	guestbuild "github.com/projhost/projhost/internal/guest"
)

type nullSink struct{ row []byte }

func (nullSink) Done(int, abi.Status, []byte) error               { return nil }
func (s nullSink) Get(uint16, []byte) ([]byte, bool, error)       { return s.row, true, nil }
func (nullSink) List(uint16, []byte, []byte, int) ([]byte, error) { return nil, nil }

func benchInstance(b *testing.B, wasm []byte, s Settings) *Instance {
	b.Helper()
	e, err := NewEngine("", hclog.NewNullLogger(), Compile)
	require.NoError(b, err)
	b.Cleanup(func() { _ = e.Close(context.Background()) })
	m, err := e.Load(b.Context(), wasm, s)
	require.NoError(b, err)
	return newInstance(b, m)
}

// perEntry reports what f uses per entry, by the clock and by the processor.
func perEntry(b *testing.B, entries int, f func()) {
	start := cpuTime()
	for b.Loop() {
		f()
	}
	n := float64(b.N * entries)
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/n, "cpu-ns/entry")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/entry")
}

// What the host spends on an entry: its frame, one done, its share of the
// restore. The guest finds the data and calls done.
func BenchmarkApply(b *testing.B) {
	data := "o" + strings.Repeat("x", 299)
	for _, timeout := range []time.Duration{0, 10 * time.Second} {
		for _, n := range []int{1, 16, 256, 4096} {
			b.Run(fmt.Sprintf("timeout=%v/entries=%d", timeout, n), func(b *testing.B) {
				s := DefaultSettings("bench")
				s.Timeout = timeout
				i := benchInstance(b, hostile(b, "misuse"), s)
				all := make([]string, n)
				for k := range all {
					all[k] = data
				}
				es := entries(all...)
				b.ReportAllocs()
				perEntry(b, n, func() {
					if _, fail, err := i.Apply(b.Context(), 0, es, nullSink{}); fail != nil || err != nil {
						b.Fatal(fail, err)
					}
				})
			})
		}
	}
}

// A get on top of what BenchmarkApply measures.
func BenchmarkApplyGet(b *testing.B) {
	s := DefaultSettings("bench")
	s.Timeout = 0
	i := benchInstance(b, hostile(b, "misuse"), s)
	all := make([]string, 256)
	for k := range all {
		all[k] = "k0"
	}
	es := entries(all...)
	sink := nullSink{row: make([]byte, 16)}
	perEntry(b, len(es), func() {
		if _, fail, err := i.Apply(b.Context(), 0, es, sink); fail != nil || err != nil {
			b.Fatal(fail, err)
		}
	})
}

func BenchmarkRestore(b *testing.B) {
	for _, frame := range []int{256 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("wat/frame=%dK", frame>>10), func(b *testing.B) {
			s := DefaultSettings("bench")
			s.Timeout, s.FrameMax = 0, frame
			benchRestore(b, benchInstance(b, hostile(b, "misuse"), s), 64<<10)
		})
	}
	b.Run("go", func(b *testing.B) {
		s := DefaultSettings("bench")
		s.Timeout = 0
		benchRestore(b, benchInstance(b, guestbuild.Build(b, "testplugins/echo"), s), 512<<10)
	})
	b.Run("go/32M", func(b *testing.B) {
		s := DefaultSettings("bench")
		s.Timeout, s.FrameMax = 0, 24<<20
		benchRestore(b, benchInstance(b, guestbuild.Build(b, "testplugins/echo"), s), 512<<10)
	})
}

// benchRestore restores after dirtying that many bytes from the input region on.
func benchRestore(b *testing.B, i *Instance, dirty int) {
	g := i.guest
	perEntry(b, 1, func() {
		region := g.mem.buf[g.region:][:min(dirty, i.FrameMax())]
		for k := 0; k < len(region); k += 64 {
			region[k]++
		}
		g.restore(i.module.image)
	})
	b.ReportMetric(float64(len(g.mem.buf)), "bytes")
}

func BenchmarkNewInstance(b *testing.B) {
	guests := map[string][]byte{"wat": hostile(b, "misuse"), "go": guestbuild.Build(b, "testplugins/echo")}
	for name, bin := range guests {
		b.Run(name, func(b *testing.B) {
			m := benchInstance(b, bin, DefaultSettings("bench")).module
			perEntry(b, 1, func() {
				i, err := m.NewInstance(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				_ = i.Close(b.Context())
			})
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	guests := map[string][]byte{"wat": hostile(b, "misuse"), "go": guestbuild.Build(b, "testplugins/echo")}
	for name, bin := range guests {
		for _, cached := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/cached=%v", name, cached), func(b *testing.B) {
				dir := ""
				if cached {
					dir = b.TempDir()
				}
				e, err := NewEngine(dir, hclog.NewNullLogger(), Compile)
				require.NoError(b, err)
				s := DefaultSettings("bench")
				one := func() {
					m, err := e.Load(b.Context(), bin, s)
					require.NoError(b, err)
					require.NoError(b, m.Close(b.Context()))
				}
				if cached {
					one()
				}
				perEntry(b, 1, one)
			})
		}
	}
}
