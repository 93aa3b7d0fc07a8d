package bench

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// dataset is a database with the events of the workload in it. Every run works
// on a copy of its own, as it would find the file after an import.
type dataset struct {
	dir      string
	events   int
	accounts int
	last     int64 // position of the last event
}

const importBatch = 2000

func newDataset(ctx context.Context, dir string, events, accounts int, imported func(n int)) (_ *dataset, err error) {
	d := &dataset{dir: dir, events: events, accounts: accounts}
	st, err := sqlite.Open(ctx, sqlite.Options{Path: d.template(), TablePrefix: "ph_"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	batch := make([]store.ImportEvent, 0, importBatch)
	flush := func() error {
		res, err := st.Import(ctx, batch)
		if err != nil {
			return fmt.Errorf("import the workload: %w", err)
		}
		d.last = max(d.last, res.LastPosition)
		imported(len(batch))
		batch = batch[:0]
		return nil
	}
	for e := range samples.Accounts(events, accounts) {
		batch = append(batch, importEvent(&e))
		if len(batch) == cap(batch) {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	if len(batch) > 0 {
		err = flush()
	}
	return d, err
}

func importEvent(e *samples.Event) store.ImportEvent {
	return store.ImportEvent{AggregateType: e.AggregateType, AggregateID: e.AggregateID, NewEvent: newEvent(e)}
}

func newEvent(e *samples.Event) store.NewEvent {
	return store.NewEvent{ID: e.ID, HasID: true, Type: e.Type, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS, HasOccurred: true}
}

func (d *dataset) template() string { return filepath.Join(d.dir, "template.db") }

// with makes a copy, calls f with its path and removes it.
func (d *dataset) with(f func(path string) error) (err error) {
	dir, err := os.MkdirTemp(d.dir, "run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "bench.db")
	if err := copyFile(d.template(), path); err != nil {
		return fmt.Errorf("copy the workload: %w", err)
	}
	return f(path)
}

// copyFile returns once the copy is on the disk, so that its way there is not
// in the time of the run.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Sync()
}

// outcome is what a run leaves behind, as far as runs must agree.
type outcome struct {
	rows  string // digest of all rows
	shape string // of the table and its indexes, without names
}

// expected folds the first events in memory: the rows every run must end with.
func (d *dataset) expected(events int) (string, error) {
	accounts := map[string]*nativeAccount{}
	position := int64(0)
	for e := range samples.Accounts(events, d.accounts) {
		position++
		a := accounts[e.AggregateID]
		if a == nil {
			a = &nativeAccount{key: e.AggregateID}
			accounts[e.AggregateID] = a
		}
		err := a.fold(&nativeEvent{position: position, kind: e.Type, occurred: e.OccurredUS, data: e.Data})
		if err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(accounts)) {
		a := accounts[key]
		digestRow(h, []driver.Value{a.key, a.owner, a.status, formatCents(a.cents), a.events,
			time.UnixMicro(a.updatedUS).UTC().Format(nativeTime), a.position, a.updatedUS, int64(0)})
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// digestRow writes the values so that no two rows read alike.
func digestRow(w io.Writer, values []driver.Value) {
	for _, v := range values {
		fmt.Fprintf(w, "%T %v\n", v, v)
	}
}

// outcomeOf reads what a run left in a table of a database, after everybody has
// closed it.
func outcomeOf(path, table string) (o outcome, err error) {
	c, err := openConn(path)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	h := sha256.New()
	err = c.query(`SELECT key, owner, status, balance, events, updated_at, ph_position, ph_updated_us, ph_epoch FROM `+table+` ORDER BY key`,
		nil, func(v []driver.Value) { digestRow(h, v) })
	if err != nil {
		return o, err
	}
	o.rows = fmt.Sprintf("%x", h.Sum(nil))
	o.shape, err = shapeOf(c, table)
	return o, err
}

// shapeOf tells what a write of the table costs: its columns, its key, and the
// columns of its indexes.
func shapeOf(c *conn, table string) (string, error) {
	var b strings.Builder
	line := func(v []driver.Value) { fmt.Fprintln(&b, fmt.Sprint(v)) }
	for _, text := range []string{
		`SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)`,
		`SELECT wr, strict FROM pragma_table_list(?)`,
		`SELECT group_concat(x.name || ' ' || x.desc || ' ' || x.coll || ' ' || x.key) FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x
			GROUP BY l.name ORDER BY 1`,
	} {
		if err := c.query(text, []driver.Value{table}, line); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
