package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var settleCases = []testCase{
	{"AllMovedIsCommitted", settleCommitted},
	{"AllUnmovedIsNotCommitted", settleNotCommitted},
	{"AnythingElseIsLost", settleMixed},
	{"LostLeaseIsLost", settleLostLease},
	{"NoCheckpointTellsNothing", settleNothing},
}

func (l *lane) settle(want store.Outcome, b *store.Batch) {
	l.d.t.Helper()
	unchanged := l.requireUnchanged()
	got, err := l.d.Settle(l.d.ctx(), b)
	require.NoError(l.d.t, err)
	require.Equal(l.d.t, want, got)
	unchanged()
}

func settleCommitted(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 5)
	l.apply(b)
	l.settle(store.OutcomeCommitted, b)
	b.Incarnation++ // what made the outcome unknown may have raised it
	l.settle(store.OutcomeCommitted, b)
}

func settleNotCommitted(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 5)
	l.settle(store.OutcomeNotCommitted, b)
	l.apply(b)
}

func settleMixed(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 4)
	one := l.batch(9, 3)
	l.apply(one)
	l.settle(store.OutcomeLost, b) // one moved, the other not
	l.apply(l.batch(20, 3))
	l.settle(store.OutcomeLost, one) // moved on

	elsewhere := l.batch(9, 5)
	elsewhere.Checkpoints[0].From = 4
	l.settle(store.OutcomeLost, elsewhere)
	missing := l.batch(9, 5)
	missing.Checkpoints[0].Topic = "nowhere"
	l.settle(store.OutcomeLost, missing)
	epoch := l.batch(9, 5)
	epoch.Epoch++
	l.settle(store.OutcomeLost, epoch)
}

func settleLostLease(t *testing.T, d *db) {
	l := filled(d)
	b, c := l.batch(9, 3), l.batch(11, 5)
	l.apply(b)
	require.NoError(t, d.Release(d.ctx(), "i", l.leases[2:]))
	l.settle(store.OutcomeLost, b)
	l.settle(store.OutcomeLost, c)
}

func settleNothing(t *testing.T, d *db) {
	l := filled(d)
	l.settle(store.OutcomeLost, l.batch(0))
}
