package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var importCases = []testCase{
	{"AppendsAtTheEndsOfStreams", importAppends},
	{"AgainIsAlreadyThere", importAgain},
	{"OverlappingStoresTheRest", importOverlapping},
	{"SameIDTwiceInOneCall", importTwiceInOneCall},
	{"OtherContentStoresNothing", importOtherContent},
	{"OtherStreamStoresNothing", importOtherStream},
	{"SequenceMustMatch", importSequence},
	{"BadEventIsToldWithItsPlace", importBad},
	{"OfNothing", importNothing},
	{"BesideAppends", importBesideAppends},
	{"SurvivesReopen", importSurvivesReopen},
}

func imports(typ, aggregate string, from, to int) []store.ImportEvent {
	var list []store.ImportEvent
	for n := from; n < to; n++ {
		list = append(list, store.ImportEvent{AggregateType: typ, AggregateID: aggregate, NewEvent: eventN(n)})
	}
	return list
}

// indexes counts from from to to-1.
func indexes(from, to int) []int {
	var list []int
	for n := from; n < to; n++ {
		list = append(list, n)
	}
	return list
}

func (d *db) importAll(list []store.ImportEvent) store.ImportResult {
	d.t.Helper()
	res, err := d.Import(d.ctx(), list)
	require.NoError(d.t, err)
	return res
}

func importAppends(t *testing.T, d *db) {
	d.append("account", "A-0", store.NewStream, event("Opened"))
	var list []store.ImportEvent
	for n := range 300 {
		list = append(list, imports("account", fmt.Sprint("A-", n%7), n, n+1)...)
	}
	res := d.importAll(list)
	require.Equal(t, store.ImportResult{Stored: 300, LastPosition: d.end()}, res)

	all := d.all()[1:]
	require.Len(t, all, 300)
	for n, e := range all {
		require.Equal(t, list[n].ID, e.ID, "the order of the call is the order of positions")
		require.Empty(t, list[n].Differs(&e))
		require.Equal(t, list[n].AggregateID, e.AggregateID)
		want := int64(n/7 + 1)
		if n%7 == 0 {
			want++
		}
		require.Equal(t, want, e.Sequence)
	}
}

func importAgain(t *testing.T, d *db) {
	list := imports("account", "A-1", 0, 20)
	first := d.importAll(list)
	require.Empty(t, first.There)
	require.Equal(t, store.ImportResult{AlreadyThere: 20, There: indexes(0, 20), LastPosition: first.LastPosition}, d.importAll(list))
	require.Len(t, d.all(), 20)

	// Members that are left out are not compared.
	for i := range list {
		list[i].HasOccurred, list[i].HasRevision, list[i].Metadata = false, false, nil
	}
	require.Equal(t, 20, d.importAll(list).AlreadyThere)
}

func importOverlapping(t *testing.T, d *db) {
	d.importAll(imports("account", "A-1", 0, 10))
	res := d.importAll(imports("account", "A-1", 4, 15))
	require.Equal(t, store.ImportResult{Stored: 5, AlreadyThere: 6, There: indexes(0, 6), LastPosition: d.end()}, res)
	for i, e := range d.stream("account", "A-1") {
		require.EqualValues(t, i+1, e.Sequence)
		require.Equal(t, id(i), e.ID)
	}
	// The highest position of what was there before counts as well.
	first := d.stream("account", "A-1")[2].Position
	require.Equal(t, store.ImportResult{AlreadyThere: 3, There: indexes(0, 3), LastPosition: first}, d.importAll(imports("account", "A-1", 0, 3)))
}

// Whether two lines of a file fall into one call or two makes no difference.
func importTwiceInOneCall(t *testing.T, d *db) {
	list := append(imports("account", "A-1", 0, 3), imports("account", "A-1", 1, 2)...)
	res := d.importAll(list)
	require.Equal(t, store.ImportResult{Stored: 3, AlreadyThere: 1, There: []int{3}, LastPosition: d.end()}, res)

	list = append(imports("account", "A-1", 3, 6), imports("account", "A-1", 4, 5)...)
	list[3].Data = []byte(`{"n":-1}`)
	_, err := d.Import(d.ctx(), list)
	var dup *store.DuplicateEventError
	require.ErrorAs(t, err, &dup)
	require.Equal(t, 3, dup.Index)
	require.Len(t, d.all(), 3)
}

func importOtherContent(t *testing.T, d *db) {
	d.importAll(imports("account", "A-1", 0, 3))
	position := d.stream("account", "A-1")[1].Position
	for member, change := range map[string]func(e *store.ImportEvent){
		"type":        func(e *store.ImportEvent) { e.Type = "Other" },
		"revision":    func(e *store.ImportEvent) { e.Revision = 9 },
		"data":        func(e *store.ImportEvent) { e.Data = []byte(`{"n":1.0}`) },
		"metadata":    func(e *store.ImportEvent) { e.Metadata = []byte(`null`) },
		"occurred_at": func(e *store.ImportEvent) { e.OccurredUS-- },
	} {
		list := append(imports("account", "A-2", 10, 12), imports("account", "A-1", 0, 3)...)
		change(&list[3])
		_, err := d.Import(d.ctx(), list)
		requireDuplicate(t, err, store.DuplicateEventError{ID: id(1), Index: 3, AggregateType: "account", AggregateID: "A-1", Position: position}, member)
	}
	require.Len(t, d.all(), 3, "nothing of a refused call is stored")
}

func importOtherStream(t *testing.T, d *db) {
	d.importAll(imports("account", "A-1", 0, 1))
	_, err := d.Import(d.ctx(), append(imports("account", "A-2", 5, 7), imports("account", "A-2", 0, 1)...))
	requireDuplicate(t, err, store.DuplicateEventError{ID: id(0), Index: 2, AggregateType: "account", AggregateID: "A-1", Position: d.end()}, "another stream")
	require.Len(t, d.all(), 1)
}

func importSequence(t *testing.T, d *db) {
	list := imports("account", "A-1", 0, 4)
	for i := range list {
		list[i].Sequence = int64(i + 1)
	}
	require.Equal(t, 4, d.importAll(list).Stored)
	require.Equal(t, 4, d.importAll(list).AlreadyThere)

	ahead := append(imports("account", "A-2", 10, 11), imports("account", "A-1", 4, 5)...)
	ahead[1].Sequence = 6
	_, err := d.Import(d.ctx(), ahead)
	requireInvalid(t, err, "bad_request", 1)

	behind := imports("account", "A-1", 4, 5)
	behind[0].Sequence = 4
	_, err = d.Import(d.ctx(), behind)
	requireInvalid(t, err, "bad_request", 0)

	known := imports("account", "A-1", 2, 3)
	known[0].Sequence = 2
	_, err = d.Import(d.ctx(), known)
	requireInvalid(t, err, "bad_request", 0)
	require.Len(t, d.all(), 4)
}

func importBad(t *testing.T, d *db) {
	for name, c := range map[string]struct {
		code   string
		change func(e *store.ImportEvent)
	}{
		"without id":        {"bad_request", func(e *store.ImportEvent) { e.HasID = false }},
		"aggregate type":    {"bad_request", func(e *store.ImportEvent) { e.AggregateType = "" }},
		"aggregate id":      {"bad_request", func(e *store.ImportEvent) { e.AggregateID = "A " }},
		"data":              {"bad_request", func(e *store.ImportEvent) { e.Data = []byte(`{`) }},
		"sequence negative": {"bad_request", func(e *store.ImportEvent) { e.Sequence = -1 }},
		"size":              {"too_large", func(e *store.ImportEvent) { e.Data = []byte(`"` + long("x", store.DefaultMaxEvent) + `"`) }},
	} {
		list := imports("account", "A-1", 0, 3)
		c.change(&list[2])
		_, err := d.Import(d.ctx(), list)
		t.Log(name)
		requireInvalid(t, err, c.code, 2)
	}
	d.requireEmpty()
}

func importNothing(t *testing.T, d *db) {
	require.Equal(t, store.ImportResult{}, d.importAll(nil))
}

func importBesideAppends(t *testing.T, d *db) {
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for r := range 5 {
				from := w*1000 + r*100
				if _, err := d.Import(d.ctx(), imports("account", "shared", from, from+100)); err != nil {
					t.Errorf("import: %v", err)
				}
			}
		})
		wg.Go(func() {
			for range 25 {
				if _, err := d.Commit(d.ctx(), appendTo("account", "shared", store.AnyVersion, event("Single"))); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	list := d.stream("account", "shared")
	require.Len(t, list, 4*500+4*25)
	for i, e := range list {
		require.EqualValues(t, i+1, e.Sequence)
	}
}

func importSurvivesReopen(t *testing.T, d *db) {
	first := d.importAll(imports("account", "A-1", 0, 50))
	d.reopen()
	require.Equal(t, store.ImportResult{AlreadyThere: 50, There: indexes(0, 50), LastPosition: first.LastPosition}, d.importAll(imports("account", "A-1", 0, 50)))
	require.Len(t, d.all(), 50)
}
