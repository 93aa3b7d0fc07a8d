package plugins

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	guestbuild "github.com/projhost/projhost/internal/guest"
)

// A guest of the Go toolchain brings a runtime and a collector; its state is
// put back like any other's.
func TestGoGuest(t *testing.T) {
	mode := Compile
	if testing.Short() {
		mode = Interpret // under the race detector compiling takes half a minute
	}
	i := newInstance(t, load(t, mode, guestbuild.Build(t, "testplugins/echo"), DefaultSettings("echo")))
	var first []result
	for range 5 {
		r, _, fail := apply(t, i, entries("a", "bc", strings.Repeat("def", 1000)))
		require.Nil(t, fail)
		require.Contains(t, r.results[2].ops, "defdef")
		if first == nil {
			first = r.results
		}
		require.Equal(t, first, r.results)
	}
	require.EqualValues(t, 4, i.Stats().Restores)
	require.Zero(t, i.Stats().Instantiated)
}
