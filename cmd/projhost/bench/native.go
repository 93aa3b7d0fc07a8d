package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/projhost/projhost/sdk/go/json"
)

// The baselines are what one would write by hand for the accounts workload, on
// the same driver and doing the same work as the host: the same rows in the same
// table (system columns and indexes included; the shapes are compared), a
// fence on 256 leases and a compare-and-set of each partition's checkpoint in
// the transaction of the rows, the same settings of the database. They know
// nothing of plugins, other tables, retries or canonical values, and read only
// the columns they need. Here is what they do on every database; how they speak
// to one is its session's.

const partitions = 256

const (
	nativeTable = "native_accounts"
	nativeTime  = "2006-01-02 15:04:05.000000"
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
// each changed account is written once a batch, in order of keys.
func batchFold(ctx context.Context, db engine, dsn string, events, batch int, m *meter) (err error) {
	write, err := db.connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, write.close()) }()
	read, err := db.connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, read.close()) }()

	m.start()
	defer m.stop()
	if err := write.create(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	pages := make(chan []nativeEvent, 2)
	commits := make(chan []nativeAccount) // unbuffered: one batch commits while the next is folded
	group.Go(func() error {
		defer close(pages)
		return allPages(ctx, read, batch, func(page []nativeEvent) error { return send(ctx, pages, page) })
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
		if done != events && ctx.Err() == nil {
			return fmt.Errorf("%w: %d of %d", errShort, done, events)
		}
		return nil
	})
	group.Go(func() error {
		var at checkpoints
		for rows := range commits {
			if err := write.apply(ctx, rows, at.moves(rows)); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// allPages reads all events in pages.
func allPages(ctx context.Context, s session, size int, each func([]nativeEvent) error) error {
	for after := int64(0); ; {
		page, err := s.page(ctx, after, size)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].position
		if err := each(page); err != nil {
			return err
		}
	}
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
func perEvent(ctx context.Context, db engine, dsn string, events int, m *meter) (err error) {
	s, err := db.connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	m.start()
	defer m.stop()
	if err := s.create(ctx); err != nil {
		return err
	}
	var at checkpoints
	done, after := 0, int64(0)
	for done < events {
		page, err := s.page(ctx, after, min(500, events-done))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return fmt.Errorf("%w: %d of %d", errShort, done, events)
		}
		for i := range page {
			e := &page[i]
			if err := s.applyOne(ctx, e, at[e.partition]); err != nil {
				return err
			}
			at[e.partition] = e.position
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

func parseSigned(text string) (int64, error) {
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		cents, err := parseCents(rest)
		return -cents, err
	}
	return parseCents(text)
}
