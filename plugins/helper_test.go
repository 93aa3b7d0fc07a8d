package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

const hostileDir = "../testplugins/hostile"

func hostile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(hostileDir, name+".wasm"))
	require.NoError(t, err)
	return b
}

// testLog writes to the test's output.
func testLog(t testing.TB) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: t.Output()})
}

// bothModes runs a test with the compiler and the interpreter.
func bothModes(t *testing.T, f func(t *testing.T, mode Mode)) {
	t.Run("compiler", func(t *testing.T) { t.Parallel(); f(t, Compile) })
	t.Run("interpreter", func(t *testing.T) { t.Parallel(); f(t, Interpret) })
}

func newTestEngine(t testing.TB, mode Mode) *Engine {
	t.Helper()
	e, err := NewEngine("", testLog(t), mode)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close(context.Background())) })
	return e
}

func testSettings() Settings {
	s := DefaultSettings("tested")
	s.MemoryLimit = 4 << 20
	s.FrameMax = 256 << 10
	s.Timeout = 0
	s.LogLineMax = 300
	return s
}

func load(t testing.TB, mode Mode, wasm []byte, s Settings) *Module {
	t.Helper()
	m, err := newTestEngine(t, mode).Load(t.Context(), wasm, s)
	require.NoError(t, err)
	return m
}

func newInstance(t testing.TB, m *Module) *Instance {
	t.Helper()
	i, err := m.NewInstance(t.Context())
	require.NoError(t, err)
	return i
}

// reasons loads a module that must be rejected.
func reasons(t testing.TB, mode Mode, wasm []byte, s Settings) []string {
	t.Helper()
	_, err := newTestEngine(t, mode).Load(t.Context(), wasm, s)
	var reject *RejectError
	require.ErrorAs(t, err, &reject)
	require.Equal(t, s.Name, reject.Name)
	return reject.Reasons
}

// entries makes one entry per data; everything in it follows from its number
// among all entries, first being that of the first one.
func entriesFrom(first int, data ...string) []abi.Entry {
	es := make([]abi.Entry, len(data))
	for i := range es {
		n := first + i
		es[i] = abi.Entry{
			Position: uint64(100 + n), Sequence: uint64(n + 1), TimeUS: 1_700_000_000_000_000 + int64(n)*1_000_000,
			Type: abi.TypeByName, Key: fmt.Sprintf("key-%d", n), TypeName: "Happened",
			AggregateType: "thing", AggregateID: fmt.Sprintf("thing-%d", n), Data: []byte(data[i]),
		}
		es[i].ID[0], es[i].ID[15] = byte(n>>8), byte(n)
	}
	return es
}

func entries(data ...string) []abi.Entry { return entriesFrom(0, data...) }

type result struct {
	index  int
	status abi.Status
	ops    string
}

// recorder is a sink that keeps what it gets and answers from maps.
type recorder struct {
	results []result
	rows    map[string][]byte // by table digit and key
	failAt  int               // Done of this index fails with doneErr
	doneErr error
	getErr  error
	onDone  func(index int)
}

func newRecorder() *recorder { return &recorder{failAt: -1} }

func (r *recorder) Done(index int, status abi.Status, ops []byte) error {
	if r.onDone != nil {
		r.onDone(index)
	}
	if index == r.failAt {
		return r.doneErr
	}
	r.results = append(r.results, result{index, status, string(ops)})
	return nil
}

func (r *recorder) Get(table uint16, key []byte) ([]byte, bool, error) {
	if r.getErr != nil {
		return nil, false, r.getErr
	}
	if table > 1 {
		return nil, false, errors.New("no such table")
	}
	row, ok := r.rows[fmt.Sprint(table)+string(key)]
	return row, ok, nil
}

func (r *recorder) List(table uint16, key, after []byte, limit int) ([]byte, error) {
	if r.getErr != nil {
		return nil, r.getErr
	}
	return fmt.Appendf(nil, "%d|%s|%s|%d", table, key, after, limit), nil
}

func apply(t testing.TB, i *Instance, es []abi.Entry) (*recorder, int, *Failure) {
	t.Helper()
	r := newRecorder()
	done, fail, err := i.Apply(t.Context(), 0, es, r)
	require.NoError(t, err)
	require.Len(t, r.results, done, "done counts what the sink got")
	for k, res := range r.results {
		require.Equal(t, k, res.index)
	}
	if fail == nil {
		require.Equal(t, len(es), done)
	} else {
		require.Equal(t, done, fail.Index)
		require.Equal(t, i.module.Digest(), fail.Digest)
		require.Equal(t, fail.Code.Deterministic(), fail.Deterministic)
	}
	return r, done, fail
}

// requireHealthy shows that whatever happened before left no trace.
func requireHealthy(t testing.TB, i *Instance) {
	t.Helper()
	r, done, fail := apply(t, i, entries("oone", "i", "c", "c"))
	require.Nil(t, fail)
	require.Equal(t, 4, done)
	require.Equal(t, result{0, abi.StatusOK, "one"}, r.results[0])
	require.Equal(t, result{1, abi.StatusIgnored, ""}, r.results[1])
	require.Equal(t, counts(1), r.results[2].ops)
	require.Equal(t, counts(2), r.results[3].ops)
}

// shortTimeout is a limit that no healthy call of a test reaches and that a
// test of a looping guest does not wait long for.
const shortTimeout = 500 * time.Millisecond
