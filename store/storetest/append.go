package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var appendCases = []testCase{
	{"VersionsCountEvents", appendVersionsCountEvents},
	{"FillsInWhatIsNotGiven", appendFillsIn},
	{"KeepsEveryMember", appendKeepsEveryMember},
	{"PositionsRiseInOrder", appendPositionsRise},
	{"StampsThePartition", appendStampsPartition},
	{"ConflictTellsExpectedAndActual", appendConflict},
	{"ConflictTellsAVersionThatIsCommitted", appendConflictCommitted},
	{"NewStreamRefusesAnOldOne", appendNewStream},
	{"AnyVersionNeverConflicts", appendAnyVersion},
	{"OneOfConcurrentWritersWins", appendOneWinner},
	{"ConcurrentWritersOfManyStreamsAllStore", appendManyStreams},
	{"ManyStreamsAllOrNone", appendAllOrNone},
	{"ManyStreamsAnswerInOrder", appendAnswersInOrder},
	{"StreamNamedTwiceIsRefused", appendStreamTwice},
	{"IDGivenTwiceIsRefused", appendIDTwice},
	{"EmptyCommitIsRefused", appendEmpty},
	{"TooLargeIsRefused", appendTooLarge},
	{"BadMembersAreRefusedWithTheirPlace", appendBadMembers},
	{"ManyEventsInOneCommit", appendMany},
	{"CancelledBeforeStoresNothing", appendCancelledBefore},
	{"CancelledMeanwhileIsAllOrNone", appendCancelledMeanwhile},
	{"SurvivesReopen", appendSurvivesReopen},
}

func appendVersionsCountEvents(t *testing.T, d *db) {
	v, err := d.StreamVersion(d.ctx(), "account", "A-1")
	require.NoError(t, err)
	require.Zero(t, v, "version of an unknown stream")

	require.EqualValues(t, 1, d.append("account", "A-1", store.NewStream, event("Opened")).Version)
	require.EqualValues(t, 3, d.append("account", "A-1", 1, event("Deposited"), event("Deposited")).Version)
	require.EqualValues(t, 1, d.append("account", "A-2", store.NewStream, event("Opened")).Version)

	v, err = d.StreamVersion(d.ctx(), "account", "A-1")
	require.NoError(t, err)
	require.EqualValues(t, 3, v)
	for i, e := range d.stream("account", "A-1") {
		require.EqualValues(t, i+1, e.Sequence, "sequences start at 1 and have no holes")
	}
}

func appendFillsIn(t *testing.T, d *db) {
	res := d.append("account", "A-1", store.NewStream, event("Opened"), event("Closed"))
	list := d.stream("account", "A-1")
	require.Len(t, list, 2)
	require.Equal(t, []store.ID{list[0].ID, list[1].ID}, res.IDs)
	require.NotEqual(t, list[0].ID, list[1].ID)
	for _, e := range list {
		require.Equal(t, byte(7), e.ID[6]>>4, "ids are made in order of time")
		require.Zero(t, e.Revision)
		require.Equal(t, store.DefaultCodec, e.Codec)
		require.EqualValues(t, store.DefaultCodecVersion, e.CodecVersion)
		require.Nil(t, e.Metadata)
		require.Positive(t, e.OccurredUS)
	}
}

func appendKeepsEveryMember(t *testing.T, d *db) {
	e := eventN(7)
	res := d.append("account", "A-1", store.NewStream, e)
	want := store.Event{
		Position: res.FirstPosition, ID: e.ID, AggregateType: "account", AggregateID: "A-1", Sequence: 1, Type: e.Type,
		Revision: e.Revision, Codec: "json", CodecVersion: 1, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS, Partition: 116,
	}
	require.Equal(t, []store.Event{want}, d.stream("account", "A-1"))
	require.Equal(t, []store.Event{want}, d.all())
	for _, us := range []int64{-62135596800_000_000, -1, 0, 253402300799_999_999} {
		e := event("Dated")
		e.OccurredUS, e.HasOccurred = us, true
		aggregate := fmt.Sprint("at ", us)
		d.append("account", aggregate, store.NewStream, e)
		require.Equal(t, us, d.stream("account", aggregate)[0].OccurredUS)
	}
}

func appendPositionsRise(t *testing.T, d *db) {
	last := int64(0)
	for i := range 5 {
		res := d.append("account", fmt.Sprint(i), store.NewStream, event("Opened"), event("Deposited"))
		require.Greater(t, res.FirstPosition, last)
		require.Greater(t, res.LastPosition, res.FirstPosition)
		last = res.LastPosition
	}
	require.Equal(t, last, d.end())
}

func appendStampsPartition(t *testing.T, d *db) {
	for aggregate, want := range map[string]int{"a": 91, "A-1": 116, "A-2": 104, "account-42": 95, "ä": 46, "6f1c2c9e-2b1d-7c3e-8f00-0123456789ab": 164} {
		d.append("account", aggregate, store.NewStream, event("Opened"))
		require.Equal(t, want, d.stream("account", aggregate)[0].Partition, "aggregate %q of 256 partitions", aggregate)
	}
	few := d.fresh(Config{Partitions: 7})
	for i := range 50 {
		aggregate := fmt.Sprint("A-", i)
		few.append("account", aggregate, store.NewStream, event("Opened"))
		require.Equal(t, store.PartitionOf(aggregate, 7), few.stream("account", aggregate)[0].Partition)
	}
}

func requireConflict(t require.TestingT, err error, expected, actual int64) {
	var conflict *store.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, store.ConflictError{AggregateType: "account", AggregateID: "A-1", Expected: expected, Actual: actual}, *conflict)
}

func appendConflict(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 3)...)
	for _, expected := range []int64{1, 2, 4, 1 << 40} {
		_, err := d.Commit(d.ctx(), appendTo("account", "A-1", expected, event("Late")))
		requireConflict(t, err, expected, 3)
	}
	require.Len(t, d.stream("account", "A-1"), 3)
}

// A commit that is refused may have run beside others that raised the version.
// What it is told must be the version of a committed state: nobody ever sees
// one that is then rolled back.
func appendConflictCommitted(t *testing.T, d *db) {
	const writers, rounds = 8, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for expected, r := int64(0), 0; r < rounds; {
				_, err := d.Commit(d.ctx(), appendTo("account", "A-1", expected, event(fmt.Sprint("By", w))))
				var conflict *store.ConflictError
				if errors.As(err, &conflict) {
					if conflict.Actual <= expected {
						t.Errorf("expected version %d was refused, but the actual one is told as %d", expected, conflict.Actual)
						return
					}
					expected = conflict.Actual
					continue
				}
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				r++
				expected++
			}
		})
	}
	wg.Wait()
	require.Len(t, d.stream("account", "A-1"), writers*rounds)
}

func appendNewStream(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, event("Opened"))
	_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.NewStream, event("Opened")))
	requireConflict(t, err, 0, 1)
}

func appendAnyVersion(t *testing.T, d *db) {
	require.EqualValues(t, 1, d.append("account", "A-1", store.AnyVersion, event("Opened")).Version)
	require.EqualValues(t, 2, d.append("account", "A-1", store.AnyVersion, event("Closed")).Version)
}

func appendOneWinner(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, event("Opened"))
	const writers = 8
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() { _, errs[w] = d.Commit(d.ctx(), appendTo("account", "A-1", 1, event("Won"), event("Won"))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		requireConflict(t, err, 1, 3)
	}
	require.Equal(t, 1, won)
	require.Len(t, d.stream("account", "A-1"), 3)
}

func appendManyStreams(t *testing.T, d *db) {
	const writers, rounds = 16, 10
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for r := range rounds {
				if _, err := d.Commit(d.ctx(), appendTo("account", fmt.Sprint(w), int64(r), event("Counted"))); err != nil {
					t.Errorf("writer %d, round %d: %v", w, r, err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, d.all(), writers*rounds)
	for w := range writers {
		require.Len(t, d.stream("account", fmt.Sprint(w)), rounds)
	}
}

func appendAllOrNone(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, event("Opened"))
	end := d.end()
	_, err := d.Commit(d.ctx(), store.Commit{
		Streams: []store.StreamAppend{
			{AggregateType: "account", AggregateID: "A-0", ExpectedVersion: store.NewStream, Events: events(0, 3)},
			{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: 5, Events: events(3, 4)},
			{AggregateType: "account", AggregateID: "A-2", ExpectedVersion: store.AnyVersion, Events: events(4, 5)},
		},
		Snapshots: []store.Snapshot{{AggregateType: "account", AggregateID: "A-1", Sequence: 1, Data: []byte(`{}`)}},
	})
	requireConflict(t, err, 5, 1)
	require.Len(t, d.all(), 1)
	require.Empty(t, d.stream("account", "A-0"))
	_, err = d.LoadSnapshot(d.ctx(), "account", "A-1")
	require.ErrorIs(t, err, store.ErrNotFound)

	// What was refused has left nothing behind, its ids included.
	res := d.append("account", "A-0", store.NewStream, events(0, 3)...)
	require.False(t, res.Replayed)
	require.Greater(t, res.FirstPosition, end)
}

func appendAnswersInOrder(t *testing.T, d *db) {
	d.append("account", "B", store.NewStream, event("Opened"))
	res, err := d.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "C", ExpectedVersion: store.NewStream, Events: events(0, 2)},
		{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.AnyVersion, Events: events(2, 3)},
		{AggregateType: "account", AggregateID: "B", ExpectedVersion: 1, Events: events(3, 6)},
	}})
	require.NoError(t, err)
	require.Len(t, res.Streams, 3)
	n := 0
	for i, want := range []struct {
		id      string
		version int64
		events  int
	}{{"C", 2, 2}, {"A", 1, 1}, {"B", 4, 3}} {
		got := res.Streams[i]
		require.Equal(t, "account", got.AggregateType)
		require.Equal(t, want.id, got.AggregateID)
		require.Equal(t, want.version, got.Version)
		list := d.stream("account", want.id)
		list = list[len(list)-want.events:]
		require.Equal(t, list[0].Position, got.FirstPosition)
		require.Equal(t, list[len(list)-1].Position, got.LastPosition)
		require.Len(t, got.IDs, want.events)
		for j := range list {
			require.Equal(t, list[j].ID, got.IDs[j])
			require.Equal(t, id(n), got.IDs[j])
			n++
		}
	}
}

func appendStreamTwice(t *testing.T, d *db) {
	_, err := d.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.AnyVersion, Events: events(0, 2)},
		{AggregateType: "account", AggregateID: "B", ExpectedVersion: store.AnyVersion, Events: events(2, 4)},
		{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.AnyVersion, Events: events(4, 5)},
	}})
	requireInvalid(t, err, "duplicate_stream", 4)
	d.requireEmpty()
	// The same id in another type is another stream.
	_, err = d.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.NewStream, Events: events(0, 1)},
		{AggregateType: "customer", AggregateID: "A", ExpectedVersion: store.NewStream, Events: events(1, 2)},
	}})
	require.NoError(t, err)
}

func appendIDTwice(t *testing.T, d *db) {
	_, err := d.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.AnyVersion, Events: events(0, 2)},
		{AggregateType: "account", AggregateID: "B", ExpectedVersion: store.AnyVersion, Events: events(1, 3)},
	}})
	requireInvalid(t, err, "duplicate_event", 2)
	d.requireEmpty()
}

func appendEmpty(t *testing.T, d *db) {
	_, err := d.Commit(d.ctx(), store.Commit{})
	requireInvalid(t, err, "bad_request", -1)
	_, err = d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion))
	requireInvalid(t, err, "bad_request", -1)
}

func appendTooLarge(t *testing.T, d *db) {
	small := d.fresh(Config{MaxEvent: 100})
	fits, over := event("Sized"), event("Sized")
	fits.Data = []byte(`"` + long("x", 48) + `"`)
	fits.Metadata = []byte(`"` + long("y", 48) + `"`)
	over.Data, over.Metadata = fits.Data, []byte(`"`+long("y", 49)+`"`)
	_, err := small.Commit(small.ctx(), appendTo("account", "A-1", store.AnyVersion, fits, over))
	requireInvalid(t, err, "too_large", 1)
	small.requireEmpty()
	small.append("account", "A-1", store.NewStream, fits)
	require.Equal(t, fits.Data, small.stream("account", "A-1")[0].Data)

	big := event("Sized")
	big.Data = []byte(`"` + long("x", store.DefaultMaxEvent-2) + `"`)
	d.append("account", "A-1", store.NewStream, big)
	require.Equal(t, big.Data, d.stream("account", "A-1")[0].Data)
	big.Data = []byte(`"` + long("x", store.DefaultMaxEvent-1) + `"`)
	_, err = d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, big))
	requireInvalid(t, err, "too_large", 0)
}

func appendBadMembers(t *testing.T, d *db) {
	for name, change := range map[string]func(e *store.NewEvent){
		"type empty":          func(e *store.NewEvent) { e.Type = "" },
		"type NUL":            func(e *store.NewEvent) { e.Type = "a\x00" },
		"nil id":              func(e *store.NewEvent) { e.HasID, e.ID = true, store.ID{} },
		"revision negative":   func(e *store.NewEvent) { e.HasRevision, e.Revision = true, -1 },
		"time too early":      func(e *store.NewEvent) { e.HasOccurred, e.OccurredUS = true, -62135596800_000_001 },
		"time too late":       func(e *store.NewEvent) { e.HasOccurred, e.OccurredUS = true, 253402300800_000_000 },
		"data missing":        func(e *store.NewEvent) { e.Data = nil },
		"data not JSON":       func(e *store.NewEvent) { e.Data = []byte(`{"n":`) },
		"data two values":     func(e *store.NewEvent) { e.Data = []byte(`1 2`) },
		"data not UTF-8":      func(e *store.NewEvent) { e.Data = []byte("\"\xff\"") },
		"metadata not JSON":   func(e *store.NewEvent) { e.Metadata = []byte(`actor`) },
		"metadata empty":      func(e *store.NewEvent) { e.Metadata = []byte{} },
		"metadata not UTF-8":  func(e *store.NewEvent) { e.Metadata = []byte("\"\xc3\"") },
		"unknown JSON codec":  func(e *store.NewEvent) { e.Codec, e.CodecVersion = "json", 2 },
		"codec version below": func(e *store.NewEvent) { e.Codec, e.CodecVersion = "avro", -1 },
		"codec name":          func(e *store.NewEvent) { e.Codec = "avro " },
	} {
		t.Run(name, func(t *testing.T) {
			bad := event("Counted")
			change(&bad)
			_, err := d.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{
				{AggregateType: "account", AggregateID: "A", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{event("Fine"), event("Fine")}},
				{AggregateType: "account", AggregateID: "B", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{event("Fine"), bad}},
			}})
			requireInvalid(t, err, "bad_request", 3)
		})
	}
	_, err := d.Commit(d.ctx(), appendTo("account", "A", -2, event("Fine")))
	requireInvalid(t, err, "bad_request", -1)
	d.requireEmpty()
}

func appendMany(t *testing.T, d *db) {
	const n = 3000
	res := d.append("account", "A-1", store.NewStream, events(0, n)...)
	require.EqualValues(t, n, res.Version)
	list := d.stream("account", "A-1")
	require.Len(t, list, n)
	for i := range list {
		require.Equal(t, id(i), list[i].ID)
		require.EqualValues(t, i+1, list[i].Sequence)
	}
}

func appendCancelledBefore(t *testing.T, d *db) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Commit(ctx, appendTo("account", "A-1", store.AnyVersion, event("Opened")))
	require.ErrorIs(t, err, context.Canceled)
	_, err = d.Import(ctx, imports("account", "A-1", 0, 5))
	require.ErrorIs(t, err, context.Canceled)
	_, err = d.ReadStream(ctx, "account", "A-1", 1, 10)
	require.ErrorIs(t, err, context.Canceled)
	d.requireEmpty()
}

// The caller goes away at any moment, among others that stay: what it began is
// there as a whole or not at all, and nobody else notices.
func appendCancelledMeanwhile(t *testing.T, d *db) {
	const writers, size = 30, 40
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(d.ctx())
			defer cancel()
			stays := w%2 == 0
			if !stays {
				go cancel()
			}
			_, err := d.Commit(ctx, appendTo("account", fmt.Sprint(w), store.NewStream, events(w*size, (w+1)*size)...))
			if stays && err != nil {
				t.Errorf("append beside cancelled ones: %v", err)
			}
		})
	}
	wg.Wait()
	for w := range writers {
		if n := len(d.stream("account", fmt.Sprint(w))); n != size && (w%2 == 0 || n != 0) {
			t.Errorf("stream %d has %d of %d events", w, n, size)
		}
	}
}

func appendSurvivesReopen(t *testing.T, d *db) {
	res := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	before := d.all()
	d.reopen()
	require.Equal(t, before, d.all())
	next := d.append("account", "A-1", 3, event("Later"))
	require.Greater(t, next.FirstPosition, res.LastPosition, "positions go on where they stopped")
	require.EqualValues(t, 4, next.Version)
}
