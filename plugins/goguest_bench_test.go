package plugins

import (
	"fmt"
	"testing"
	"time"

	"github.com/projhost/projhost/abi"
	guestbuild "github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
)

type absentSink struct{ nullSink }

func (absentSink) Get(uint16, []byte) ([]byte, bool, error) { return nil, false, nil }

// A plugin of the Go SDK on loan events: guest, boundary and restore together.
func BenchmarkApplyGoGuest(b *testing.B) {
	bin := guestbuild.Build(b, "testplugins/loans")
	var es []abi.Entry
	for e := range samples.Loans(1000) {
		es = append(es, abi.Entry{ID: e.ID, Position: uint64(len(es) + 1), AggregateType: e.AggregateType, AggregateID: e.AggregateID,
			Key: e.AggregateID, TypeName: e.Type, Type: abi.TypeByName, Data: e.Data, Metadata: e.Metadata, TimeUS: e.OccurredUS})
	}
	for _, timeout := range []time.Duration{0, 10 * time.Second} {
		for _, n := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("timeout=%v/entries=%d", timeout, n), func(b *testing.B) {
				s := DefaultSettings("bench")
				s.Timeout = timeout
				i := benchInstance(b, bin, s)
				perEntry(b, n, func() {
					if _, fail, err := i.Apply(b.Context(), 0, es[:n], absentSink{}); fail != nil || err != nil {
						b.Fatal(fail, err)
					}
				})
				st := i.Stats()
				b.ReportMetric(float64(st.Instantiated), "instantiated")
				b.ReportMetric(float64(st.MemoryBytes)/(1<<20), "MiB")
			})
		}
	}
}
