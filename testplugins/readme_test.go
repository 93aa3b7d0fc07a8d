package testplugins

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

// The plugin of sdk/go/README.md is copied out into a module of its own, tested,
// built and run, as its reader would.
func TestTheReadmesPluginWorksInAnotherModule(t *testing.T) {
	readme, err := os.ReadFile("../sdk/go/README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.Len(t, blocks, 2, "main.go and main_test.go")
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)

	dir := t.TempDir()
	write := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	write("main.go", blocks[0][1])
	write("main_test.go", blocks[1][1])
	write("go.sum", sums)
	write("go.mod", []byte("module example.com/orders\n\ngo 1.26.0\n\nrequire github.com/projhost/projhost v0.1.0\n\n"+
		"replace github.com/projhost/projhost => "+root+"\n"))
	run := func(env []string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off"), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, out)
	}
	run(nil, "test", "./...")
	run([]string{"GOOS=wasip1", "GOARCH=wasm"}, "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", "orders.wasm", ".")

	wasm, err := os.ReadFile(filepath.Join(dir, "orders.wasm"))
	require.NoError(t, err)
	m := start(t, wasm)
	m.run(messages{
		{AggregateType: "order", AggregateID: "A-7", TypeName: "placed", Data: []byte(`{"customer":"Ada"}`)},
		{AggregateType: "order", AggregateID: "A-7", TypeName: "line_added", Data: []byte(`{"price":"12.50"}`)},
		{AggregateType: "order", AggregateID: "A-7", TypeName: "shipped", TimeUS: 1_767_225_600_000_000, Data: []byte(`{}`)},
		{AggregateType: "order", AggregateID: "A-7", TypeName: "cancelled", Data: []byte(`{}`)},
		{AggregateType: "parcel", AggregateID: "A-7", TypeName: "placed", Data: []byte(`{}`)},
	}, 10)
	require.Len(t, m.rows, 1)
	row := m.rows[tableKey{0, 0, "A-7", ""}]
	require.Equal(t, `{"customer":"Ada","total":"12.50","lines":1,"shipped_at":"2026-01-01T00:00:00.000000Z"}`,
		string(m.tables[0][0].AppendJSON(nil, row)))
	require.Equal(t, abi.Projection, m.manifest.Consumers[0].Type)
}
