package plugins

import (
	"bytes"
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func engineWithCache(t *testing.T, dir string) (*Engine, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	e, err := NewEngine(dir, hclog.New(&hclog.LoggerOptions{Output: &log}), Compile)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close(context.Background())) })
	return e, &log
}

// cacheFiles lists the compiled code under dir.
func cacheFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != sumsName {
			files = append(files, path)
		}
		return err
	}))
	return files
}

func loadAndUse(t *testing.T, e *Engine) {
	t.Helper()
	m, err := e.Load(t.Context(), hostile(t, "misuse"), testSettings())
	require.NoError(t, err)
	requireHealthy(t, newInstance(t, m))
	require.NoError(t, m.Close(t.Context()))
}

func TestCompileCacheIsUsed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "cache")
	e, log := engineWithCache(t, dir)
	loadAndUse(t, e)
	files := cacheFiles(t, dir)
	require.Len(t, files, 1)
	before, err := os.Stat(files[0])
	require.NoError(t, err)

	loadAndUse(t, e)
	again, _ := engineWithCache(t, dir)
	loadAndUse(t, again)
	after, err := os.Stat(files[0])
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "the file was written anew")
	require.Empty(t, log.String())
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "others can read or write what this host runs")

	// Another time limit is other code.
	s := testSettings()
	s.Timeout = time.Minute
	m, err := e.Load(t.Context(), hostile(t, "misuse"), s)
	require.NoError(t, err)
	require.NoError(t, m.Close(t.Context()))
	require.Len(t, cacheFiles(t, dir), 2)
	loadAndUse(t, e)
	require.Len(t, cacheFiles(t, dir), 2)
}

// Damaged code is never run: it is thrown away and made anew.
func TestDamagedCompileCache(t *testing.T) {
	dir := t.TempDir()
	e, log := engineWithCache(t, dir)
	loadAndUse(t, e)
	good, err := os.ReadFile(cacheFiles(t, dir)[0])
	require.NoError(t, err)
	damage := map[string]func(b []byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"longer":    func(b []byte) []byte { return append(b, 0) },
		"text":      func([]byte) []byte { return []byte("not code") },
	}
	for at := 0; at < len(good); at += len(good)/20 + 1 {
		damage["bit "+strconv.Itoa(at)] = func(b []byte) []byte { b[at] ^= 0x10; return b }
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			files := cacheFiles(t, dir)
			require.Len(t, files, 1)
			require.NoError(t, os.WriteFile(files[0], f(bytes.Clone(good)), 0o600))
			loadAndUse(t, e)
			b, err := os.ReadFile(files[0])
			require.NoError(t, err)
			require.Equal(t, good, b, "it was made anew")
		})
	}
	t.Run("sums are gone", func(t *testing.T) {
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(filepath.Dir(cacheFiles(t, dir)[0])), sumsName)))
		loadAndUse(t, e)
	})
	t.Run("code is gone", func(t *testing.T) {
		require.NoError(t, os.Remove(cacheFiles(t, dir)[0]))
		loadAndUse(t, e)
	})
	t.Run("a file half written", func(t *testing.T) {
		tmp := cacheFiles(t, dir)[0] + ".1.tmp"
		require.NoError(t, os.WriteFile(tmp, good[:100], 0o600))
		loadAndUse(t, e)
		require.FileExists(t, tmp, "another process may be at it")
		old := time.Now().Add(-2 * tmpAge)
		require.NoError(t, os.Chtimes(tmp, old, old))
		loadAndUse(t, e)
		require.NoFileExists(t, tmp)
	})
	require.Empty(t, log.String())
}

// A cache that cannot be used costs time and a warning.
func TestUnusableCompileCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	e, log := engineWithCache(t, file)
	loadAndUse(t, e)
	require.Contains(t, log.String(), "compile cache cannot be used")

	// A rejected module leaves nothing behind.
	dir := t.TempDir()
	e, _ = engineWithCache(t, dir)
	b := []byte(string(hostile(t, "grows")))
	b[strings.Index(string(b), "\x41\x01\x40\x00")] = 0x42
	_, err := e.Load(t.Context(), b, testSettings())
	require.Error(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

var soak = flag.Int("soak", 1, "how many times as long the tests for leaks run")

// resident is the memory of this process that the machine has to give, after
// everything that can go has gone. Where it is not told, the heap's.
func resident(t *testing.T) int {
	t.Helper()
	if raceDetector {
		t.Skip("not run: the race detector's own memory grows with what is touched")
	}
	// Machine code is unmapped by finalizers, which run after a collection.
	for range 3 {
		runtime.GC()
		runtime.Gosched()
	}
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kb << 10
}

// requireFlat runs f some rounds, then twice as many more: what those take for
// good is a leak, apart from what comes and goes by chance.
func requireFlat(t *testing.T, rounds int, f func()) {
	t.Helper()
	const grows = 4 << 20
	run := func() {
		for range rounds {
			f()
		}
	}
	run()
	memory, goroutines := resident(t), runtime.NumGoroutine()
	run()
	run()
	if after := resident(t); after > memory+grows {
		t.Errorf("%d bytes resident, %d after %d more rounds", memory, after, 2*rounds)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1, "goroutines")
}

func TestLoadAndCloseLeaveNothing(t *testing.T) {
	for _, name := range []string{"misuse", "table-state", "alloc-none"} {
		t.Run(name, func(t *testing.T) {
			e, err := NewEngine(t.TempDir(), hclog.NewNullLogger(), Compile)
			require.NoError(t, err)
			s := testSettings()
			s.Timeout = time.Minute
			requireFlat(t, 60**soak, func() {
				m, err := e.Load(t.Context(), hostile(t, name), s)
				if name == "alloc-none" {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				for range 3 {
					i := newInstance(t, m)
					_, _, err := i.Apply(t.Context(), 0, entries("c", "c"), newRecorder())
					require.NoError(t, err)
				}
				require.NoError(t, m.Close(t.Context()))
			})
			require.Empty(t, e.modules)
		})
	}
}

// Failures by the hundred thousand leave nothing either; with -short a part.
func TestFailuresLeaveNothing(t *testing.T) {
	rounds := 33_000 * *soak
	if testing.Short() {
		rounds = 1_000
	}
	for _, test := range []struct {
		data   string
		rounds int
		code   abi.Status
	}{
		{"u", rounds, abi.CodeTrap},
		{"s", rounds / 10, abi.CodeTrap},
		{"R", rounds / 3_000, abi.CodeTrap},
		{"M", rounds / 100, abi.CodeMemory},
		{"r", rounds / 10, abi.StatusReject},
	} {
		t.Run(test.data, func(t *testing.T) {
			e, err := NewEngine("", hclog.NewNullLogger(), Compile)
			require.NoError(t, err)
			defer e.Close(context.Background())
			m, err := e.Load(t.Context(), hostile(t, "misuse"), testSettings())
			require.NoError(t, err)
			i := newInstance(t, m)
			es := entries("i", test.data)
			requireFlat(t, test.rounds, func() {
				done, fail, err := i.Apply(t.Context(), 0, es, nullSink{})
				if done != 1 || err != nil || fail == nil || fail.Code != test.code {
					t.Fatal(done, fail, err)
				}
			})
		})
	}
}

// A recursion that the engine ends at its limit has taken a hundred megabytes
// of stack. An instance does not keep them.
func TestOverflowGivesItsStackBack(t *testing.T) {
	i := newInstance(t, load(t, Compile, hostile(t, "misuse"), testSettings()))
	requireHealthy(t, i)
	before := resident(t)
	_, _, fail := apply(t, i, entries("R"))
	require.NotNil(t, fail)
	require.Less(t, resident(t), before+32<<20)
	requireHealthy(t, i)
}

// Time-outs close a guest and make another.
func TestTimeoutsLeaveNothing(t *testing.T) {
	e, err := NewEngine("", hclog.NewNullLogger(), Compile)
	require.NoError(t, err)
	defer e.Close(context.Background())
	s := testSettings()
	s.Timeout = time.Minute
	m, err := e.Load(t.Context(), hostile(t, "misuse"), s)
	require.NoError(t, err)
	m.settings.Timeout = 2 * time.Millisecond
	i := newInstance(t, m)
	requireFlat(t, 50**soak, func() {
		_, fail, err := i.Apply(t.Context(), 0, entries("L"), nullSink{})
		require.NoError(t, err)
		require.Equal(t, abi.CodeDeadline, fail.Code)
	})
}
