package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/store"
)

// dataset is the workload, imported into the template of a database. Every run
// works on a database of its own, as it would find it after an import.
type dataset struct {
	engine
	events   int
	accounts int
	// positions of the events, rising; a server may have gaps, and may not begin
	// with 1.
	positions []int64
	info      store.Info
}

const importBatch = 2000

// tablePrefix is that of the host's tables, whose events the baselines read.
const tablePrefix = "ph_"

func newDataset(ctx context.Context, db engine, events, accounts int, imported func(n int)) (*dataset, error) {
	d := &dataset{engine: db, events: events, accounts: accounts}
	if err := d.load(ctx, imported); err != nil {
		return nil, err
	}
	if err := d.locate(ctx); err != nil {
		return nil, err
	}
	return d, db.loaded(ctx)
}

func (d *dataset) last() int64 { return d.positions[len(d.positions)-1] }

// locate finds out where the events are.
func (d *dataset) locate(ctx context.Context) (err error) {
	s, err := d.connect(ctx, d.template())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d.positions = make([]int64, 0, d.events)
	err = allPages(ctx, s, importBatch, func(page []nativeEvent) error {
		for i := range page {
			d.positions = append(d.positions, page[i].position)
		}
		return nil
	})
	if err == nil && len(d.positions) != d.events {
		err = fmt.Errorf("%d events were imported, and %d are there", d.events, len(d.positions))
	}
	return err
}

func (d *dataset) load(ctx context.Context, imported func(n int)) (err error) {
	st, err := d.open(ctx, d.template())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	info, err := st.Info(ctx)
	if err != nil {
		return err
	}
	d.info = info
	batch := make([]store.ImportEvent, 0, importBatch)
	flush := func() error {
		if _, err := st.Import(ctx, batch); err != nil {
			return fmt.Errorf("import the workload: %w", err)
		}
		imported(len(batch))
		batch = batch[:0]
		return nil
	}
	for e := range samples.Accounts(d.events, d.accounts) {
		batch = append(batch, importEvent(&e))
		if len(batch) == cap(batch) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(batch) > 0 {
		return flush()
	}
	return nil
}

func importEvent(e *samples.Event) store.ImportEvent {
	return store.ImportEvent{AggregateType: e.AggregateType, AggregateID: e.AggregateID, NewEvent: newEvent(e)}
}

func newEvent(e *samples.Event) store.NewEvent {
	return store.NewEvent{ID: e.ID, HasID: true, Type: e.Type, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS, HasOccurred: true}
}

// outcome is what a run leaves behind, as far as runs must agree.
type outcome struct {
	rows  string // digest of all rows
	shape string // of the table and its indexes, without names
}

// expected folds the first events in memory: the rows every run must end with.
func (d *dataset) expected(events int) (string, error) {
	accounts := map[string]*nativeAccount{}
	i := -1
	for e := range samples.Accounts(events, d.accounts) {
		i++
		a := accounts[e.AggregateID]
		if a == nil {
			a = &nativeAccount{key: e.AggregateID}
			accounts[e.AggregateID] = a
		}
		err := a.fold(&nativeEvent{position: d.positions[i], kind: e.Type, occurred: e.OccurredUS, data: e.Data})
		if err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(accounts)) {
		a := accounts[key]
		digestRow(h, []string{
			a.key, a.owner, a.status, formatCents(a.cents), strconv.FormatInt(a.events, 10), time.UnixMicro(a.updatedUS).UTC().Format(nativeTime),
			strconv.FormatInt(a.position, 10), strconv.FormatInt(a.updatedUS, 10), "0",
		})
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// digestRow writes the values so that no two rows read alike.
func digestRow(w io.Writer, values []string) { fmt.Fprintf(w, "%q\n", values) }

// outcomeOf reads what a run left in a table of a database, after everybody has
// closed it.
func (d *dataset) outcomeOf(ctx context.Context, dsn, table string) (o outcome, err error) {
	s, err := d.connect(ctx, dsn)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	h := sha256.New()
	if err := s.rows(ctx, table, func(values []string) { digestRow(h, values) }); err != nil {
		return o, err
	}
	o.rows = fmt.Sprintf("%x", h.Sum(nil))
	o.shape, err = s.shape(ctx, table)
	return o, err
}
