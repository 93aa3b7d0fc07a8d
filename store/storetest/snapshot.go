package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var snapshotCases = []testCase{
	{"LatestOnly", snapshotLatest},
	{"AheadOfTheStreamIsNotFound", snapshotAhead},
	{"CommitsWithTheEvents", snapshotInCommit},
	{"KeepsEveryMember", snapshotMembers},
	{"BadOnesAreRefused", snapshotBad},
	{"SurvivesReopen", snapshotReopen},
}

func snap(aggregate string, sequence int64, data string) store.Snapshot {
	return store.Snapshot{AggregateType: "account", AggregateID: aggregate, Sequence: sequence, Data: []byte(data)}
}

func (d *db) requireSnapshot(aggregate string, sequence int64, data string) {
	d.t.Helper()
	got, err := d.LoadSnapshot(d.ctx(), "account", aggregate)
	require.NoError(d.t, err)
	require.Equal(d.t, sequence, got.Sequence)
	require.Equal(d.t, data, string(got.Data))
}

func (d *db) requireNoSnapshot(aggregate string) {
	d.t.Helper()
	_, err := d.LoadSnapshot(d.ctx(), "account", aggregate)
	require.ErrorIs(d.t, err, store.ErrNotFound)
}

func snapshotLatest(t *testing.T, d *db) {
	d.requireNoSnapshot("A-1")
	d.append("account", "A-1", store.NewStream, events(0, 5)...)
	d.requireNoSnapshot("A-1")
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 2, `"at 2"`)))
	d.requireSnapshot("A-1", 2, `"at 2"`)
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 4, `"at 4"`)))
	d.requireSnapshot("A-1", 4, `"at 4"`)
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 3, `"late"`)), "an older one is ignored")
	d.requireSnapshot("A-1", 4, `"at 4"`)
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 4, `"again"`)), "of two of one sequence the later counts")
	d.requireSnapshot("A-1", 4, `"again"`)
	d.requireNoSnapshot("A-2")
}

func snapshotAhead(t *testing.T, d *db) {
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 2, `"of nothing"`)))
	d.requireNoSnapshot("A-1")
	d.append("account", "A-1", store.NewStream, eventN(0))
	d.requireNoSnapshot("A-1")
	// It does not keep one out that the stream bears.
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 1, `"at 1"`)))
	d.requireSnapshot("A-1", 1, `"at 1"`)
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 2, `"at 2"`)))
	d.requireNoSnapshot("A-1")
	d.append("account", "A-1", 1, eventN(1))
	d.requireSnapshot("A-1", 2, `"at 2"`)
}

func snapshotInCommit(t *testing.T, d *db) {
	c := appendTo("account", "A-1", store.NewStream, events(0, 3)...)
	c.Snapshots = []store.Snapshot{snap("A-1", 3, `"at 3"`)}
	_, err := d.Commit(d.ctx(), c)
	require.NoError(t, err)
	d.requireSnapshot("A-1", 3, `"at 3"`)

	// Snapshots alone are a commit as well.
	_, err = d.Commit(d.ctx(), store.Commit{Snapshots: []store.Snapshot{snap("A-1", 2, `"late"`), snap("A-2", 1, `"ahead"`)}})
	require.NoError(t, err)
	d.requireSnapshot("A-1", 3, `"at 3"`)
	d.requireNoSnapshot("A-2")
}

func snapshotMembers(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, eventN(0))
	want := store.Snapshot{AggregateType: "account", AggregateID: "A-1", Sequence: 1, Version: 5, Codec: "gob", CodecVersion: 2,
		Data: []byte{0, 1, 255}, CreatedUS: 1_700_000_000_123_456}
	require.NoError(t, d.SaveSnapshot(d.ctx(), want))
	got, err := d.LoadSnapshot(d.ctx(), "account", "A-1")
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 1, ` { "b" : 1.0 } `)))
	got, err = d.LoadSnapshot(d.ctx(), "account", "A-1")
	require.NoError(t, err)
	require.Positive(t, got.CreatedUS)
	got.CreatedUS = 0
	require.Equal(t, store.Snapshot{AggregateType: "account", AggregateID: "A-1", Sequence: 1, Version: 1, Codec: "json", CodecVersion: 1, Data: []byte(` { "b" : 1.0 } `)}, got)
}

func snapshotBad(t *testing.T, d *db) {
	for name, change := range map[string]func(s *store.Snapshot){
		"sequence": func(s *store.Snapshot) { s.Sequence = 0 },
		"version":  func(s *store.Snapshot) { s.Version = -1 },
		"data":     func(s *store.Snapshot) { s.Data = []byte(`{`) },
		"codec":    func(s *store.Snapshot) { s.CodecVersion = 2 },
		"type":     func(s *store.Snapshot) { s.AggregateType = "" },
	} {
		bad := snap("A-1", 1, `1`)
		change(&bad)
		t.Log(name)
		requireInvalid(t, d.SaveSnapshot(d.ctx(), bad), "bad_request", -1)
		c := appendTo("account", "A-1", store.NewStream, eventN(0))
		c.Snapshots = []store.Snapshot{bad}
		_, err := d.Commit(d.ctx(), c)
		requireInvalid(t, err, "bad_request", -1)
	}
	d.requireEmpty()
	big := snap("A-1", 1, `"`+long("x", store.DefaultMaxEvent)+`"`)
	requireInvalid(t, d.SaveSnapshot(d.ctx(), big), "too_large", -1)
}

func snapshotReopen(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, eventN(0))
	require.NoError(t, d.SaveSnapshot(d.ctx(), snap("A-1", 1, `"kept"`)))
	d.reopen()
	d.requireSnapshot("A-1", 1, `"kept"`)
}
