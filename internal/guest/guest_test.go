package guest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildMakesAModule(t *testing.T) {
	wasm := Build(t, "testplugins/echo")
	require.True(t, isModule(wasm))
	require.Equal(t, wasm, Build(t, "testplugins/echo"), "the cached build is the build")
}

func TestBuildErrorCarriesTheCompilersWords(t *testing.T) {
	_, err := Compile(context.Background(), "testplugins/no-such-plugin")
	require.ErrorContains(t, err, "build testplugins/no-such-plugin")

	_, err = Compile(context.Background(), "internal/guest")
	require.Error(t, err, "not a main package")
}

func TestMissingToolchainSaysHowToGetIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Compile(context.Background(), "testplugins/echo")
	require.ErrorIs(t, err, ErrNoGo)
	require.ErrorContains(t, err, "https://go.dev/dl/")
}

func TestDamagedCacheIsBuiltAnew(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GOCACHE", goCache(t))
	wasm := Build(t, "testplugins/echo")
	files, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "projhost", "guests", "*.wasm"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, os.WriteFile(files[0], []byte("half a mod"), 0o644))
	require.Equal(t, wasm, Build(t, "testplugins/echo"))
}

// goCache keeps the toolchain's own cache where it is, so that the test does
// not compile the standard library.
func goCache(t *testing.T) string {
	t.Helper()
	out, err := run(context.Background(), ".", "go", "env", "GOCACHE")
	require.NoError(t, err)
	return filepath.Clean(out[:len(out)-1])
}
