package plugins

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

// counts is what misuse's command c gives at the n-th time.
func counts(n int) string {
	b := binary.LittleEndian.AppendUint64(nil, uint64(n))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(0.5+float64(n)))
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	return string(binary.LittleEndian.AppendUint64(b, uint64(n)))
}

// Promise P6: whatever a guest does at an entry, that entry fails with a code
// that says so, the entries before it keep their results, and the next batch
// finds a guest as good as new.
func TestHostileEntryFailsAlone(t *testing.T) {
	tests := []struct {
		name, data string
		code       abi.Status
		message    string // contained in the message
		trap       string // contained in the trap; empty: no trap
	}{
		{"reject", "rno such thing", abi.StatusReject, "no such thing", ""},
		{"fatal", "f", abi.StatusFatal, "no reason given", ""},
		{"retry", "y", abi.StatusRetry, "no reason given", ""},
		{"unknown status", "9", abi.CodeMalformed, "done(2, 9): unknown status", ""},
		{"ignored with ops", "Ixyz", abi.CodeMalformed, "an ignored entry has none", ""},

		{"unreachable", "u", abi.CodeTrap, "unreachable in work, called by ph_apply", "unreachable in work"},
		{"division by zero", "z", abi.CodeTrap, "integer divide by zero", "integer divide by zero"},
		{"out of bounds", "a", abi.CodeTrap, "out of bounds memory access", "out of bounds memory access"},
		{"endless recursion", "R", abi.CodeTrap, "stack overflow", "stack overflow"},
		{"exit", "x", abi.CodeTrap, "exit(3)", "exit(3) in "},
		{"Go panic", "s", abi.CodeTrap, "panic: boom", "exit(2) in "},
		{"Rust panic", "S", abi.CodeTrap, "thread 'main' panicked at src/lib.rs:5:9:; index out of bounds", "unreachable"},
		{"huge reason", "b", abi.StatusReject, strings.Repeat(`\x1b`, 300) + "…", ""},

		{"all the memory", "M", abi.CodeMemory, "memory limit of 4194304 bytes reached", "unreachable"},

		{"done outside memory", "P", abi.CodeMalformed, "done: ops: 1 bytes at 0x", ""},
		{"done with a length that wraps", "p", abi.CodeMalformed, "done: ops: 4294967295 bytes at 0x10", ""},
		{"get with a bad key", "G", abi.CodeMalformed, "get: key: 4 bytes at 0xffffffff", ""},
		{"get with bad room", "H", abi.CodeMalformed, "get: room", ""},
		{"get_many with a bad request", "Q", abi.CodeMalformed, "get_many: request", ""},
		{"list with a bad key", "J", abi.CodeMalformed, "list: key", ""},
		{"log outside memory", "X", abi.CodeMalformed, "log: 8 bytes at 0xfffffffc", ""},
		{"fail outside memory", "F", abi.CodeMalformed, "fail: 8 bytes", ""},
		{"random outside memory", "Z", abi.CodeMalformed, "random: 8 bytes", ""},

		{"out of order", "O", abi.CodeOrder, "done(3) where entry 2 is next", ""},
		{"another index", "A", abi.CodeOrder, "done(1000) where entry 2 is next", ""},
		{"never answered", "N", abi.CodeOrder, "done(3) where entry 2 is next", ""},
		{"goes on after a negative answer", "C", abi.StatusReject, "no reason given", ""},
		{"returns early", "e", abi.CodeOrder, "ph_apply returned after 2 of 4 entries", ""},
		{"keys in ph_apply", "U", abi.CodeOrder, "keys is for ph_keys", ""},
	}
	bothModes(t, func(t *testing.T, mode Mode) {
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r, done, fail := apply(t, i, entries("ofirst", "c", test.data, "olast"))
				require.NotNil(t, fail)
				require.Equal(t, 2, done)
				require.Equal(t, []result{{0, abi.StatusOK, "first"}, {1, abi.StatusOK, counts(1)}}, r.results)
				require.Equal(t, test.code, fail.Code, "%v", fail)
				require.Contains(t, fail.Message, test.message)
				if test.trap == "" {
					require.Empty(t, fail.Trap)
				} else {
					require.Contains(t, fail.Trap, test.trap)
				}
				requireHealthy(t, i)
			})
		}
	})
}

// A guest that answers everything and then breaks has not answered its last
// entry: the sink never sees that result.
func TestHostileEndOfBatch(t *testing.T) {
	tests := []struct {
		name, data string
		code       abi.Status
		message    string
	}{
		{"answers the last entry twice", "Tx", abi.CodeOrder, "done(1) after all 2 entries were answered"},
		{"never answers the last entry", "N", abi.CodeOrder, "ph_apply returned after 1 of 2 entries"},
		{"returns another count", "vx", abi.CodeOrder, "ph_apply returned 3 after 2 calls of done"},
		{"traps after its answer", "qx", abi.CodeTrap, "unreachable"},
		{"out of order at the end", "O", abi.CodeOrder, "done(2) where entry 1 is next"},
	}
	bothModes(t, func(t *testing.T, mode Mode) {
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r, done, fail := apply(t, i, entries("ofirst", test.data))
				require.NotNil(t, fail)
				require.Equal(t, 1, done)
				require.Equal(t, []result{{0, abi.StatusOK, "first"}}, r.results)
				require.Equal(t, test.code, fail.Code, "%v", fail)
				require.Contains(t, fail.Message, test.message)
				requireHealthy(t, i)
			})
		}
	})
}

// What looks odd and is allowed.
func TestOddButFine(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), testSettings()))
		for _, data := range []string{"m", "g", "Dx", "o"} {
			_, _, fail := apply(t, i, entries(data))
			require.Nil(t, fail, data)
			requireHealthy(t, i)
		}
		for _, data := range []string{"W", "V"} {
			r, _, fail := apply(t, i, entries(data))
			require.Nil(t, fail, data)
			require.Equal(t, "\x15", r.results[0].ops, "fd_write answers EFAULT")
		}
		require.EqualValues(t, 2, i.Stats().Instantiated, "m and g grew the memory, which is made anew")
	})
}

func TestHostileLoopsEndAtTheTimeLimit(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.Timeout = shortTimeout
		i := newInstance(t, load(t, mode, hostile(t, "misuse"), s))
		for _, data := range []string{"L", "B"} {
			r, done, fail := apply(t, i, entries("ofirst", data, "olast"))
			require.NotNil(t, fail)
			require.Equal(t, 1, done)
			require.Len(t, r.results, 1)
			require.Equal(t, abi.CodeDeadline, fail.Code, "%v", fail)
			require.Equal(t, "it took longer than 500ms", fail.Message)
			require.False(t, fail.Deterministic)
			requireHealthy(t, i)
		}
		_, _, fail := apply(t, i, entries("ofirst", "l", "olast"))
		require.NotNil(t, fail)
		require.Equal(t, abi.StatusReject, fail.Code, "its rejection came first")
		requireHealthy(t, i)
	})
}

// Calls that branch out without any loop end as well: by table, each function
// calling the other.
func TestHostileRecursionEndsAtTheTimeLimit(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.Timeout = shortTimeout
		i := newInstance(t, load(t, mode, hostile(t, "mutual"), s))
		for range 2 {
			_, _, fail := apply(t, i, entries("", ""))
			require.NotNil(t, fail)
			require.Equal(t, abi.CodeDeadline, fail.Code, "%v", fail)
		}
	})
}
