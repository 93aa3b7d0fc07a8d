package testplugins

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/guest"
)

func committedC(t testing.TB) []byte {
	t.Helper()
	wasm, err := os.ReadFile("accounts-c/accounts.wasm")
	require.NoError(t, err)
	return wasm
}

func TestTheCommittedCGuestIsTheOneItsHashNames(t *testing.T) {
	for _, name := range []string{"accounts", "accounts-by-pointer"} {
		line, err := os.ReadFile("accounts-c/" + name + ".wasm.sha256")
		require.NoError(t, err)
		wasm, err := os.ReadFile("accounts-c/" + name + ".wasm")
		require.NoError(t, err)
		sum := sha256.Sum256(wasm)
		require.Equal(t, hex.EncodeToString(sum[:]), strings.Fields(string(line))[0],
			"run testplugins/accounts-c/build.sh and write the new hash down")
	}
}

func TestAccountsInCMakeTheRowsOfAccountsInGo(t *testing.T) {
	sameAccounts(t, committedC(t))
}

func TestAccountsInCBuiltHereMakeTheRowsOfAccountsInGo(t *testing.T) {
	if _, err := exec.LookPath("clang-19"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), "clang") {
			t.Fatal("clang-19 is required and missing (Debian: clang-19 lld-19)")
		}
		t.Skip("not built from C here: clang-19 is missing (Debian: clang-19 lld-19)")
	}
	out := t.TempDir()
	build := exec.Command("testplugins/accounts-c/build.sh", out)
	build.Dir = ".."
	words, err := build.CombinedOutput()
	require.NoError(t, err, "%s", words)
	wasm, err := os.ReadFile(filepath.Join(out, "accounts.wasm"))
	require.NoError(t, err)
	sameAccounts(t, wasm)
}

func sameAccounts(t *testing.T, wasm []byte) {
	inGo, inC := start(t, guest.Build(t, "testplugins/accounts")), start(t, wasm)
	require.Equal(t, inGo.manifest.Consumers, inC.manifest.Consumers)

	log := accountMessages(20_000, 500)
	inGo.run(log, 256)
	inC.run(log, 1000)
	require.NotEmpty(t, inGo.rows)
	require.Equal(t, inGo.dump(), inC.dump())

	message := func(typ, data string) messages {
		return messages{{AggregateType: "account", AggregateID: "edge", TypeName: typ, Data: []byte(data), TimeUS: 1_767_254_400_000_000}}
	}
	for _, edge := range []struct{ typ, data string }{
		{"deposited", `{"amount":"10.5"}`}, // of an account that was not opened
		{"opened", `{"owner":"\u00c5sa \"\\\ud83d\ude00\n"}`},
		{"opened", ` { "x" : [ "}" , { } ] , "owner" : "first" , "owner" : "last" } `},
		{"withdrawn", `{"amount":0.5}`}, {"withdrawn", `{"amount":"1000"}`}, {"deposited", `{"amount":"-0.010"}`},
		{"deposited", `{"amount":"92233720368547758.07"}`},
		{"deposited", `{"amount":"0.001"}`}, {"deposited", `{"amount":""}`}, {"deposited", `{"amount":"1."}`},
		{"deposited", `{"amount":null}`}, {"deposited", `{}`}, {"deposited", `nonsense`}, {"opened", `{"owner":7}`},
		{"opened", `{"owner":"` + strings.Repeat("x", 101) + `"}`},
		{"closed", `{}`}, {"renamed", `{}`},
	} {
		for _, m := range []*machine{inGo, inC} {
			entries := m.entriesOf(0, message(edge.typ, edge.data))
			_, err := m.batch(0, entries)
			require.NoError(t, err, edge)
		}
		require.Equal(t, inGo.done, inC.done, "%v: in Go %s %q, in C %s %q", edge, inGo.status, inGo.reason, inC.status, inC.reason)
		require.Equal(t, inGo.status, inC.status, edge)
		require.Equal(t, inGo.dump(), inC.dump(), edge)
	}
}

func TestTheCGuestIgnoresWhatItDoesNotKnow(t *testing.T) {
	m := start(t, committedC(t))
	done, err := m.batch(0, []abi.Entry{{Key: "k", TypeName: "x", Type: abi.TypeByName}})
	require.NoError(t, err)
	require.Equal(t, 1, done)
	require.Empty(t, m.rows)
}
