package lane

import (
	"bytes"
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

// Promise P7: the same messages give the same rows, however they are cut into
// calls, batches, slices and lanes, with a cache of any size, and with restarts
// in between.
func TestBatchSplitDoesNotShow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 0))
			events := random(rng, 300)
			var want *naive
			for _, batch := range []int{1, 7, 256, 0} {
				r := newRig(t, events...)
				if want == nil {
					want = newNaive(r.tables)
					want.fold(t, r.events)
				}
				r.cfg.Batch = batch
				r.cfg.CallMessages = 1 + rng.IntN(40)
				r.cfg.CacheBytes = rng.IntN(2) * (1 << 20)
				r.lanes = 1 + rng.IntN(3)
				r.page = 1 + rng.IntN(50)
				for range rng.IntN(4) {
					_, err := r.session(t.Context(), 1+rng.IntN(100))
					require.NoError(t, err)
				}
				require.NoError(t, r.settle(t.Context()))
				r.requireRows(want)
				require.Equal(t, int64(len(events)), r.st.Lowest(id, store.EventsTopic))
			}
		})
	}
}

// Promise P1: whichever call of the store fails, before or after doing its
// work, known or unknown to the caller, every message is applied exactly once.
func TestEveryStoreCallFails(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	faults := map[string]func() (before, after error){
		"before":          func() (error, error) { return &store.TransientError{Op: "x", Err: boom}, nil },
		"after":           func() (error, error) { return nil, &store.TransientError{Op: "x", Err: boom, OutcomeUnknown: true} },
		"unknown, before": func() (error, error) { return &store.TransientError{Op: "x", Err: boom, OutcomeUnknown: true}, nil },
		"fenced":          func() (error, error) { return store.ErrFenced, nil },
		"moved":           func() (error, error) { return store.ErrCheckpointMoved, nil },
		"odd":             func() (error, error) { return boom, nil },
	}
	events := random(rand.New(rand.NewPCG(1, 1)), 60)
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for k := 1; ; k++ {
					r := newRig(t, events...)
					want := newNaive(r.tables)
					want.fold(t, r.events)
					r.cfg.Batch, r.cfg.CallMessages, r.page, r.cfg.CacheBytes = 9, 4, 7, 0
					var hit atomic.Bool
					first := r.st.Calls()
					r.st.SetFault(func(call string, n int) (error, error) {
						if n-first != k {
							return nil, nil
						}
						hit.Store(true)
						return fault()
					})
					require.NoError(t, r.settle(t.Context()))
					r.requireRows(want)
					require.Equal(t, int64(len(events)), r.st.Lowest(id, store.EventsTopic))
					if !hit.Load() {
						require.Greater(t, k, 20)
						return
					}
				}
			})
		})
	}
}

// Promise P5 where the policy is to halt: the message that fails halts the
// consumer, whichever it is and however it fails: everything before it is
// committed, it is recorded with its copy, and nothing behind it is applied. A new
// session changes nothing of that; mended and resumed, it goes on as if nothing had
// been.
func TestHaltAtEveryMessage(t *testing.T) {
	t.Parallel()
	for word, code := range map[string]abi.Status{
		"t": abi.CodeTrap, "r": abi.StatusReject, "D": abi.CodeDeadline, "R": abi.StatusRetry,
		"I": abi.CodeMalformed, "s": abi.CodeMalformed, "!": abi.CodeData,
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for k := 1; k <= 12; k++ {
					events := random(rand.New(rand.NewPCG(2, 2)), 12)
					// What the message does before it fails must not be seen.
					events[k-1].Data = []byte("u c1 x2 " + word)
					// A later write of the row would hide it from the database, and with
					// a key of its own it holds no other message.
					events[k-1].AggregateID = "own"
					r := newRig(t, events...)
					r.linger = 100 * time.Hour
					want := newNaive(r.tables)
					if code == abi.StatusRetry || code == abi.CodeData {
						// The others go on while it has its tries.
						want.fold(t, slices.Concat(r.events[:k-1], r.events[k:]))
					} else {
						want.fold(t, r.events[:k-1])
					}
					err := r.settle(t.Context())
					var halt *HaltError
					require.ErrorAs(t, err, &halt)
					require.True(t, halt.Recorded)
					require.Equal(t, int(code), halt.Halt.Code)
					require.Equal(t, int64(k), halt.Halt.Position)
					require.Equal(t, "own", halt.Halt.Key)
					require.Equal(t, store.EventsTopic, halt.Halt.Topic)
					require.Equal(t, r.events[k-1].ID.String(), halt.Halt.EventID)
					con, err := r.st.Consumer(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, &halt.Halt, con.Halt)
					r.requireRows(want)
					rows := r.st.Undelivered(id)
					require.Len(t, rows, 1)
					require.Equal(t, store.StatusHalted, rows[0].Status)
					require.Equal(t, r.events[k-1], rows[0].Event)
					require.Equal(t, int(code), rows[0].Code)
					require.Equal(t, halt.Halt.Message, rows[0].Reason)

					// The copy is what is tried again: what the log has does not count.
					r.first = func(e *abi.Entry) (abi.Status, *plugins.Failure, bool) {
						e.Data = bytes.TrimSuffix(e.Data, []byte(word))
						return 0, nil, false
					}
					r.linger = time.Hour
					require.NoError(t, r.st.Resume(t.Context(), id, 0, "me"))
					require.NoError(t, r.settle(t.Context()))
					whole := newNaive(r.tables)
					r.events[k-1].Data = []byte("u c1 x2")
					whole.fold(t, r.events)
					r.requireRows(whole)
					require.Empty(t, r.st.Undelivered(id))
				}
			})
		})
	}
}

// A batch that the database refuses takes with it what was made on top of it
// meanwhile, also where that touches other partitions and would commit (P1).
func TestRefusedBatchTakesTheNextWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "u !"), script("b", "u"))
		require.NotEqual(t, partition.Of("a", testPartitions), partition.Of("b", testPartitions))
		r.cfg.Batch = 1
		// The refusal arrives while the guest is busy with the second message.
		r.before = func(context.Context, int) error {
			time.Sleep(time.Second) // virtual time
			return nil
		}
		_, push, stop := r.open(t.Context())
		push(2, r.events)
		time.Sleep(time.Minute) // virtual time
		var refused *RefusedError
		require.ErrorAs(t, stop(), &refused)
		require.Len(t, refused.Careful.Refusals, 1)
		require.Empty(t, r.st.Rows(id, tableOwn))
		r.note(0, refused)
		require.NoError(t, r.settle(t.Context()))
		require.Len(t, r.st.Rows(id, tableOwn), 1)
		rows := r.st.Undelivered(id)
		require.Len(t, rows, 1)
		require.Equal(t, int64(1), rows[0].Event.Position)
		require.Equal(t, int(abi.CodeData), rows[0].Code)
	})
}

// A guest that gets fewer children than it asked for knows that there are no
// more: the host does not cut an answer short by a bound of its own.
func TestListGivesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	var children strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&children, "k%04d ", i)
	}
	r := newRig(t, script("a", children.String()), script("a", "L1400"))
	r.cfg.Batch = 1
	want := newNaive(r.tables)
	want.fold(t, r.events)
	require.NoError(t, r.settle(t.Context()))
	r.requireRows(want)
}

// A message that only fails in company is an ordinary one, and what it did
// before it failed is not done twice.
func TestFailureInCompanyOnly(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"T", "B"} {
		for k := range 12 {
			events := random(rand.New(rand.NewPCG(3, 3)), 12)
			events[k].Data = []byte("a c1 " + word)
			r := newRig(t, events...)
			want := newNaive(r.tables)
			want.fold(t, r.events)
			r.lanes = 1 + k%3
			require.NoError(t, r.settle(t.Context()))
			r.requireRows(want)
		}
	}
}

// Whether a unique value is free is told by what came before in total order, in
// any batch split: values move from row to row, and the first message that
// takes one another row has is where the consumer halts.
func TestUniqueValues(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var events []store.Event
		for range 40 {
			key, do := fmt.Sprint(rng.IntN(5)), "N"
			if rng.IntN(3) > 0 {
				do = fmt.Sprintf("M%d", rng.IntN(9))
			}
			events = append(events, script(key, do))
		}
		for _, batch := range []int{1, 3, 40} {
			r := newRig(t, events...)
			want := newNaive(r.tables)
			bad := want.foldUntil(t, r.events)
			r.cfg.Batch, r.cfg.CallMessages, r.page = batch, 1+rng.IntN(9), 7
			r.cfg.CacheBytes = rng.IntN(2) * (1 << 20)
			err := r.settle(t.Context())
			if bad < 0 {
				require.NoError(t, err)
			} else {
				var halt *HaltError
				require.ErrorAs(t, err, &halt)
				require.Equal(t, int64(bad+1), halt.Halt.Position)
				require.Contains(t, halt.Halt.Message, "unique")
			}
			r.requireRows(want)
		}
	}
}

// A message with several keys is committed as a whole, also when it takes several
// calls; one of its keys that cannot be stored holds only that key.
func TestMessageOfSeveralKeys(t *testing.T) {
	t.Parallel()
	newSlice := func(r *rig, bad int) reader2 {
		e := &r.events[0]
		return reader2{event: e, keys: []string{"a", "b", "c", "d"}, bad: bad}
	}
	r := newRig(t, script("x", "u"), script("a", "a"))
	r.cfg.CallMessages = 1
	require.NoError(t, newSlice(r, -1).run(r))
	require.Len(t, r.st.Rows(id, tableOwn), 4)
	require.Equal(t, 1, r.st.Applies())

	for _, policy := range []Exhausted{ExhaustedHalt, ExhaustedDeadLetterKey, ExhaustedDeadLetter, ExhaustedSkip} {
		r = newRig(t, script("x", "u"), script("a", "a"))
		r.cfg.Delivery.OnExhausted = policy
		err := newSlice(r, 2).run(r)
		var halt *HaltError
		if policy == ExhaustedHalt {
			require.ErrorAs(t, err, &halt)
			require.Equal(t, "c", halt.Halt.Key)
		} else {
			require.NoError(t, err)
		}
		require.Len(t, r.st.Rows(id, tableOwn), 3)
		if policy == ExhaustedSkip {
			require.Equal(t, []store.Skip{{Topic: store.EventsTopic, Partition: partition.Of("c", testPartitions), Position: 1, Key: "c"}}, r.st.SkipsOf(id))
			continue
		}
		rows := r.st.Undelivered(id)
		require.Len(t, rows, 1)
		require.Equal(t, "c", rows[0].Key)
		require.Equal(t, int(abi.CodeMalformed), rows[0].Code)
	}
}

// Partitions without messages are saved at most once per IdleSave, and at the
// stop; one with messages moves with its batch.
func TestIdleCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "u"))
		lanes, push, stop := r.open(t.Context())
		push(1, r.events[:1])
		synctest.Wait()
		require.Equal(t, 1, r.st.Applies())
		require.Equal(t, int64(0), r.st.Lowest(id, store.EventsTopic))
		require.Equal(t, int64(1), lanes[0].Applied(0))

		for to := int64(2); to < 100; to++ {
			push(to, nil)
			time.Sleep(100 * time.Millisecond) // virtual time
		}
		require.Equal(t, int64(99), lanes[0].Applied(0))
		require.Equal(t, 1, r.st.Applies())
		time.Sleep(time.Minute) // virtual time
		require.Equal(t, 2, r.st.Applies())
		require.Equal(t, int64(99), r.st.Lowest(id, store.EventsTopic))
		time.Sleep(10 * time.Minute) // virtual time
		require.Equal(t, 2, r.st.Applies())

		push(200, nil)
		require.NoError(t, stop())
		require.Equal(t, 3, r.st.Applies())
		require.Equal(t, int64(200), r.st.Lowest(id, store.EventsTopic))
	})
}

// Behind the tail a batch ends with the rows it changes, not with the messages
// that change them.
func TestBatchesAreBoundedByRows(t *testing.T) {
	t.Parallel()
	for keys, batches := range map[int]int{1: 1, 5: 1, 60: 6} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []store.Event
				for i := range 60 {
					events = append(events, script(fmt.Sprint(i%keys), "a"))
				}
				r := newRig(t, events...)
				r.cfg.BatchRows, r.cfg.CallMessages, r.cfg.BatchAge, r.end = 10, 5, time.Hour, 1000
				lanes, push, stop := r.open(t.Context())
				push(60, r.events)
				synctest.Wait()
				if batches > 1 {
					require.Equal(t, batches, r.st.Applies())
				} else {
					require.Zero(t, r.st.Applies())
					time.Sleep(r.cfg.BatchAge) // virtual time
					synctest.Wait()
					require.Equal(t, 1, r.st.Applies())
				}
				require.Equal(t, int64(60), lanes[0].Applied(0))
				require.NoError(t, stop())
				want := newNaive(r.tables)
				want.fold(t, r.events)
				r.requireRows(want)
			})
		})
	}
}

// While one batch commits the guest works on the next, on rows the database
// does not have yet, and what was waiting becomes one batch.
func TestPipelining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "a c1"), script("a", "a c2 g"), script("a", "a l0"), script("a", "a x1"))
		gate := make(chan struct{})
		r.st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" {
				<-gate
			}
			return nil, nil
		})
		lanes, push, stop := r.open(t.Context())
		for i := range r.events {
			push(int64(i+1), r.events[i:i+1])
			synctest.Wait()
		}
		require.Equal(t, 4, r.guests[0].Calls)
		require.Equal(t, int64(0), lanes[0].Applied(0))
		require.Zero(t, r.st.Applies())
		close(gate)
		synctest.Wait()
		require.Equal(t, 2, r.st.Applies())
		require.Equal(t, int64(4), lanes[0].Applied(0))
		require.NoError(t, stop())
		want := newNaive(r.tables)
		want.fold(t, r.events)
		r.requireRows(want)
	})
}

// A slice that does not join the one before, or is of another incarnation, is
// never applied.
func TestRefusesSlices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "u"))
		lanes, push, stop := r.open(t.Context())
		push(1, r.events)
		require.NoError(t, lanes[0].Queue().Push(t.Context(), slice(2, 3)))
		require.ErrorIs(t, stop(), errGap)

		r = newRig(t, script("a", "u"))
		lanes, _, stop = r.open(t.Context())
		s := slice(0, 3)
		s.Incarnation = 7
		require.NoError(t, lanes[0].Queue().Push(t.Context(), s))
		require.ErrorIs(t, stop(), store.ErrIncarnation)
	})
}

// A panic of the host's own code ends the lane with its stack, and nothing is
// committed after it.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	r := newRig(t, script("a", "u"), script("a", "P"))
	r.cfg.Batch = 1
	_, err := r.session(t.Context(), 0)
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.Contains(t, string(p.Stack), "handle")
	require.ErrorContains(t, err, "a bug of the host")
	// The panic left the guest in the middle of a call: it is closed all the same.
	for _, g := range r.guests {
		g.Closed = true
	}
}

// While the database does not answer the lane says so, and it stops at once
// when it is told to.
func TestRetryingIsVisible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, script("a", "u"))
		r.st.SetFault(func(call string, _ int) (error, error) {
			if call == "Apply" {
				return &store.TransientError{Op: "apply", Err: errors.New("full")}, nil
			}
			return nil, nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		_, push, stop := r.open(ctx)
		push(1, r.events)
		time.Sleep(time.Second) // virtual time
		r.mu.Lock()
		require.NotEmpty(t, r.retrying)
		require.ErrorContains(t, r.retrying[0], "full")
		r.mu.Unlock()
		why := errors.New("shut down")
		cancel(why)
		require.ErrorIs(t, stop(), why)
		require.Zero(t, r.st.Applies())
	})
}

// An error of unknown class is tried a few times, then the consumer halts.
func TestUnknownErrorHalts(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"Apply", "LoadRows"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, script("a", "u"))
			var tries atomic.Int32
			r.st.SetFault(func(c string, _ int) (error, error) {
				if c == call {
					tries.Add(1)
					return errors.New("a code nobody knows"), nil
				}
				return nil, nil
			})
			_, err := r.session(t.Context(), 0)
			var halt *HaltError
			require.ErrorAs(t, err, &halt)
			require.Equal(t, int(abi.CodeDatabase), halt.Halt.Code)
			require.Equal(t, int64(1), halt.Halt.Position)
			require.Equal(t, int32(11), tries.Load())
		})
	}
}

// When a guest runs out of memory in company its calls get smaller, and grow
// again.
func TestCallsShrinkAndGrow(t *testing.T) {
	t.Parallel()
	var events []store.Event
	for i := range 400 {
		events = append(events, script(fmt.Sprint(i), "u"))
	}
	events[200].Data = []byte("T")
	r := newRig(t, events...)
	r.page = 100
	r.cfg.CallMessages = 100
	sizes := make([]int, 0)
	r.before = func(_ context.Context, n int) error {
		sizes = append(sizes, n)
		return nil
	}
	require.NoError(t, r.settle(t.Context()))
	require.Contains(t, sizes, 100)
	require.Contains(t, sizes, 50)
	require.Equal(t, 1, sizes[3])
}
