package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

var errDone = errors.New("the test has seen enough")

// follow feeds lanes from a log until its end and returns what each lane got.
func follow(t *testing.T, l *log, cfg FeedConfig, after int64) ([][]Slice, error) {
	t.Helper()
	s := startSource(t, l, smallPages)
	lanes := make([][]Slice, cfg.Lanes)
	ctx, cancel := context.WithCancelCause(t.Context())
	f, err := NewFeed(s, cfg, func(_ context.Context, lane int, sl Slice) error {
		lanes[lane] = append(lanes[lane], sl)
		if sl.To == l.end && lane == cfg.Lanes-1 {
			cancel(errDone)
		}
		return nil
	}, func(context.Context, error) error { return nil })
	require.NoError(t, err)
	return lanes, f.Run(ctx, after)
}

// modulo deals n partitions to lanes.
func modulo(n, lanes int) []int {
	out := make([]int, n)
	for p := range out {
		out[p] = p % lanes
	}
	return out
}

func byID() *abi.Consumer {
	return &abi.Consumer{Type: abi.Projection, Name: "c", Inputs: []abi.Input{
		{Topic: "events", Types: []string{"T"}, Key: abi.KeyRule{Kind: abi.KeyAggregateID}},
	}}
}

func byPointers(pointers ...string) *abi.Consumer {
	c := byID()
	c.Inputs[0].Key = abi.KeyRule{Kind: abi.KeyPointers, Pointers: pointers}
	return c
}

// Every lane gets every stretch, joined without a gap, and each message reaches
// exactly the lane of its key, in order; what a partition's checkpoint covers
// is left out, and so is what belongs to nobody here.
func TestFeedDeals(t *testing.T) {
	t.Parallel()
	l := newLog()
	all := events(95)
	all[50].Type = "other"
	for i := range all {
		all[i].Partition = partition.Of(all[i].AggregateID, 16)
	}
	l.append(all...)
	start, deal := make([]int64, 16), modulo(16, 3)
	deal[partition.Of("5", 16)] = NoLane
	done := partition.Of("3", 16)
	start[done] = 60
	for p := range start {
		start[p] = max(start[p], 4)
	}
	lanes, err := follow(t, l, FeedConfig{Consumer: byID(), Lanes: 3, Lane: deal, Start: start}, 4)
	require.ErrorIs(t, err, errDone)

	seen := 0
	for lane, slices := range lanes {
		through, last := int64(4), int64(0)
		for _, s := range slices {
			require.Equal(t, through, s.From)
			through = s.To
			for _, e := range s.Entries {
				seen++
				require.Greater(t, e.Event.Position, last)
				last = e.Event.Position
				require.Greater(t, last, s.From)
				require.LessOrEqual(t, last, s.To)
				require.Equal(t, e.Event.AggregateID, e.Key)
				require.Equal(t, partition.Of(e.Key, 16), int(e.Partition))
				require.Equal(t, lane, deal[e.Partition])
				require.Greater(t, last, start[e.Partition])
			}
		}
		require.Equal(t, int64(95), through)
	}
	want := 0
	for i, e := range l.events {
		if p := partition.Of(e.AggregateID, 16); e.Type == "T" && deal[p] != NoLane && int64(i+1) > start[p] {
			want++
		}
	}
	require.Equal(t, want, seen)
	require.Len(t, l.asked()[0], 15)
	require.NotContains(t, l.asked()[0], partition.Of("5", 16), "what belongs to nobody here is not read")
}

// Promise (P4): a computed key may be anybody's, wherever the message is stored.
func TestFeedOfComputedKeysReadsAll(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.append(store.Event{AggregateID: "elsewhere", Type: "T", Data: []byte(`{"k":"here"}`)})
	deal := make([]int, 16)
	for p := range deal {
		deal[p] = NoLane
	}
	deal[partition.Of("here", 16)] = 0
	require.NotEqual(t, partition.Of("here", 16), partition.Of("elsewhere", 16))
	lanes, err := follow(t, l, FeedConfig{Consumer: byPointers("/k"), Lanes: 1, Lane: deal, Start: make([]int64, 16)}, 0)
	require.ErrorIs(t, err, errDone)
	require.Nil(t, l.asked()[0])
	require.Len(t, lanes[0][0].Entries, 1)

	// One such input is enough.
	both := byID()
	both.Inputs[0].Types = []string{"U"}
	both.Inputs = append(both.Inputs, byPointers("/k").Inputs...)
	_, err = follow(t, l, FeedConfig{Consumer: both, Lanes: 1, Lane: deal, Start: make([]int64, 16)}, 0)
	require.ErrorIs(t, err, errDone)
	require.Nil(t, l.asked()[len(l.asked())-1])
}

// The keys of a message are a set, in which the first place counts; what cannot
// be stored stands in for itself; null and "" are of no interest.
func TestFeedKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	for data, want := range map[string][]string{
		`{"from":"a","to":"b"}`:                {"a", "b"},
		`{"from":"a","to":"a"}`:                {"a"},
		`{"from":null}`:                        nil,
		`{"from":""}`:                          nil,
		`{"from":12.50}`:                       {"12.50"},
		`{"from":"` + long + `","to":"b"}`:     {abi.StandIn([]byte(long)), "b"},
		`{"from":"old","from":"new"}`:          {"new"},
		`{"from":"a\u0000b"}`:                  {abi.StandIn([]byte("a\x00b"))},
		`{"from":"\u00e9","to":"` + "é" + `"}`: {"é"},
	} {
		t.Run(data[:min(len(data), 40)], func(t *testing.T) {
			t.Parallel()
			l := newLog()
			l.append(store.Event{AggregateType: "a", AggregateID: "1", Type: "T", Data: []byte(data)})
			lanes, err := follow(t, l, FeedConfig{Consumer: byPointers("/from", "/to"), Lanes: 1, Lane: modulo(8, 1), Start: make([]int64, 8)}, 0)
			require.ErrorIs(t, err, errDone)
			var got []string
			for _, e := range lanes[0][0].Entries {
				got = append(got, e.Key)
				require.Equal(t, strings.HasPrefix(e.Key, "#sha256:"), e.StandIn)
			}
			require.Equal(t, want, got)
		})
	}
}

// A message whose keys cannot be told ends the feed: the lanes have everything
// before it, and nothing reaches as far as it.
func TestFeedUnresolved(t *testing.T) {
	t.Parallel()
	for _, data := range []string{`{"k":true}`, `{"k":{}}`, `{"k":[]}`, `{"k"`} {
		l := newLog()
		good := store.Event{AggregateType: "a", AggregateID: "1", Type: "T", Data: []byte(`{"k":"x"}`)}
		bad := good
		bad.Data = []byte(data)
		for range 14 {
			l.append(good)
		}
		l.append(bad, good)
		lanes, err := follow(t, l, FeedConfig{Consumer: byPointers("/k"), Lanes: 2, Lane: modulo(8, 2), Start: make([]int64, 8)}, 0)
		var unresolved *UnresolvedError
		require.ErrorAs(t, err, &unresolved)
		require.Equal(t, int64(15), unresolved.Event.Position)
		entries := 0
		for _, slices := range lanes {
			require.Equal(t, int64(14), slices[len(slices)-1].To)
			for _, s := range slices {
				entries += len(s.Entries)
			}
		}
		require.Equal(t, 14, entries)
	}
}

// teller answers with keys taken from the payload, and fails where told to.
type teller struct {
	fail    int
	problem string
	errs    []error
}

func (k *teller) Tell(_ context.Context, messages []abi.Entry, each func(int, [][]byte)) (int, string, error) {
	for i, m := range messages {
		if len(k.errs) > 0 && i == 1 {
			err := k.errs[0]
			k.errs = k.errs[1:]
			return i, "", err
		}
		if k.problem != "" && int(m.Position) == k.fail {
			return i, k.problem, nil
		}
		each(i, [][]byte{m.Data, []byte("all"), m.Data, []byte("bad ")})
	}
	return len(messages), "", nil
}

// A guest's keys are a set too; an error on the way asks again from the start
// and doubles nothing; a message it cannot tell ends the feed.
func TestFeedFunctionKeys(t *testing.T) {
	t.Parallel()
	consumer := byID()
	consumer.Inputs[0].Key.Kind = abi.KeyFunction
	l := newLog()
	for i := range 8 {
		l.append(store.Event{AggregateType: "a", AggregateID: "1", Type: "T", Data: fmt.Appendf(nil, "%d", i)})
	}
	cfg := FeedConfig{
		Consumer: consumer, Lanes: 1, Lane: modulo(8, 1), Start: make([]int64, 8),
		Teller: &teller{errs: []error{errors.New("hiccup")}},
	}
	lanes, err := follow(t, l, cfg, 0)
	require.ErrorIs(t, err, errDone)
	var keys []string
	for _, e := range lanes[0][0].Entries {
		keys = append(keys, e.Key)
	}
	require.Len(t, keys, 24)
	require.Equal(t, []string{"0", "all", abi.StandIn([]byte("bad ")), "1"}, keys[:4])

	cfg.Teller = &teller{fail: 4, problem: "trap"}
	lanes, err = follow(t, l, cfg, 0)
	var unresolved *UnresolvedError
	require.ErrorAs(t, err, &unresolved)
	require.Equal(t, int64(4), unresolved.Event.Position)
	require.Equal(t, "trap", unresolved.Reason)
	require.Equal(t, int64(3), lanes[0][0].To)
	require.Len(t, lanes[0][0].Entries, 9)
}

// A topic that begins behind what the consumer needs, and a page of another
// incarnation, are never fed.
func TestFeedRefusesPages(t *testing.T) {
	t.Parallel()
	l := newLog()
	l.append(events(5)...)
	l.start = 3
	_, err := follow(t, l, FeedConfig{Consumer: byID(), Lanes: 1, Lane: modulo(8, 1), Start: make([]int64, 8)}, 2)
	var missing *MissingHistoryError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, int64(3), missing.Start)

	_, err = follow(t, l, FeedConfig{Consumer: byID(), Lanes: 1, Lane: modulo(8, 1), Start: make([]int64, 8), Incarnation: 1}, 3)
	require.ErrorIs(t, err, store.ErrIncarnation)
}

func BenchmarkFeed(b *testing.B) {
	l := newLog()
	for i := range 1000 {
		l.append(store.Event{AggregateType: "account", AggregateID: fmt.Sprintf("account-%d", i%300), Type: "T", Data: make([]byte, 200)})
	}
	page, err := l.ReadPage(b.Context(), store.PageQuery{Topic: "events", Limit: 1000})
	require.NoError(b, err)
	f, err := NewFeed(NewSource(l, "events", smallPages), FeedConfig{
		Consumer: byID(), Lanes: 2, Lane: modulo(256, 2), Start: make([]int64, 256),
	}, func(context.Context, int, Slice) error { return nil }, nil)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := f.feed(b.Context(), &page); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/message")
}
