package plugins

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "build testplugins/hostile/*.wasm anew from their sources")

// needTool fails where the environment says that the tool chain must be there,
// and skips with one line where it need not be.
func needTool(t *testing.T, what, tool, how string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), what) {
		t.Fatalf("%s is required and missing: %s", tool, how)
	}
	t.Skipf("not run: %s is missing (%s)", tool, how)
}

// The committed modules are what their sources say, built by the line in them.
func TestHostileModulesAreTheirSources(t *testing.T) {
	needTool(t, "wabt", "wat2wasm", "Debian package wabt")
	sources, err := filepath.Glob(filepath.Join(hostileDir, "*.wat"))
	require.NoError(t, err)
	modules, err := filepath.Glob(filepath.Join(hostileDir, "*.wasm"))
	require.NoError(t, err)
	require.Len(t, modules, len(sources), "a module without a source, or the other way round")
	for _, source := range sources {
		name := strings.TrimSuffix(filepath.Base(source), ".wat")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(source)
			require.NoError(t, err)
			_, rest, found := strings.Cut(string(text), ";; build: wat2wasm ")
			require.True(t, found, "no build line")
			line, _, _ := strings.Cut(rest, "\n")
			out := filepath.Join(t.TempDir(), name+".wasm")
			if *update {
				out = filepath.Join(hostileDir, name+".wasm")
			}
			args := append(strings.Fields(line), "-o", out)
			args[slices.Index(args, name+".wat")] = source
			text, err = exec.Command("wat2wasm", args...).CombinedOutput()
			require.NoError(t, err, string(text))
			built, err := os.ReadFile(out)
			require.NoError(t, err)
			require.Equal(t, hostile(t, name), built, "build with -update")
		})
	}
}
