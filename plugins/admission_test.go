package plugins

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every reason that can be seen is told at once, and says what to do.
func TestAdmissionReasons(t *testing.T) {
	short := testSettings()
	short.Timeout = shortTimeout
	tests := []struct {
		name     string
		settings Settings
		want     []string // one per reason, each contained in it
	}{
		{"bare", testSettings(), []string{`exports no memory named "memory"`, "does not export ph_abi_v1", "does not export ph_alloc",
			"does not export ph_describe", "does not export ph_init", "does not export ph_apply"}},
		{"command", testSettings(), []string{"ph_abi_v1", "ph_alloc", "ph_describe", "ph_init", "ph_apply",
			"exports _start, so it is a command; build a reactor (Go: -buildmode=c-shared"}},
		{"mistyped", testSettings(), []string{`export "memory" is a function, not a memory`,
			"_initialize has the type () -> (i32), want () -> ()", "ph_abi_v1 has the type () -> (i64), want () -> (i32)",
			"ph_alloc has the type (i64) -> (i32), want (i32) -> (i32)", "ph_describe has the type () -> (i32), want () -> (i64)",
			"ph_init is a global, not a function", "ph_apply has the type (i32, i32) -> (), want (i32, i32) -> (i32)",
			`"projhost:mine": names that start with projhost: are the host's`}},
		{"imports", testSettings(), []string{"projhost_v1.done has the type (i32) -> (i32); the host's is (i32, i32, i32, i32) -> (i32)",
			"it imports what this host does not have: env.abort, env.base (global), env.shared (memory), env.table (table), " +
				"projhost_v1.sql, wasi_snapshot_preview1.fd_frobnicate, wasi_unstable.fd_write; there are projhost_v1 and wasi_snapshot_preview1"}},
		{"globals", testSettings(), []string{"start section, which runs before the host is ready; use an exported _initialize",
			"mutable global 0 is a v128", "mutable global 1 is a funcref", "mutable global 2 is a externref"}},
		{"memory-large", testSettings(), []string{"its memory starts at 104857600 bytes, over the limit of 4194304 (memory_limit)"}},
		{"threads", testSettings(), []string{"it uses threads, which this host does not run"}},
		{"exceptions", testSettings(), []string{"it uses exceptions"}},
		{"memory64", testSettings(), []string{"it uses memory64"}},
		{"multi-memory", testSettings(), []string{"it uses multi-memory"}},
		{"abi2", testSettings(), []string{"it is made for ABI v2; this host speaks v1"}},
		{"newer-minor", testSettings(), []string{"it is made for ABI v1.7; this host speaks v1.0: update the host"}},
		{"trap-initialize", testSettings(), []string{"_initialize fails: trap: unreachable in boot, called by start"}},
		{"trap-describe", testSettings(), []string{"ph_describe fails: trap: no manifest today (unreachable in ph_describe)"}},
		{"trap-alloc", testSettings(), []string{"ph_alloc fails: trap: integer divide by zero in ph_alloc"}},
		{"loop-initialize", short, []string{"_initialize fails: out of time: it took longer than 500ms"}},
		{"alloc-none", testSettings(), []string{"ph_alloc(2) for the configuration returned 0: no room in a memory of at most 4194304 bytes (memory_limit)",
			"ph_alloc(262144) for frames (frame_max) returned 0"}},
		{"alloc-outside", testSettings(), []string{"returned 0xfffffff0: that region is not inside the memory of 327680 bytes", "frames (frame_max)"}},
		{"describe-outside", testSettings(), []string{"ph_describe: 256 bytes at 0xfffffff0 are outside of the memory"}},
		{"describe-huge", testSettings(), []string{"its manifest has 67108864 bytes; at most 1048576 are taken"}},
		{"describe-bad", testSettings(), []string{"manifest: ", "manifest: "}},
		{"no-keys", testSettings(), []string{`consumer rows, input 0 has the key "function", but the module does not export ph_keys`}},
	}
	bothModes(t, func(t *testing.T, mode Mode) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				got := reasons(t, mode, hostile(t, test.name), test.settings)
				require.Len(t, got, len(test.want), "%s", strings.Join(got, "\n"))
				for i, want := range test.want {
					require.Contains(t, got[i], want)
				}
			})
		}
	})
}

func TestAdmissionOfBytes(t *testing.T) {
	good := hostile(t, "misuse")
	for name, test := range map[string]struct {
		b    []byte
		want string
	}{
		"nothing":   {nil, "not a WebAssembly module"},
		"text":      {[]byte("<html>"), "not a WebAssembly module"},
		"component": {[]byte("\x00asm\x0d\x00\x01\x00"), "it is a WebAssembly component; build a core module instead"},
		"truncated": {good[:len(good)/2], "unexpected end"},
		"too large": {make([]byte, moduleMax+1), "a module of 67108865 bytes; at most 67108864 are taken"},
	} {
		t.Run(name, func(t *testing.T) {
			got := reasons(t, Interpret, test.b, testSettings())
			require.Len(t, got, 1)
			require.Contains(t, got[0], test.want)
		})
	}
}

// Code that the sections do not give away is the engine's to refuse.
func TestAdmissionOfInvalidCode(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		b := []byte(string(hostile(t, "grows")))
		// i32.const 1 before memory.grow becomes i64.const 1: same length, wrong type.
		at := strings.Index(string(b), "\x41\x01\x40\x00")
		require.Positive(t, at)
		b[at] = 0x42
		got := reasons(t, mode, b, testSettings())
		require.Len(t, got, 1)
		require.Contains(t, got[0], "it does not validate or compile: ")
	})
}

func TestAdmissionOfConfig(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		for do, want := range map[string]string{
			"n": `ph_init refuses the configuration with code 3: code 7: {"do":"n"}`,
			"u": "ph_init fails: trap: unreachable in ph_init",
			"L": "ph_init fails: out of time",
			"d": "ph_init fails: answered out of order: done is for ph_apply",
		} {
			s := testSettings()
			s.Config = []byte(`{"do":"` + do + `"}`)
			if do == "L" {
				s.Timeout = shortTimeout
			}
			got := reasons(t, mode, hostile(t, "misuse"), s)
			require.Len(t, got, 1)
			require.Contains(t, got[0], want)
		}
		s := testSettings()
		s.Config = []byte(`{"do":"ok"}`)
		requireHealthy(t, newInstance(t, load(t, mode, hostile(t, "misuse"), s)))
	})
}

func TestAdmissionOfSettings(t *testing.T) {
	got := reasons(t, Interpret, hostile(t, "misuse"), Settings{Timeout: -time.Second, Isolate: 9, LogRate: -1})
	require.Len(t, got, 6, "%s", strings.Join(got, "\n"))

	s := testSettings()
	s.FrameMax = 64 << 20
	got = reasons(t, Interpret, hostile(t, "misuse"), s)
	require.Equal(t, []string{"ph_alloc(67108864) for frames (frame_max) returned 0: no room in a memory of at most 4194304 bytes (memory_limit)"}, got)
}

func TestLoadEndsWithItsContext(t *testing.T) {
	s := testSettings()
	s.Timeout = time.Minute
	stop := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
	_, err := newTestEngine(t, Compile).Load(ctx, hostile(t, "loop-initialize"), s)
	require.ErrorIs(t, err, stop)
	var reject *RejectError
	require.NotErrorAs(t, err, &reject, "it is not the module's fault")
}

// FuzzLoad: whatever a module is, the host gets an answer and lives.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"misuse", "globals", "table-state", "data-drop", "imports", "mutual"} {
		f.Add(hostile(f, name))
	}
	s := testSettings()
	s.Timeout = 100 * time.Millisecond
	s.FrameMax = 16 << 10
	f.Fuzz(func(t *testing.T, b []byte) {
		e := newTestEngine(t, Interpret)
		m, err := e.Load(t.Context(), b, s)
		if err != nil {
			var reject *RejectError
			require.ErrorAs(t, err, &reject)
			require.NotEmpty(t, reject.Reasons)
			return
		}
		i := newInstance(t, m)
		for range 2 {
			_, _, err := i.Apply(t.Context(), 0, entries("oone", "c", "k0"), newRecorder())
			require.NoError(t, err)
		}
	})
}
