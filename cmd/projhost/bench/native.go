package bench

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/sdk/go/json"
)

// The baselines are what one would write by hand for the accounts workload, on
// the same driver and doing the same work as the host: the same rows in the same
// table (system columns and indexes included; check compares the shapes), a
// fence on 256 leases and a compare-and-set of each partition's checkpoint in
// the transaction of the rows, the same settings of the database. They know
// nothing of plugins, other tables, retries or canonical values, and read only
// the columns they need.

const partitions = 256

const nativeTable = "native_accounts"

const nativeSchema = `
CREATE TABLE native_accounts (
    key TEXT NOT NULL,
    owner TEXT NOT NULL, status TEXT NOT NULL, balance TEXT NOT NULL, events INTEGER NOT NULL, updated_at TEXT NOT NULL,
    ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER,
    PRIMARY KEY (key)
);
CREATE INDEX native_accounts_owner ON native_accounts (owner, key);
CREATE INDEX native_accounts_status ON native_accounts (status, key);
CREATE TABLE native_checkpoints (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT;
CREATE TABLE native_leases (partition INTEGER PRIMARY KEY, instance TEXT NOT NULL, generation INTEGER NOT NULL) STRICT;
WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) INSERT INTO native_checkpoints SELECT i, 0, 0 FROM p;
WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) INSERT INTO native_leases SELECT i, 'me', 1 FROM p;`

const (
	nativePage   = `SELECT position, aggregate_id, type, occurred_us, CAST(data AS BLOB) FROM ph_events WHERE position > ? ORDER BY position LIMIT ?`
	nativeFence  = `SELECT CASE count(*) WHEN ? THEN 1 ELSE abs(-9223372036854775807 - 1) END FROM native_leases WHERE instance = 'me' AND generation = 1`
	nativeUpsert = `INSERT INTO native_accounts VALUES (?,?,?,?,?,?,?,?,0)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, status = excluded.status, balance = excluded.balance, events = excluded.events,
		updated_at = excluded.updated_at, ph_position = excluded.ph_position, ph_updated_us = excluded.ph_updated_us`
	nativeUpdate = `UPDATE native_accounts SET balance = ?, events = ?, updated_at = ?, ph_position = ?, ph_updated_us = ?, ph_epoch = 0 WHERE key = ?`
	nativeMove   = `UPDATE native_checkpoints SET position = ? WHERE partition = ? AND position = ? AND epoch = 0`
	nativeSelect = `SELECT owner, status, balance, events FROM native_accounts WHERE key = ?`
)

// nativeAccount is a row and what the pipeline knows beside it.
type nativeAccount struct {
	key           string
	owner, status string
	cents         int64
	events        int64
	updatedUS     int64
	position      int64
	partition     int
	dirty         bool // changed in the batch being folded
	indexed       bool // so is a column that has an index
}

type nativeEvent struct {
	position  int64
	account   string
	kind      string
	occurred  int64
	data      []byte
	partition int
}

// errShort is a pipeline that has not seen every event.
var errShort = errors.New("the baseline has not read every event")

// batchFold is the best pipeline we know: pages are read ahead on a connection
// of their own, a batch is folded in memory while the one before commits, and
// each changed account is written once a batch, in order of keys, by a prepared
// statement.
func batchFold(path string, events, batch int, m *meter) (err error) {
	write, err := openConn(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, write.close()) }()
	read, err := openConn(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, read.close()) }()

	m.start()
	defer m.stop()
	if err := write.script("BEGIN IMMEDIATE;" + nativeSchema + "COMMIT"); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(context.Background())
	pages := make(chan []nativeEvent, 2)
	commits := make(chan []nativeAccount) // unbuffered: one batch commits while the next is folded
	group.Go(func() error {
		defer close(pages)
		return read.pages(batch, func(page []nativeEvent) error { return send(ctx, pages, page) })
	})
	group.Go(func() error {
		defer close(commits)
		accounts := map[string]*nativeAccount{}
		done := 0
		for page := range pages {
			rows, err := foldPage(accounts, page)
			if err != nil {
				return err
			}
			done += len(page)
			if err := send(ctx, commits, rows); err != nil {
				return err
			}
		}
		if done != events {
			return fmt.Errorf("%w: %d of %d", errShort, done, events)
		}
		return nil
	})
	group.Go(func() error {
		checkpoints := make([]int64, partitions)
		for rows := range commits {
			if err := write.apply(rows, checkpoints); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// perEvent is the loop that comes to mind first: a transaction for each event.
func perEvent(path string, events int, m *meter) (err error) {
	c, err := openConn(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	m.start()
	defer m.stop()
	if err := c.script("BEGIN IMMEDIATE;" + nativeSchema + "COMMIT"); err != nil {
		return err
	}
	checkpoints := make([]int64, partitions)
	done, after := 0, int64(0)
	for done < events {
		page, err := c.page(after, min(500, events-done))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return fmt.Errorf("%w: %d of %d", errShort, done, events)
		}
		for i := range page {
			if err := c.applyOne(&page[i], checkpoints); err != nil {
				return err
			}
		}
		done, after = done+len(page), page[len(page)-1].position
	}
	return nil
}

// foldPage folds events onto the accounts and returns those it changed, in
// order of keys.
func foldPage(accounts map[string]*nativeAccount, page []nativeEvent) ([]nativeAccount, error) {
	changed := make([]*nativeAccount, 0, len(page))
	for i := range page {
		e := &page[i]
		a := accounts[e.account]
		if a == nil {
			a = &nativeAccount{key: e.account, partition: e.partition}
			accounts[e.account] = a
		}
		if err := a.fold(e); err != nil {
			return nil, err
		}
		if !a.dirty {
			a.dirty = true
			changed = append(changed, a)
		}
	}
	slices.SortFunc(changed, func(x, y *nativeAccount) int { return strings.Compare(x.key, y.key) })
	// The committer gets copies: the fold goes on.
	rows := make([]nativeAccount, len(changed))
	for i, a := range changed {
		rows[i] = *a
		a.dirty, a.indexed = false, false
	}
	return rows, nil
}

// fold is what the plugin does with an event. The payload is read by the
// plugin's own reader, natively: encoding/json is several times slower.
func (a *nativeAccount) fold(e *nativeEvent) error {
	switch e.kind {
	case "opened":
		owner, err := json.Parse(e.data).Get("owner").Text()
		if err != nil {
			return err
		}
		a.owner, a.status, a.indexed = strings.Clone(owner), "open", true
	case "closed":
		a.status, a.indexed = "closed", true
	default:
		amount, err := json.Parse(e.data).Get("amount").Text()
		if err != nil {
			return err
		}
		cents, err := parseCents(amount)
		if err != nil {
			return err
		}
		if e.kind == "withdrawn" {
			cents = -cents
		}
		a.cents += cents
	}
	a.events++
	a.updatedUS, a.position = e.occurred, e.position
	return nil
}

func parseCents(text string) (int64, error) {
	whole, frac, _ := strings.Cut(text, ".")
	units, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, err
	}
	hundredths, err := strconv.ParseInt((frac + "00")[:2], 10, 64)
	return units*100 + hundredths, err
}

func formatCents(cents int64) string {
	var buf [24]byte
	b := buf[:0]
	if cents < 0 {
		b, cents = append(b, '-'), -cents
	}
	b = strconv.AppendInt(b, cents/100, 10)
	return string(append(b, '.', byte('0'+cents/10%10), byte('0'+cents%10)))
}

const nativeTime = "2006-01-02 15:04:05.000000"

// pages reads all events in pages.
func (c *conn) pages(size int, each func([]nativeEvent) error) error {
	for after := int64(0); ; {
		page, err := c.page(after, size)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].position
		if err := each(page); err != nil {
			return err
		}
	}
}

func (c *conn) page(after int64, limit int) ([]nativeEvent, error) {
	page := make([]nativeEvent, 0, limit)
	err := c.query(nativePage, []driver.Value{after, int64(limit)}, func(v []driver.Value) {
		account := v[1].(string)
		page = append(page, nativeEvent{v[0].(int64), account, v[2].(string), v[3].(int64), v[4].([]byte), partition.Of(account, partitions)})
	})
	return page, err
}

// apply commits the rows, at most one an account, with the checkpoints of their
// partitions.
func (c *conn) apply(rows []nativeAccount, checkpoints []int64) error {
	return c.transaction(func() error { return c.write(rows, checkpoints) })
}

// applyOne reads, changes and writes one account in a transaction.
func (c *conn) applyOne(e *nativeEvent, checkpoints []int64) error {
	return c.transaction(func() error {
		a := nativeAccount{key: e.account, partition: e.partition}
		var bad error
		err := c.query(nativeSelect, []driver.Value{e.account}, func(v []driver.Value) {
			a.owner, a.status, a.events = v[0].(string), v[1].(string), v[3].(int64)
			a.cents, bad = parseSigned(v[2].(string))
		})
		if err := errors.Join(err, bad, a.fold(e)); err != nil {
			return err
		}
		return c.write([]nativeAccount{a}, checkpoints)
	})
}

func parseSigned(text string) (int64, error) {
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		cents, err := parseCents(rest)
		return -cents, err
	}
	return parseCents(text)
}

func (c *conn) transaction(f func() error) error {
	if _, err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := f(); err != nil {
		_, e := c.exec("ROLLBACK")
		return errors.Join(err, e)
	}
	_, err := c.exec("COMMIT")
	return err
}

func (c *conn) write(rows []nativeAccount, checkpoints []int64) error {
	if _, err := c.exec(nativeFence, int64(partitions)); err != nil {
		return err
	}
	var moved [partitions]int64
	for i := range rows {
		a := &rows[i]
		updated := time.UnixMicro(a.updatedUS).UTC().Format(nativeTime)
		if err := c.put(a, updated); err != nil {
			return err
		}
		moved[a.partition] = max(moved[a.partition], a.position)
	}
	return c.move(&moved, checkpoints)
}

// put writes a row. Where no indexed column changed an UPDATE of the others
// leaves the indexes alone: SQLite writes them anew for every column that is
// named, changed or not.
func (c *conn) put(a *nativeAccount, updated string) error {
	if !a.indexed {
		_, err := c.exec(nativeUpdate, formatCents(a.cents), a.events, updated, a.position, a.updatedUS, a.key)
		return err
	}
	_, err := c.exec(nativeUpsert, a.key, a.owner, a.status, formatCents(a.cents), a.events, updated, a.position, a.updatedUS)
	return err
}

func (c *conn) move(moved *[partitions]int64, checkpoints []int64) error {
	for p, to := range moved {
		if to == 0 {
			continue
		}
		changed, err := c.exec(nativeMove, to, int64(p), checkpoints[p])
		if err == nil && changed != 1 {
			err = fmt.Errorf("checkpoint of partition %d is not %d", p, checkpoints[p])
		}
		if err != nil {
			return err
		}
		checkpoints[p] = to
	}
	return nil
}
