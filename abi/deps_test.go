package abi

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuestsStaySmall looks at what a guest that uses this package links. The
// packages named have start-up work, which the linker keeps whether or not they
// are called.
func TestGuestsStaySmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	out, err := cmd.Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "strconv")
	for _, heavy := range []string{"encoding/json", "fmt", "os", "time", "net", "regexp", "crypto/sha256"} {
		require.NotContains(t, deps, heavy)
	}
	for _, dep := range deps {
		require.False(t, strings.Contains(dep, ".") && !strings.HasPrefix(dep, "github.com/projhost/"),
			"%s is not of the standard library", dep)
	}
}
