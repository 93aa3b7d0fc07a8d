package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
)

var everywhere = flag.Int("everywhere", 40_000, "how many events of the real log go to every database; 0: all")

// models are the projections of a site whose config has every sample plugin.
var models = []string{"applications", "resources", "accounts", "journal"}

// withModels makes a site, on a server or not, with every sample plugin. "poison"
// counts the events of every stream and keeps its last payload.
func withModels(t *testing.T, driver, dsn, more string) *site {
	t.Helper()
	s := newSiteOn(t, driver, dsn, more)
	s.append("[[plugin]]\nname = \"accounts\"\npath = \"accounts.wasm\"\n[[plugin]]\nname = \"journal\"\npath = \"journal.wasm\"\n")
	s.write("accounts.wasm", string(guest.Build(t, "testplugins/accounts")))
	s.write("journal.wasm", string(guest.Build(t, "testplugins/journal")))
	return s
}

var position = regexp.MustCompile(`"position":\d+`)

// dump is every read model, to the byte as query prints it, and some children.
// Positions are given as the places in the log: what draws them may draw one in
// vain.
func (s *site) dump(h *host) map[string]string {
	s.t.Helper()
	place := map[string]string{}
	for i, row := range s.rows(`SELECT "position" FROM "ph_events" ORDER BY "position"`) {
		place[`"position":`+row[0]] = fmt.Sprintf(`"position":%d`, i+1)
	}
	out := map[string]string{}
	query := func(name string, args ...string) {
		text := s.command(append([]string{"query"}, append(args, "--format", "jsonl", "--limit", "10000000", "--url", h.url)...)...)
		require.NotEmpty(s.t, text, name)
		out[name] = position.ReplaceAllStringFunc(text, func(p string) string { return place[p] })
	}
	for _, m := range models {
		query(m, m)
	}
	resources := strings.Split(strings.TrimSpace(out["resources"]), "\n")
	for _, line := range []string{resources[0], resources[len(resources)/2]} {
		var row struct{ Key string }
		require.NoError(s.t, json.Unmarshal([]byte(line), &row))
		query("children of "+row.Key, "resources", row.Key)
	}
	return out
}

// sameLines compares long texts and tells of the first difference only.
func sameLines(t *testing.T, want, have, what string) {
	t.Helper()
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	for i := range min(len(w), len(h)) {
		require.Equalf(t, w[i], h[i], "line %d of %s", i+1, what)
	}
	require.Equalf(t, len(w), len(h), "lines of %s", what)
}

// oddEvents are legal and awkward: what engines tend to fold, trim, round or
// reorder.
func oddEvents() string {
	var b strings.Builder
	n := 0
	add := func(typ, id, data, metadata string) {
		n++
		key, err := json.Marshal(id)
		if err != nil {
			panic(err)
		}
		name, err := json.Marshal(typ)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, `{"id":"00000000-0000-4000-8000-%012d","aggregate_type":%s,"aggregate_id":%s,"type":"T","data":%s`, n, name, key, data)
		if metadata != "" {
			fmt.Fprintf(&b, `,"metadata":%s`, metadata)
		}
		fmt.Fprintf(&b, `,"occurred_at":"%04d-02-28T23:59:59.%06dZ"}`+"\n", 1900+n*7, n*31)
	}
	for _, id := range []string{
		"a", "A", "ä", "a\u0308", "å", "ß", "ss", "ı", "I", "i", "é", "e\u0301", "\u00a0", " a", "a\u00a0", "a\t", "-", "a-", "a/b", "a\\b", `a"b`, "a'b", "a;b", "a%b", "a_b",
		"🏠", "👩‍👩‍👧", "字", "\ufeff", "\u200b", "\ufffd", "\U0010ffff", strings.Repeat("x", 255), strings.Repeat("字", 255), strings.Repeat("🏠", 255), strings.Repeat("🏠", 254) + "!",
	} {
		add("odd", id, `{"n":1}`, "")
		add("odd", id, `{"n":2}`, `{"x":null}`)
	}
	add("Odd", "a", `{"n":1}`, "")
	for _, data := range []string{
		`null`, `true`, `0`, `-0`, `1e400`, `1.0`, `1.00`, `123456789012345678901234567890.123456789`, `9223372036854775807`, `-9223372036854775808`,
		`""`, `"\u0000"`, `"\ud83c\udfe0"`, `"🏠"`, `"\/"`, `"a\u0062c"`, `[]`, `{}`, `{"a":1,"a":2}`, `{"b":1,"a":2}`, `{ "a" : [ 1 , 2 ] }`, `"` + strings.Repeat("z", 70_000) + `"`,
	} {
		add("odd-data", "d", data, data)
	}
	return b.String()
}

// Promises P6 and P10: events move from an embedded store to any server with ids,
// times, sequences, metadata and order, byte for byte, and the same events give
// the same read models on every database, byte for byte.
func TestTheSameOnEveryDatabase(t *testing.T) {
	loans, accounts := 20_000, 5_000
	if testing.Short() {
		loans, accounts = 2000, 500
	}
	var events bytes.Buffer
	file := os.Getenv("PROJHOST_TEST_LOANS")
	if file != "" && !testing.Short() {
		f, err := os.Open(file)
		require.NoError(t, err)
		z, err := gzip.NewReader(f)
		require.NoError(t, err)
		log := bufio.NewReader(z)
		for n := 0; n < *everywhere || *everywhere == 0; n++ {
			line, err := log.ReadBytes('\n')
			events.Write(line)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	} else {
		for e := range samples.Loans(loans) {
			events.Write(e.AppendLine(nil))
		}
	}
	for e := range samples.Accounts(accounts, 300) {
		events.Write(e.AppendLine(nil))
	}
	events.WriteString(oddEvents())

	embedded := withModels(t, "", "", "")
	embedded.write("all.jsonl", events.String())
	embedded.command("import", "all.jsonl")
	h := embedded.start()
	h.caughtUp()
	h.applied("accounts", h.end())
	h.applied("journal", h.end())
	want := embedded.dump(h)
	h.stop()
	moved := filepath.Join(t.TempDir(), "events.jsonl.gz")
	embedded.command("export", "events", "--with-sequence", "--output", moved)
	log := embedded.command("export", "events", "--with-sequence")

	onServers(t, func(t *testing.T, v server) {
		s := withModels(t, v.driver, v.dsn(t), "")
		s.command("import", moved)
		sameLines(t, log, s.command("export", "events", "--with-sequence"), "the log")
		h := s.start()
		h.caughtUp()
		h.applied("accounts", h.end())
		h.applied("journal", h.end())
		have := s.dump(h)
		for name := range want {
			sameLines(t, want[name], have[name], name)
		}
		// The same file once more changes nothing.
		require.Contains(t, s.command("import", moved, "--url", h.url), "0 events stored")
		h.caughtUp()
		require.Equal(t, have, s.dump(h))
		h.stop()
	})
}
