package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// latencyRate is how many events a second are appended one by one.
const latencyRate = 200

// Latency tells how long after the acknowledgement of an append its row was
// there to read, in milliseconds.
type Latency struct {
	Name    string  `json:"name"`
	Appends int     `json:"appends"`
	Rate    int     `json:"appends_per_second"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
	// Append is the median of the append itself, until it is acknowledged.
	Append float64 `json:"append_p50_ms"`
}

// latencies measures with each plugin that runs here, with its time limit on as
// a deployment has it.
func (b *run) latencies(ctx context.Context) error {
	for _, src := range sources {
		if name := src.name; len(b.Only) > 0 && !b.wants(name) && !b.wants(name+"+limit") {
			continue
		}
		p, err := b.loader.load(ctx, src, plugins.DefaultTimeout)
		if err != nil {
			continue // told already
		}
		b.progress(0, int64(b.Appends), "latency, "+src.name)
		l := Latency{Name: src.name, Appends: b.Appends, Rate: latencyRate}
		err = b.data.with(ctx, func(dsn string) error { return b.latency(ctx, dsn, p, &l) })
		if err != nil {
			return fmt.Errorf("latency, %s plugin: %w", src.name, err)
		}
		b.report.Latency = append(b.report.Latency, l)
	}
	return nil
}

// latency appends to a host that has caught up, at a steady rate whatever the
// host does meanwhile.
func (b *run) latency(ctx context.Context, dsn string, p host.Plugin, l *Latency) (err error) {
	r, err := startHost(ctx, b.data, dsn, p, func() {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.applied(ctx, b.data.last()); err != nil {
		return err
	}
	visible := make([]time.Duration, b.Appends)
	acknowledged := make([]time.Duration, b.Appends)
	failed := make(chan error, b.Appends)
	var waiting sync.WaitGroup
	ticks := time.NewTicker(time.Second / latencyRate)
	defer ticks.Stop()
	i, skip := 0, b.Events
	for e := range samples.Accounts(b.Events+b.Appends, b.Accounts) {
		if skip > 0 {
			skip-- // is stored already
			continue
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		at := i
		waiting.Go(func() {
			start := time.Now()
			position, err := appendOne(ctx, r.store, &e)
			if err != nil {
				failed <- err
				return
			}
			there := time.Now()
			acknowledged[at] = there.Sub(start)
			if err := r.seen(ctx, e.AggregateID, position); err != nil {
				failed <- err
				return
			}
			visible[at] = time.Since(there)
		})
		i++
		b.progress(int64(i), int64(b.Appends), "latency, "+l.Name)
	}
	waiting.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	l.P50, l.P99, l.Max = percentile(visible, 50), percentile(visible, 99), percentile(visible, 100)
	l.Append = percentile(acknowledged, 50)
	return nil
}

func appendOne(ctx context.Context, st store.EventLog, e *samples.Event) (int64, error) {
	res, err := st.Commit(ctx, store.Commit{Streams: []store.StreamAppend{{
		AggregateType: e.AggregateType, AggregateID: e.AggregateID, ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{newEvent(e)},
	}}})
	if err != nil {
		return 0, err
	}
	return res.Streams[0].LastPosition, nil
}

// seen returns once a reader finds the row with the event in it.
func (r *running) seen(ctx context.Context, key string, position int64) error {
	if err := r.applied(ctx, position); err != nil {
		return err
	}
	view, err := r.store.View(ctx, consumer)
	if err != nil {
		return err
	}
	defer view.Close()
	row, err := view.Get(ctx, projection, store.RowKey{Key: key})
	if err == nil && row.Position < position {
		err = fmt.Errorf("the row of %s is of position %d after %d was applied", key, row.Position, position)
	}
	return err
}

func percentile(d []time.Duration, p int) float64 {
	s := slices.Sorted(slices.Values(d))
	at := max(0, (len(s)*p+99)/100-1)
	return float64(s[at]) / float64(time.Millisecond)
}
