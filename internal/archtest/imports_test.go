package archtest

import (
	"encoding/json"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/projhost/projhost"

// allowed says which of the module's folders the code of a folder may import,
// itself aside. The longest matching folder rules. A folder that is not named
// fails the test: give it its place in the table.
var allowed = map[string][]string{
	"abi":               {},
	"sdk":               {"abi"},
	"testplugins":       {"sdk", "abi"},
	"plugins":           {"abi"},
	"readmodel":         {"abi"},
	"store":             {"readmodel", "abi", "internal/rawjson"},
	"store/internal":    {"store", "readmodel"},
	"store/sqlite":      {"store", "store/internal", "readmodel", "abi", "partition/hash"},
	"store/postgres":    {"store", "store/internal", "readmodel", "abi"},
	"store/mysql":       {"store", "store/internal", "readmodel", "abi"},
	"store/sqlserver":   {"store", "store/internal", "readmodel", "abi"},
	"store/drivers":     {"store", "store/sqlite", "store/postgres", "store/mysql", "store/sqlserver"},
	"store/storetest":   {"store", "readmodel", "abi", "partition/hash"},
	"partition":         {"store", "abi"},
	"host":              {"plugins", "partition", "store", "readmodel", "abi"},
	"host/api":          {"store", "readmodel", "abi", "partition", "internal/jsonl", "internal/rawjson"},
	"cmd":               {"host", "host/api", "plugins", "partition", "store", "store/sqlite", "store/drivers", "readmodel", "abi", "internal", "internal/jsonl", "testplugins", "sdk"},
	"internal":          {"store", "readmodel", "partition", "abi"},
	"internal/e2e":      {"internal", "testplugins", "abi"},
	"internal/jsonl":    {"store", "internal/rawjson"},
	"internal/dbtest":   {},
	"internal/archtest": {},

	"store/internal/sqlstore/coretest": {"store", "store/internal", "readmodel", "abi"},
}

// foreign says which folders may import a library; nobody else may.
var foreign = map[string][]string{
	"github.com/tetratelabs/wazero": {"plugins"},
	"database/sql":                  {"store", "readmodel", "cmd/projhost/bench", "internal/e2e", "internal/dbtest"},
	"modernc.org/sqlite":            {"store/sqlite", "cmd/projhost/bench"},

	"github.com/jackc/pgx/v5":         {"store/postgres", "cmd/projhost/bench", "internal/dbtest", "internal/e2e"},
	"github.com/go-sql-driver/mysql":  {"store/mysql", "cmd/projhost/bench", "internal/dbtest", "internal/e2e"},
	"github.com/microsoft/go-mssqldb": {"store/sqlserver", "internal/dbtest"},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, pkg := range listPackages(t) {
		from := strings.TrimPrefix(strings.TrimPrefix(pkg.ImportPath, module), "/")
		if from == "" {
			continue
		}
		folder, rules, known := ruleOf(from)
		require.Truef(t, known, "%s is not in the import table", from)
		for _, imported := range pkg.Imports {
			if to, ok := strings.CutPrefix(imported, module+"/"); ok {
				require.Truef(t, inside(to, folder) || anyInside(to, rules),
					"%s imports %s; %s may import only %v", from, to, folder, rules)
			}
			for library, users := range foreign {
				if imported == library || strings.HasPrefix(imported, library+"/") {
					require.Truef(t, below(from, users), "%s imports %s; only %v may", from, library, users)
				}
			}
		}
	}
}

func TestShippedBinaryHasNoTestLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/cmd/projhost").Output()
	require.NoError(t, err)
	for _, dep := range strings.Fields(string(out)) {
		require.NotContains(t, []string{"testing", "github.com/stretchr/testify/require", "pgregory.net/rapid"}, dep)
		require.NotContains(t, dep, "/storetest")
	}
}

func TestGuestContractUsesOnlyTheStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/abi").Output()
	require.NoError(t, err)
	for _, dep := range strings.Fields(string(out)) {
		require.Falsef(t, strings.Contains(strings.Split(dep, "/")[0], ".") && !strings.HasPrefix(dep, module),
			"abi depends on %s", dep)
	}
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"/...").Output()
	require.NoError(t, err)
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p goPackage
		require.NoError(t, dec.Decode(&p))
		packages = append(packages, p)
	}
	require.NotEmpty(t, packages)
	return packages
}

func ruleOf(folder string) (string, []string, bool) {
	for f := folder; f != "." && f != ""; f = path.Dir(f) {
		if rules, ok := allowed[f]; ok {
			return f, rules, true
		}
	}
	return "", nil, false
}

// inside reports whether folder is root or below it. A rule of its own for a
// sub-folder (store/sqlite) is not entered through its parent.
func inside(folder, root string) bool {
	if folder == root {
		return true
	}
	if !strings.HasPrefix(folder, root+"/") {
		return false
	}
	rule, _, _ := ruleOf(folder)
	return rule == root || len(rule) < len(root)
}

// below reports whether folder is one of roots or under one.
func below(folder string, roots []string) bool {
	for _, root := range roots {
		if folder == root || strings.HasPrefix(folder, root+"/") {
			return true
		}
	}
	return false
}

func anyInside(folder string, roots []string) bool {
	for _, root := range roots {
		if inside(folder, root) {
			return true
		}
	}
	return false
}
