package lane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// note1 is the text that a key's row has, "" if there is none.
func (r *rig) note1(key string) string {
	row, ok := r.st.Rows(id, tableOwn)[store.RowKey{Key: key}]
	if !ok {
		return ""
	}
	values, err := abi.ReadRow(row.Row, nil)
	require.NoError(r.t, err)
	return string(values[1].B)
}

// states are the positions and states of undelivered messages, by id.
func (r *rig) states() (out []string) {
	for _, m := range r.st.Undelivered(id) {
		out = append(out, fmt.Sprintf("%d %s %s %d/%d", m.Event.Position, m.Key, m.Status, m.Attempts, m.Passing))
	}
	return out
}

// refusing has messages at some positions answered with a status until they are
// taken out.
func (r *rig) refusing(status abi.Status, positions ...uint64) map[uint64]bool {
	bad := make(map[uint64]bool)
	for _, p := range positions {
		bad[p] = true
	}
	r.first = func(e *abi.Entry) (abi.Status, *plugins.Failure, bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return status, nil, bad[e.Position]
	}
	return bad
}

func (r *rig) set(bad map[uint64]bool, position uint64, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bad[position] = is
}

// seen is the positions that guests were asked about since the last time.
func (r *rig) seen() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.asked
	r.asked = nil
	return out
}

// A message that may pass holds its key and no other: those behind it wait in
// order while the others go on, it is tried with growing pauses, and once it
// succeeds the rest follows at once, in one batch.
func TestOtherKeysGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "p1"), script("a", "p2"), script("b", "p3"), script("a", "p4"), script("b", "p5"), script("a", "p6"))
		bad := r.refusing(abi.StatusRetry, 2)
		_, push, stop := r.open(t.Context())
		push(5, r.events[:5])
		synctest.Wait()
		require.Equal(t, "1", r.note1("a"))
		require.Equal(t, "5", r.note1("b"))
		require.Equal(t, []string{"2 a FAILED 0/1", "4 a WAITING 0/0"}, r.states())
		require.Equal(t, []int64{1, 2, 2, 3, 5}, r.seen(), "once more to make sure, and not what waits")
		push(6, r.events[5:])
		synctest.Wait()
		require.Equal(t, []string{"2 a FAILED 0/1", "4 a WAITING 0/0", "6 a WAITING 0/0"}, r.states())

		began, pauses := time.Now(), []time.Duration{}
		for range 4 {
			for len(r.seen()) == 0 {
				time.Sleep(10 * time.Millisecond) // virtual time
				synctest.Wait()
			}
			pauses = append(pauses, time.Since(began))
			began = time.Now()
		}
		for i, want := range []float64{0.2, 0.4, 0.8, 1.6} {
			require.InDelta(t, want, pauses[i].Seconds(), 0.2*want+0.02)
		}
		require.Equal(t, []string{"2 a FAILED 0/5", "4 a WAITING 0/0", "6 a WAITING 0/0"}, r.states())
		applies := r.st.Applies()
		r.set(bad, 2, false)
		time.Sleep(10 * time.Second) // virtual time
		require.Empty(t, r.states())
		require.Equal(t, "6", r.note1("a"))
		require.Equal(t, []int64{2, 4, 6}, r.seen())
		require.Equal(t, applies+1, r.st.Applies())
		require.NoError(t, stop())
	})
}

// Each policy, for a message that fails for good: at once, after one run to make
// sure, and with what follows it.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for policy, want := range map[Exhausted]struct {
		note   string // of the key
		states []string
	}{
		ExhaustedHalt:          {"1", []string{"2 a HALTED 1/0"}},
		ExhaustedDeadLetterKey: {"1", []string{"2 a DEAD_LETTER_KEY 1/0", "4 a DEAD_LETTER_KEY 0/0", "5 a DEAD_LETTER_KEY 0/0"}},
		ExhaustedDeadLetter:    {"5", []string{"2 a DEAD_LETTER 1/0"}},
		ExhaustedSkip:          {"5", nil},
	} {
		for _, batch := range []int{1, 2, 256} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, script("a", "p1"), script("a", "p2"), script("b", "p3"), script("a", "p4"), script("a", "p5"))
				r.refusing(abi.StatusReject, 2)
				r.cfg.Delivery.OnExhausted, r.cfg.Batch = policy, batch
				err := r.settle(t.Context())
				if policy == ExhaustedHalt {
					var halt *HaltError
					require.ErrorAs(t, err, &halt)
				} else {
					require.NoError(t, err)
					require.Equal(t, "3", r.note1("b"))
				}
				require.Equal(t, want.note, r.note1("a"), policy)
				require.Equal(t, want.states, r.states(), policy)
				calls := 0
				for _, at := range r.seen() {
					if at == 2 {
						calls++
					}
				}
				require.Equal(t, 2, calls)
				if policy == ExhaustedSkip {
					require.Equal(t, []store.Skip{{Topic: store.EventsTopic, Partition: partition.Of("a", testPartitions), Position: 2, Key: "a"}}, r.st.SkipsOf(id))
				}
			})
		}
	}
}

// Another policy when the tries of a held head are used up, with messages that
// wait behind it.
func TestPoliciesBehindAHead(t *testing.T) {
	t.Parallel()
	for policy, want := range map[Exhausted]struct {
		note   string
		states []string
	}{
		ExhaustedHalt:          {"1", []string{"2 a HALTED 0/3", "3 a WAITING 0/0"}},
		ExhaustedDeadLetterKey: {"1", []string{"2 a DEAD_LETTER_KEY 0/3", "3 a DEAD_LETTER_KEY 0/0"}},
		ExhaustedDeadLetter:    {"3", []string{"2 a DEAD_LETTER 0/3"}},
		ExhaustedSkip:          {"3", nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, script("a", "p1"), script("a", "p2"), script("a", "p3"))
			r.refusing(abi.StatusRetry, 2)
			r.cfg.Delivery.OnExhausted, r.cfg.Delivery.MaxTransient, r.linger = policy, 3, time.Hour
			err := r.settle(t.Context())
			require.Equal(t, policy == ExhaustedHalt, err != nil)
			require.Equal(t, want.note, r.note1("a"), policy)
			require.Equal(t, want.states, r.states(), policy)
			// What comes later follows what holds its key, also in another session.
			r.linger = 0
			more := script("a", "p4")
			more.Position, more.ID[15], more.Type, more.Data = 4, 4, "T", []byte("p4")
			r.events = append(r.events, more)
			r.st.Append(more)
			require.NoError(t, r.settle(t.Context()))
			switch policy {
			case ExhaustedHalt:
				require.Equal(t, append(want.states, "4 a WAITING 0/0"), r.states())
			case ExhaustedDeadLetterKey:
				require.Equal(t, append(want.states, "4 a DEAD_LETTER_KEY 0/0"), r.states())
			default:
				require.Equal(t, "4", r.note1("a"))
			}
		})
	}
}

// What is due is tried also while there is no end of other messages.
func TestRetriesAreNotStarved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := []store.Event{script("a", "p1")}
		for i := range 3000 {
			events = append(events, script(fmt.Sprint("k", i%50), "a"))
		}
		r := newRig(t, events...)
		r.refusing(abi.StatusRetry, 1)
		r.cfg.CallMessages, r.end = 10, 1_000_000
		r.before = func(context.Context, int) error {
			time.Sleep(20 * time.Millisecond) // virtual time
			return nil
		}
		lanes, push, stop := r.open(t.Context())
		for at := 0; at < len(r.events); at += 10 {
			to := min(at+10, len(r.events))
			push(int64(to), r.events[at:to])
		}
		time.Sleep(4 * time.Second) // virtual time: all of it takes six
		require.Less(t, lanes[0].Applied(0), int64(2500))
		tries := 0
		for _, at := range r.seen() {
			if at == 1 {
				tries++
			}
		}
		require.GreaterOrEqual(t, tries, 4)
		require.NoError(t, stop())
	})
}

// An error that does not go away, in the middle of what one call was to do, commits
// nothing of that: the next session does it once (P1).
func TestUnknownErrorWithinAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "a"), script("b", "a"), script("a", "a"), script("b", "a T"), script("a", "a"))
		r.cfg.CallMessages = 2
		r.before = func(_ context.Context, entries int) error {
			if entries == 1 {
				return errors.New("a code nobody knows")
			}
			return nil
		}
		_, push, stop := r.open(t.Context())
		push(4, r.events[:4])
		var halt *HaltError
		require.ErrorAs(t, stop(), &halt)
		require.False(t, halt.Recorded)
		require.Equal(t, int64(4), halt.Halt.Position)
		r.before = nil
		require.NoError(t, r.settle(t.Context()))
		want := newNaive(r.tables)
		want.fold(t, r.events)
		r.requireRows(want)
	})
}

// The budget is spent over sessions: a new one goes on counting, and what is due
// later stays due later.
func TestBudgetSurvivesSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "p1"))
		r.refusing(abi.StatusRetry, 1)
		r.cfg.Delivery.MaxTransient = 10
		var err error
		sessions := 0
		for err == nil {
			sessions++
			require.Less(t, sessions, 1000)
			r.linger = 300 * time.Millisecond
			_, err = r.session(t.Context(), 0)
		}
		var halt *HaltError
		require.ErrorAs(t, err, &halt)
		require.Equal(t, []string{"1 a HALTED 0/10"}, r.states())
		require.Len(t, r.seen(), 11)
		require.Greater(t, sessions, 100, "200 ms doubled to 30 s take far longer than a session")
	})
}

// The age of a message that may pass is bounded too, by the database's clock, and
// counts anew once the consumer is resumed.
func TestTransientAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "p1"))
		r.refusing(abi.StatusRetry, 1)
		r.cfg.Delivery.MaxTransient, r.linger = 1_000_000, 100*time.Hour
		for range 2 {
			began := time.Now()
			_, err := r.session(t.Context(), 0)
			var halt *HaltError
			require.ErrorAs(t, err, &halt)
			require.InDelta(t, 24, time.Since(began).Hours(), 0.1)
			require.NoError(t, r.st.Resume(t.Context(), id, 0, "ops"))
		}
	})
}

// What the database refuses is found among the others by halving, recorded
// without being run, and has its own budget; of a message of several keys the
// innocent ones are applied.
func TestRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 17, 39} {
		synctest.Test(t, func(t *testing.T) {
			var events []store.Event
			for i := range 40 {
				events = append(events, script(fmt.Sprint(i%5), fmt.Sprint("a p", i)))
			}
			events[at] = script("own", "p1 !")
			r := newRig(t, events...)
			r.linger = time.Hour
			err := r.settle(t.Context())
			var halt *HaltError
			require.ErrorAs(t, err, &halt)
			require.Contains(t, halt.Halt.Message, "value out of range")
			require.Equal(t, []string{fmt.Sprintf("%d own HALTED 6/0", at+1)}, r.states())
			want := newNaive(r.tables)
			want.fold(t, slices.Concat(r.events[:at], r.events[at+1:]))
			r.requireRows(want)
		})
	}
}

// A retry that the database refuses counts against its own row, also if others
// were retried in the same batch.
func TestRefusedRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "p1"), script("own", "p2 !"), script("b", "p3"), script("c", "p4"), script("b", "p5"))
		bad := r.refusing(abi.StatusReject, 1, 2, 3, 4)
		r.cfg.Delivery.OnExhausted = ExhaustedDeadLetterKey
		require.NoError(t, r.settle(t.Context()))
		require.Len(t, r.states(), 5)
		clear(bad)
		_, err := r.st.RetryUndelivered(t.Context(), id, store.Selection{}, store.Action{Actor: "me"})
		require.NoError(t, err)
		r.linger = time.Second
		require.NoError(t, r.settle(t.Context()))
		require.Equal(t, "1", r.note1("a"))
		require.Equal(t, "5", r.note1("b"))
		require.Equal(t, "4", r.note1("c"))
		require.Equal(t, []string{"2 own FAILED"}, []string{strings.Join(strings.Fields(r.states()[0])[:3], " ")})
		r.linger = time.Hour
		require.NoError(t, r.settle(t.Context()))
		require.Equal(t, []string{"2 own DEAD_LETTER_KEY 6/0"}, r.states())
	})
}

// Promise P5 where all keys are one scope (H22): nothing is applied while a message
// is held, nothing is copied behind it, and a stop does not wait for it.
func TestFreeTableHoldsAll(t *testing.T) {
	t.Parallel()
	for _, policy := range []Exhausted{ExhaustedHalt, ExhaustedDeadLetterKey, ExhaustedDeadLetter} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, script("a", "p1"), script("b", "p2"), script("c", "p3"))
			bad := r.refusing(abi.StatusRetry, 2)
			r.cfg.Free, r.cfg.Delivery.OnExhausted, r.cfg.Delivery.MaxTransient = true, policy, 6
			lanes, push, stop := r.open(t.Context())
			push(3, r.events)
			time.Sleep(time.Second) // virtual time
			require.Equal(t, []string{"2 b FAILED 0/3"}, r.states())
			require.Empty(t, r.note1("c"))
			require.True(t, lanes[0].Stats().Blocked)
			if policy == ExhaustedDeadLetter {
				require.NoError(t, stop())
				require.Equal(t, int64(2), r.st.Lowest(id, store.EventsTopic))
				r.linger = time.Hour
				require.NoError(t, r.settle(t.Context()))
				require.Equal(t, "3", r.note1("c"))
				require.Equal(t, []string{"2 b DEAD_LETTER 0/6"}, r.states())
				return
			}
			time.Sleep(time.Hour) // virtual time
			var halt *HaltError
			require.ErrorAs(t, stop(), &halt)
			require.Equal(t, []string{"2 b HALTED 0/6"}, r.states())
			require.Empty(t, r.note1("c"))
			r.set(bad, 2, false)
			require.NoError(t, r.st.Resume(t.Context(), id, 0, "me"))
			require.NoError(t, r.settle(t.Context()))
			r.linger = time.Second
			require.NoError(t, r.settle(t.Context()))
			require.Equal(t, "3", r.note1("c"))
			require.Empty(t, r.states())
		})
	}
}

// Whatever is copied has a bound: reaching it halts the consumer, and no
// checkpoint passes what was not recorded.
func TestCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := []store.Event{script("a", "r")}
		for i := range 30 {
			events = append(events, script("a", fmt.Sprint("p", i)), script("b", "a"))
		}
		r := newRig(t, events...)
		r.cfg.Delivery.OnExhausted, r.cfg.Held = ExhaustedDeadLetterKey, &Held{Max: 10}
		for range 2 {
			_, err := r.session(t.Context(), 0)
			var halt *HaltError
			require.ErrorAs(t, err, &halt)
			require.False(t, halt.Recorded)
			require.Contains(t, halt.Halt.Message, "max_undelivered")
			require.Equal(t, int64(20), halt.Halt.Position)
			require.Len(t, r.states(), 10)
			require.Zero(t, r.cfg.Held.Count(), "what a lane counts goes with it")
		}
		require.Equal(t, int64(0), r.st.Lowest(id, store.EventsTopic))
		_, err := r.st.DeleteUndelivered(t.Context(), id, store.Selection{}, store.Action{Actor: "me"})
		require.NoError(t, err)
		require.NoError(t, r.settle(t.Context()))
		require.Equal(t, "29", r.note1("a"))
	})
}

// One message in 100,000 that fails costs a few calls of the guest (P5).
func TestOnePoisonCostsAFewCalls(t *testing.T) {
	t.Parallel()
	const n = 100_000
	var events []store.Event
	for i := range n {
		events = append(events, script(fmt.Sprint("k", i%1000), "z"))
	}
	calls := func(poison int) int {
		r := newRig(t, events...)
		if poison > 0 {
			r.events[poison].Data = []byte("t")
		}
		r.cfg.Delivery.OnExhausted, r.page = ExhaustedDeadLetter, 512
		require.NoError(t, r.settle(t.Context()))
		total := 0
		for _, g := range r.guests {
			total += g.Calls
		}
		return total
	}
	// What a call finds in the queue depends on how fast that is filled.
	clean := calls(0)
	require.LessOrEqual(t, calls(77_777), clean+10)
}

// A plugin that fails on every message halts at once, with one row.
func TestFailingOnEveryMessageHaltsAtOnce(t *testing.T) {
	t.Parallel()
	var events []store.Event
	for i := range 5000 {
		events = append(events, script(fmt.Sprint("k", i), "t"))
	}
	r := newRig(t, events...)
	_, err := r.session(t.Context(), 0)
	var halt *HaltError
	require.ErrorAs(t, err, &halt)
	require.Len(t, r.states(), 1)
	require.Equal(t, 2, r.guests[0].Calls)
}

// random failures: messages of few keys of which every few fail, for good, for a
// while, for the database, or in company only.
func failing(rng *rand.Rand, n int) []store.Event {
	events := random(rng, n)
	for i := range events {
		switch rng.IntN(8) {
		case 0:
			events[i].Data = []byte("u c1 r")
		case 1:
			events[i].Data = []byte("a R")
		case 2:
			events[i].Data = []byte("a T")
		case 3:
			if rng.IntN(4) == 0 {
				events[i] = script(fmt.Sprint("own", i), "a !")
			}
		}
	}
	return events
}

// what is left after a run, apart from ids and times.
func (r *rig) left() (out []string) {
	for _, m := range r.st.Undelivered(id) {
		out = append(out, fmt.Sprintf("%s %d %s %d %d/%d %s", m.Key, m.Event.Position, m.Status, m.Code, m.Attempts, m.Passing, m.Reason))
	}
	slices.Sort(out)
	return out
}

// Promise P7 with failures: however messages are cut into calls, batches, slices
// and lanes, and whatever restarts there are, rows, undelivered messages and skips
// come out the same.
func TestBatchSplitDoesNotShowInFailures(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		for _, policy := range []Exhausted{ExhaustedDeadLetterKey, ExhaustedDeadLetter, ExhaustedSkip} {
			t.Run(fmt.Sprint(seed, policy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 5))
					events := failing(rng, 120)
					var first *rig
					for _, batch := range []int{1, 7, 256, 0} {
						r := newRig(t, events...)
						r.cfg.Delivery.OnExhausted, r.cfg.Delivery.MaxTransient, r.cfg.Delivery.MaxAttempts, r.cfg.Batch = policy, 4, 1, batch
						r.cfg.CallMessages, r.cfg.CacheBytes = 1+rng.IntN(40), rng.IntN(2)*(1<<20)
						r.lanes, r.page = 1+rng.IntN(3), 1+rng.IntN(50)
						for range rng.IntN(3) {
							r.linger = time.Duration(rng.IntN(300)) * time.Millisecond
							if _, err := r.session(t.Context(), 1+rng.IntN(60)); err != nil {
								var refused *RefusedError
								require.ErrorAs(t, err, &refused)
							}
						}
						r.linger = time.Hour
						require.NoError(t, r.settle(t.Context()))
						require.Equal(t, int64(len(events)), r.st.Lowest(id, store.EventsTopic))
						if first == nil {
							first = r
							continue
						}
						require.Equal(t, first.left(), r.left())
						require.Equal(t, first.st.SkipsOf(id), r.st.SkipsOf(id))
						for i := range r.tables {
							require.Equal(t, first.st.Rows(id, i), r.st.Rows(id, i))
						}
					}
				})
			})
		}
	}
}

// Promises P1, P3 and P5: whichever call of the store fails, before or after doing
// its work, or takes the session with it, what is left in the end is the same.
func TestEveryStoreCallFailsWithFailures(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	faults := map[string]func() (before, after error){
		"before":          func() (error, error) { return &store.TransientError{Op: "x", Err: boom}, nil },
		"after":           func() (error, error) { return nil, &store.TransientError{Op: "x", Err: boom, OutcomeUnknown: true} },
		"unknown, before": func() (error, error) { return &store.TransientError{Op: "x", Err: boom, OutcomeUnknown: true}, nil },
		"fenced":          func() (error, error) { return store.ErrFenced, nil },
		"lost":            func() (error, error) { return nil, store.ErrFenced },
		"moved":           func() (error, error) { return store.ErrRetryMoved, nil },
	}
	events := failing(rand.New(rand.NewPCG(3, 1)), 40)
	run := func(t *testing.T, k int, fault func() (error, error)) (r *rig, hit bool) {
		r = newRig(t, events...)
		r.cfg.Batch, r.cfg.CallMessages, r.page, r.cfg.CacheBytes = 9, 4, 7, 0
		r.cfg.Delivery.OnExhausted, r.cfg.Delivery.MaxTransient, r.cfg.Delivery.MaxAttempts = ExhaustedDeadLetter, 3, 1
		r.linger = time.Minute
		var was atomic.Bool
		first := r.st.Calls()
		r.st.SetFault(func(call string, n int) (error, error) {
			if n-first != k {
				return nil, nil
			}
			was.Store(true)
			return fault()
		})
		require.NoError(t, r.settle(t.Context()))
		require.Equal(t, int64(len(events)), r.st.Lowest(id, store.EventsTopic))
		return r, was.Load()
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clean, _ := run(t, -1, nil)
				require.NotEmpty(t, clean.left())
				for k := 1; ; k++ {
					r, hit := run(t, k, fault)
					require.Equal(t, clean.left(), r.left(), "call %d", k)
					for i := range r.tables {
						require.Equal(t, clean.st.Rows(id, i), r.st.Rows(id, i), "call %d", k)
					}
					if !hit {
						require.Greater(t, k, 40)
						return
					}
				}
			})
		})
	}
}
