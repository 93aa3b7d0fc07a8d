package plugins

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

var errDatabase = errors.New("the database is gone")

func misuse(t *testing.T, mode Mode) *Instance {
	t.Helper()
	return newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
}

// An error of the sink is the guest's fault unless it is marked.
func TestSinkErrors(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		for _, at := range []int{0, 1, 2} { // first, middle, last
			r := newRecorder()
			r.failAt, r.doneErr = at, errors.New("column\x1b[1m 7 is unknown")
			done, fail, err := i.Apply(t.Context(), 0, entries("o", "o", "o"), r)
			require.NoError(t, err)
			require.Equal(t, at, done)
			require.Equal(t, at, fail.Index)
			require.Equal(t, abi.CodeMalformed, fail.Code)
			require.Equal(t, `column\x1b[1m 7 is unknown`, fail.Message)
			require.Empty(t, fail.Trap)
			require.True(t, fail.Deterministic)
			requireHealthy(t, i)

			r = newRecorder()
			r.failAt, r.doneErr = at, fmt.Errorf("fold: %w", HostFault(errDatabase))
			done, fail, err = i.Apply(t.Context(), 0, entries("o", "o", "o"), r)
			require.Equal(t, errDatabase, err)
			require.Nil(t, fail)
			require.Equal(t, at, done)
			requireHealthy(t, i)
		}
		r := newRecorder()
		r.getErr = HostFault(errDatabase)
		for _, data := range []string{"k0", "K\x01\x00\x00\x00\x00\x00", "j\x05"} {
			_, fail, err := i.Apply(t.Context(), 0, entries("o", data, "o"), r)
			require.Equal(t, errDatabase, err)
			require.Nil(t, fail)
			requireHealthy(t, i)
		}
	})
}

// A panic of the caller's own code comes back as an error, not as a failure of
// the guest, and does not end the process.
func TestSinkPanics(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		for _, at := range []int{0, 2} {
			r := newRecorder()
			r.onDone = func(index int) {
				if index == at {
					panic("boom")
				}
			}
			done, fail, err := i.Apply(t.Context(), 0, entries("o", "o", "o"), r)
			require.ErrorContains(t, err, "boom")
			require.ErrorContains(t, err, "panic while the host took")
			require.Nil(t, fail)
			require.Equal(t, at, done)
			requireHealthy(t, i)
		}
	})
}

func TestReads(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		r := newRecorder()
		r.rows = map[string][]byte{"0": []byte("\x00\x00own"), "1child": []byte("0123456789abcdef0"), "1\x01\x00\x00\x00x": {1, 0, 2}}
		many := "K" + u32(3) + "\x00\x00" + "\x01\x00" + u32(1) + "x" + "\x01\x00" + u32(1) + "y"
		es := entries("k0", "k1nobody", "k9", "k1child", many, "K\xff", "j\x05after", "j\x00", "K"+u32(1)+"\x09\x00")
		done, fail, err := i.Apply(t.Context(), 0, es, r)
		require.NoError(t, err)
		require.Nil(t, fail)
		require.Equal(t, len(es), done)
		ops := func(k, n int) (int64, string) {
			s := r.results[k].ops
			return int64(binary.LittleEndian.Uint64([]byte(s))), s[8 : 8+n]
		}
		n, got := ops(0, 5)
		require.EqualValues(t, 5, n)
		require.Equal(t, "\x00\x00own", got)
		n, _ = ops(1, 0)
		require.EqualValues(t, -1, n, "absent")
		n, _ = ops(2, 0)
		require.EqualValues(t, -2, n, "no such table")
		n, _ = ops(3, 0)
		require.EqualValues(t, 17, n, "its length, because it does not fit")
		n, got = ops(4, 15)
		require.EqualValues(t, 15, n)
		require.Equal(t, u32(3)+"\x01\x00\x00own"+"\x01\x01\x00\x02"+"\x00", got)
		n, _ = ops(5, 0)
		require.EqualValues(t, -2, n, "no request")
		n, got = ops(6, 10)
		require.EqualValues(t, 10, n)
		require.Equal(t, "1||after|5", got)
		n, _ = ops(7, 0)
		require.EqualValues(t, -2, n, "limit 0")
		n, _ = ops(8, 0)
		require.EqualValues(t, -2, n, "no such table")
	})
}

func u32(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }

// WASI gives nothing of the machine away.
func TestWASI(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		r, _, fail := apply(t, i, entries("n"))
		require.Nil(t, fail)
		require.Equal(t, u32(errnoNosys)+u32(0)+u32(0)+u32(1)+u64(42), r.results[0].ops,
			"path_open ENOSYS; no arguments; poll_oneoff tells of one event, with its user data")
	})
}

func TestKeys(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		keys := func(ks ...string) string { return "." + string(abi.AppendKeys(nil, ks...)) }
		ask := func(es []abi.Entry) (got []string, done int, fail *Failure, err error) {
			done, fail, err = i.Keys(t.Context(), 1, es, func(index int, ks [][]byte) error {
				require.Equal(t, len(got), index)
				got = append(got, string(joinBytes(ks)))
				return nil
			})
			return got, done, fail, err
		}
		got, done, fail, err := ask(entries(keys("a", "b"), keys(), keys("c")))
		require.NoError(t, err)
		require.Nil(t, fail)
		require.Equal(t, 3, done)
		require.Equal(t, []string{"a,b", "", "c"}, got)

		got, done, fail, err = ask(entries(keys("a"), ".\xff", keys("c")))
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, got)
		require.Equal(t, 1, done)
		require.Equal(t, abi.CodeMalformed, fail.Code)
		require.Contains(t, fail.Message, "malformed keys")

		got, _, fail, err = ask(entries(keys("a"), "u", keys("c")))
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, got)
		require.Equal(t, abi.CodeTrap, fail.Code)
		requireHealthy(t, i)

		_, fail, err = i.Keys(t.Context(), 1, entries(keys("a")), func(int, [][]byte) error { return HostFault(errDatabase) })
		require.Equal(t, errDatabase, err)
		require.Nil(t, fail)
	})
}

func joinBytes(bs [][]byte) []byte {
	var ss []string
	for _, b := range bs {
		ss = append(ss, string(b))
	}
	return []byte(strings.Join(ss, ","))
}

func TestBatchesThatAreNone(t *testing.T) {
	i := misuse(t, Interpret)
	done, fail, err := i.Apply(t.Context(), 0, nil, newRecorder())
	require.Zero(t, done)
	require.Nil(t, fail)
	require.NoError(t, err)
	require.Zero(t, i.Stats().Calls)

	for _, consumer := range []int{-1, 2} {
		_, _, err = i.Apply(t.Context(), consumer, entries("i"), newRecorder())
		require.ErrorContains(t, err, "has 2 consumers")
	}
}

// A frame fits to the last byte or is refused before the guest is called.
func TestFrameLimit(t *testing.T) {
	i := misuse(t, Compile)
	es := entries("o")
	es[0].Data = []byte("o" + strings.Repeat("x", i.FrameMax()-abi.FrameSize(es)))
	require.Equal(t, i.FrameMax(), abi.FrameSize(es))
	require.True(t, i.FrameFits(es))
	r, _, fail := apply(t, i, es)
	require.Nil(t, fail)
	require.Equal(t, string(es[0].Data[1:]), r.results[0].ops)

	es[0].Data = append(es[0].Data, 'x')
	require.False(t, i.FrameFits(es))
	_, _, err := i.Apply(t.Context(), 0, es, newRecorder())
	var tooLarge *FrameError
	require.ErrorAs(t, err, &tooLarge)
	require.Equal(t, FrameError{Size: i.FrameMax() + 1, Max: i.FrameMax(), Entries: 1}, *tooLarge)
	requireHealthy(t, i)
}

// The caller's context is not the guest's doing: a cancelled call is an error
// with the caller's cause, and the instance serves the next one.
func TestCallEndsWithItsContext(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.Timeout = time.Minute
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), s))
		stop := errors.New("the lease is lost")
		for _, data := range []string{"L", "B"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			r := newRecorder()
			r.onDone = func(int) { cancel(stop) }
			_, fail, err := i.Apply(ctx, 0, entries("o", data), r)
			require.Equal(t, stop, err)
			require.Nil(t, fail)
			requireHealthy(t, i)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, fail, err := i.Apply(ctx, 0, entries("o", "L"), newRecorder())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Nil(t, fail, "a deadline of the caller's is not the guest's")
		requireHealthy(t, i)

		_, _, err = i.Apply(ctx, 0, entries("o"), newRecorder())
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Without a time limit a guest cannot be stopped in a loop, but it is at its
// next answer.
func TestCallEndsAtTheNextAnswer(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := misuse(t, mode)
		ctx, cancel := context.WithCancel(t.Context())
		r := newRecorder()
		r.onDone = func(int) { cancel() }
		done, fail, err := i.Apply(ctx, 0, entries("o", "o", "o", "o"), r)
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, fail)
		require.Equal(t, 1, done)
		requireHealthy(t, i)
	})
}

// A deadline that falls on the end of a call must not kill the next one: the
// engine closes a module from a goroutine of its own.
func TestDeadlineAtTheEndOfACall(t *testing.T) {
	s := testSettings()
	s.Timeout = time.Minute
	m := load(t, Compile, hostile(t, "misuse"), s)
	i := newInstance(t, m)
	const limit = 2 * time.Millisecond
	ended := map[bool]int{}
	for round := range 300 {
		r := newRecorder()
		wait := limit - 300*time.Microsecond + time.Duration(round)*time.Microsecond
		r.onDone = func(index int) {
			// Busy, because a sleep is too coarse to end beside the deadline.
			for start := time.Now(); index == 0 && time.Since(start) < wait; {
			}
		}
		m.settings.Timeout = limit
		_, fail, err := i.Apply(t.Context(), 0, entries("o", "o", "o"), r)
		require.NoError(t, err)
		if fail != nil {
			require.Equal(t, abi.CodeDeadline, fail.Code, "%v", fail)
		}
		ended[fail == nil]++
		m.settings.Timeout = time.Minute
		_, fail, err = i.Apply(t.Context(), 0, entries("o"), newRecorder())
		require.NoError(t, err)
		require.Nil(t, fail, "a call of its own time")
	}
	t.Logf("%d calls ended in time, %d did not", ended[true], ended[false])
}

func TestClose(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		e := newTestEngine(t, mode)
		m, err := e.Load(t.Context(), hostile(t, "misuse"), testSettings())
		require.NoError(t, err)
		i := newInstance(t, m)
		other := newInstance(t, m)

		require.NoError(t, i.Close(t.Context()))
		require.NoError(t, i.Close(t.Context()))
		_, _, err = i.Apply(t.Context(), 0, entries("i"), newRecorder())
		require.ErrorIs(t, err, errInstanceClosed)

		// A close waits for the call under way, and does not break it.
		var wg sync.WaitGroup
		r := newRecorder()
		r.onDone = func(index int) {
			if index == 0 {
				wg.Go(func() { _ = e.Close(context.Background()) })
			}
		}
		_, fail, err := other.Apply(t.Context(), 0, entries("o", "c", "o", "o"), r)
		require.NoError(t, err)
		require.Nil(t, fail)
		wg.Wait()
		_, _, err = other.Apply(t.Context(), 0, entries("i"), newRecorder())
		require.ErrorIs(t, err, errInstanceClosed)
		_, err = m.NewInstance(t.Context())
		require.ErrorIs(t, err, errModuleClosed)
		_, err = e.Load(t.Context(), hostile(t, "misuse"), testSettings())
		require.ErrorIs(t, err, errEngineClosed)
		require.NoError(t, m.Close(t.Context()))
	})
}

// Lanes of one module work at the same time, fail, and are made anew.
func TestManyLanes(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.Timeout = time.Minute
		m := load(t, mode, hostile(t, "misuse"), s)
		var wg sync.WaitGroup
		for lane := range 8 {
			wg.Go(func() {
				i, err := m.NewInstance(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for round := range 30 {
					bad := []string{"u", "g", "M", "r", "o", "x"}[(lane+round)%6]
					r := newRecorder()
					_, _, err := i.Apply(t.Context(), 0, entries("c", "c", bad, "i"), r)
					if err != nil || len(r.results) < 2 || r.results[1].ops != counts(2) {
						t.Errorf("lane %d, round %d: %v, %v", lane, round, err, r.results)
					}
				}
				if err := i.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Empty(t, m.instances)
	})
}

// A database that is slow to answer does not use up the guest's time, as long
// as the guest does not live by asking.
func TestTimeInTheSinkIsAllowedFor(t *testing.T) {
	s := testSettings()
	s.Timeout = shortTimeout
	i := newInstance(t, load(t, Compile, hostile(t, "misuse"), s))
	slow := func(wait time.Duration) *slowSink { return &slowSink{recorder: newRecorder(), wait: wait} }

	_, fail, err := i.Apply(t.Context(), 0, entries("k0", "k0", "o"), slow(shortTimeout*3/4))
	require.NoError(t, err)
	require.Nil(t, fail)

	done, fail, err := i.Apply(t.Context(), 0, entries("k0", "L", "o"), slow(shortTimeout*3/4))
	require.NoError(t, err)
	require.Equal(t, 1, done)
	require.Equal(t, abi.CodeDeadline, fail.Code)

	_, fail, err = i.Apply(t.Context(), 0, entries("k0", "k0", "k0", "k0", "k0", "k0", "L"), slow(shortTimeout))
	require.NoError(t, err)
	require.Equal(t, abi.CodeDeadline, fail.Code)
	require.Less(t, fail.Index, 6, "there is an end to it")
	requireHealthy(t, i)
}

// The same goes for a sink that takes its time over a result, which may need a
// row that the guest never asked for.
func TestTimeOfAResultIsAllowedFor(t *testing.T) {
	s := testSettings()
	s.Timeout = shortTimeout
	i := newInstance(t, load(t, Compile, hostile(t, "misuse"), s))
	sink := &slowResults{recorder: newRecorder(), wait: shortTimeout * 3 / 4}
	_, fail, err := i.Apply(t.Context(), 0, entries("o", "o", "o"), sink)
	require.NoError(t, err)
	require.Nil(t, fail)
}

type slowResults struct {
	*recorder
	wait time.Duration
}

func (s *slowResults) Done(index int, status abi.Status, ops []byte) error {
	time.Sleep(s.wait) // stands for a database: the engine's clock is the wall's
	return s.recorder.Done(index, status, ops)
}

type slowSink struct {
	*recorder
	wait time.Duration
}

func (s *slowSink) Get(table uint16, key []byte) ([]byte, bool, error) {
	time.Sleep(s.wait) // stands for a database: the engine's clock is the wall's
	return s.recorder.Get(table, key)
}
