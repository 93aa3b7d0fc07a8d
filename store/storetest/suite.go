// Package storetest is the contract of package store as tests. Every driver
// passes all of it, unchanged:
//
//	func TestStore(t *testing.T) { storetest.Run(t, open) }
//
// Cases are named for promises and written from them, never from a driver:
// there is no switch on a driver's name and none for a feature.
package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// Config says which database to open.
type Config struct {
	// Database is a name of letters and digits. The first open under a name
	// makes an empty database, later ones open the same again; the suite has
	// closed the store before.
	Database string
	// Partitions is N, MaxEvent the bound of an event's size; 0: the default.
	Partitions int
	MaxEvent   int
	// TablePrefix and ReadModelPrefix of table names; "": "ph_" and none.
	TablePrefix     string
	ReadModelPrefix string
}

// Open opens a database for a test, which closes it. What the database needs
// beyond that (files, schemas) is the opener's to clean up. Where the engine
// locks single rows, the store is a [RowLocker] as well.
type Open func(t testing.TB, cfg Config) store.Store

// RowLocker holds the ownership row of a partition locked, as the transaction
// does of a host that stands still in it.
type RowLocker interface {
	// LockLease locks a row until unlock is called, once or more often.
	LockLease(ctx context.Context, build int64, partition int) (unlock func() error, err error)
}

// group is the cases of one role or promise.
type group struct {
	name  string
	cases []testCase
}

type testCase struct {
	name string
	run  func(t *testing.T, d *db)
}

// groups lists the suite.
func groups() []group {
	return []group{
		{"Append", appendCases},
		{"Replay", replayCases},
		{"Import", importCases},
		{"Payload", payloadCases},
		{"Identifier", identifierCases},
		{"Snapshot", snapshotCases},
		{"Read", readCases},
		{"Store", storeCases},
		{"Consumer", consumerCases},
		{"Lease", leaseCases},
		{"Member", memberCases},
		{"Apply", applyCases},
		{"Settle", settleCases},
		{"Value", valueCases},
		{"ReadModel", readModelCases},
		{"Undelivered", undeliveredCases},
		{"Operation", operationCases},
		{"Rebuild", rebuildCases},
		{"Shadow", shadowCases},
		{"Switch", switchCases},
		{"Random", randomCases},
	}
}

// Run runs the whole suite against one driver.
func Run(t *testing.T, open Open) {
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, newDB(t, open, Config{}))
				})
			}
		})
	}
}

// db is a database of one test and the store that has it open.
type db struct {
	store.Store
	t    *testing.T
	open Open
	cfg  Config
}

var databases atomic.Int64

func newDB(t *testing.T, open Open, cfg Config) *db {
	t.Helper()
	cfg.Database = fmt.Sprintf("t%d", databases.Add(1))
	d := &db{t: t, open: open, cfg: cfg}
	d.Store = open(t, cfg)
	t.Cleanup(func() { require.NoError(t, d.Store.Close()) })
	return d
}

// fresh opens another empty database with settings of its own.
func (d *db) fresh(cfg Config) *db {
	d.t.Helper()
	return newDB(d.t, d.open, cfg)
}

// reopen is a restart of the host.
func (d *db) reopen() {
	d.t.Helper()
	require.NoError(d.t, d.Store.Close())
	d.Store = d.open(d.t, d.cfg)
}

// waitMax is the one limit of everything a test waits for.
const waitMax = 30 * time.Second

func (d *db) ctx() context.Context {
	ctx, cancel := context.WithTimeout(d.t.Context(), waitMax)
	d.t.Cleanup(cancel)
	return ctx
}
