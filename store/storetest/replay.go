package storetest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var replayCases = []testCase{
	{"AnswersAsTheFirstTime", replayAnswers},
	{"ComesBeforeTheVersion", replayBeforeVersion},
	{"OfAPartIsARepeatOfThatPart", replayOfAPart},
	{"ComparesOnlyGivenMembers", replayGivenMembers},
	{"OtherContentIsADuplicate", replayOtherContent},
	{"OtherStreamIsADuplicate", replayOtherStream},
	{"PartlyStoredIsADuplicate", replayPartly},
	{"WithoutEveryIDIsADuplicate", replayWithoutIDs},
	{"NotConsecutiveIsADuplicate", replayNotConsecutive},
	{"DuplicateIsToldBeforeConflict", replayBeforeConflict},
	{"OneStreamOfManyMayBeARepeat", replayOneOfMany},
	{"ConcurrentRepeatsStoreOnce", replayConcurrent},
	{"SurvivesReopen", replaySurvivesReopen},
}

func replayAnswers(t *testing.T, d *db) {
	first := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	require.False(t, first.Replayed)
	again := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	first.Replayed = true
	require.Equal(t, first, again)
	require.Len(t, d.all(), 3)
}

// The first answer was lost, others have appended since: the caller gets what
// it would have got, not a conflict.
func replayBeforeVersion(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 2)...)
	first := d.append("account", "A-1", 2, events(2, 4)...)
	d.append("account", "A-1", 4, events(4, 9)...)
	for _, expected := range []int64{2, 0, 9, 77, store.AnyVersion} {
		again := d.append("account", "A-1", expected, events(2, 4)...)
		first.Replayed = true
		require.Equal(t, first, again, "expected version %d", expected)
	}
	require.Len(t, d.all(), 9)
}

func replayOfAPart(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 5)...)
	list := d.stream("account", "A-1")
	again := d.append("account", "A-1", store.NewStream, events(1, 3)...)
	require.Equal(t, store.StreamResult{AggregateType: "account", AggregateID: "A-1", Version: 3, Replayed: true,
		FirstPosition: list[1].Position, LastPosition: list[2].Position, IDs: []store.ID{id(1), id(2)}}, again)
}

func replayGivenMembers(t *testing.T, d *db) {
	full := eventN(0)
	d.append("account", "A-1", store.NewStream, full)
	bare := store.NewEvent{ID: full.ID, HasID: true, Type: full.Type, Data: full.Data}
	require.True(t, d.append("account", "A-1", store.NewStream, bare).Replayed)

	// And the other way round: what the store filled in differs from nothing.
	bare.ID = id(1)
	d.append("account", "A-2", store.NewStream, bare)
	require.True(t, d.append("account", "A-2", store.NewStream, bare).Replayed)
}

func replayOtherContent(t *testing.T, d *db) {
	first := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	for member, change := range map[string]func(e *store.NewEvent){
		"type":        func(e *store.NewEvent) { e.Type = "counted" },
		"revision":    func(e *store.NewEvent) { e.Revision++ },
		"data":        func(e *store.NewEvent) { e.Data = []byte(`{"n": 1}`) },
		"metadata":    func(e *store.NewEvent) { e.Metadata = []byte(`{"actor":"1"}`) },
		"occurred_at": func(e *store.NewEvent) { e.OccurredUS++ },
		"codec":       func(e *store.NewEvent) { e.Codec = "avro" },
	} {
		again := events(0, 3)
		change(&again[1])
		_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.NewStream, again...))
		requireDuplicate(t, err, store.DuplicateEventError{ID: id(1), Index: 1, AggregateType: "account", AggregateID: "A-1", Position: first.FirstPosition + (first.LastPosition-first.FirstPosition)/2}, member)
	}
	require.Len(t, d.all(), 3)
}

func replayOtherStream(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, eventN(0))
	position := d.end()
	for _, to := range []struct{ typ, id string }{{"account", "A-2"}, {"customer", "A-1"}} {
		_, err := d.Commit(d.ctx(), appendTo(to.typ, to.id, store.NewStream, eventN(0)))
		requireDuplicate(t, err, store.DuplicateEventError{ID: id(0), AggregateType: "account", AggregateID: "A-1", Position: position}, "another stream")
		// The same further on in the append.
		_, err = d.Commit(d.ctx(), appendTo(to.typ, to.id, store.NewStream, eventN(5), eventN(0)))
		requireDuplicate(t, err, store.DuplicateEventError{ID: id(0), Index: 1, AggregateType: "account", AggregateID: "A-1", Position: position}, "another stream")
		require.Empty(t, d.stream(to.typ, to.id))
	}
}

func replayPartly(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, eventN(0))
	position := d.end()
	want := store.DuplicateEventError{ID: id(0), AggregateType: "account", AggregateID: "A-1", Position: position}

	// Known ones first, then a new one; and the other way round.
	_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, events(0, 2)...))
	requireDuplicate(t, err, want, "not all stored")
	want.Index = 1
	_, err = d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, eventN(1), eventN(0)))
	requireDuplicate(t, err, want, "not stored")
	require.Len(t, d.all(), 1)
}

func replayWithoutIDs(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 2)...)
	anonymous := eventN(1)
	anonymous.HasID = false
	for _, again := range [][]store.NewEvent{{eventN(0), anonymous}, {anonymous, eventN(0)}} {
		_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, again...))
		var dup *store.DuplicateEventError
		require.ErrorAs(t, err, &dup)
		require.Equal(t, id(0), dup.ID)
	}
	require.Len(t, d.all(), 2)
}

func replayNotConsecutive(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 4)...)
	for _, again := range [][]store.NewEvent{
		{eventN(0), eventN(2)},
		{eventN(1), eventN(0)},
		{eventN(3), eventN(1)},
	} {
		_, err := d.Commit(d.ctx(), appendTo("account", "A-1", store.AnyVersion, again...))
		var dup *store.DuplicateEventError
		require.ErrorAs(t, err, &dup)
		require.Equal(t, 1, dup.Index)
	}
	require.Len(t, d.all(), 4)
}

func replayBeforeConflict(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 2)...)
	_, err := d.Commit(d.ctx(), appendTo("account", "A-1", 7, eventN(5), eventN(1)))
	var dup *store.DuplicateEventError
	require.ErrorAs(t, err, &dup)
	require.Equal(t, 1, dup.Index)
	_, err = d.Commit(d.ctx(), appendTo("account", "A-1", 7, eventN(5), eventN(6)))
	requireConflict(t, err, 7, 2)
}

func replayOneOfMany(t *testing.T, d *db) {
	first := d.append("account", "A-1", store.NewStream, events(0, 2)...)
	both := store.Commit{Streams: []store.StreamAppend{
		{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: store.NewStream, Events: events(0, 2)},
		{AggregateType: "account", AggregateID: "A-2", ExpectedVersion: store.NewStream, Events: events(2, 4)},
	}}
	res, err := d.Commit(d.ctx(), both)
	require.NoError(t, err)
	first.Replayed = true
	require.Equal(t, first, res.Streams[0])
	require.False(t, res.Streams[1].Replayed)
	again, err := d.Commit(d.ctx(), both)
	require.NoError(t, err)
	res.Streams[1].Replayed = true
	require.Equal(t, res, again)
	require.Len(t, d.all(), 4)
}

func replayConcurrent(t *testing.T, d *db) {
	const callers = 8
	results := make([]store.CommitResult, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			var err error
			if results[c], err = d.Commit(d.ctx(), appendTo("account", "A-1", store.NewStream, events(0, 3)...)); err != nil {
				t.Errorf("repeat %d: %v", c, err)
			}
		})
	}
	wg.Wait()
	stored := 0
	for _, r := range results {
		if len(r.Streams) == 1 && !r.Streams[0].Replayed {
			stored++
		}
	}
	require.Equal(t, 1, stored)
	require.Len(t, d.all(), 3)
}

func replaySurvivesReopen(t *testing.T, d *db) {
	first := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	d.reopen()
	again := d.append("account", "A-1", store.NewStream, events(0, 3)...)
	first.Replayed = true
	require.Equal(t, first, again)
}
