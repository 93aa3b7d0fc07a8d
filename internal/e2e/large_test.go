package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
)

// An event as large as the configuration allows goes all the way: in by the
// command, through a guest, out and into another store.
func TestLargestEvent(t *testing.T) {
	const config = `
max_body = "64MiB"
[store]
max_event = "20MiB"
[[plugin]]
name = "loans"
path = "loans.wasm"
memory_limit = "256MiB"
`
	s := emptySite(t, "")
	s.write("config.toml", "[http]\nlisten = \"127.0.0.1:0\"\n"+config)
	s.write("loans.wasm", string(guest.Build(t, "testplugins/loans")))
	line := `{"id":"00000000-0000-4000-8000-000000000001","aggregate_type":"loan-application","aggregate_id":"1","type":"A_SUBMITTED","revision":0,` +
		`"data":{"pad":"` + strings.Repeat("x", 19<<20) + `","org:resource":"112","case":{"AMOUNT_REQ":"20000"}},"occurred_at":"2011-10-01T00:38:44.546000Z"}` + "\n"
	s.write("large.jsonl", line)

	s.write("config.toml", s.read("config.toml")+"[log]\nformat = \"json\"\n")
	h := s.start()
	require.Contains(t, s.run("", "import", "large.jsonl", "--url", h.url).ok(), "1 event stored")
	h.applied("applications", 1)
	h.applied("resources", 1)
	require.Contains(t, h.must("GET", "/v1/read-models/applications/1", "").body, `"amount":"20000.00","status":"A_SUBMITTED"`)
	h.stop()

	require.True(t, line == s.run("", "export", "events").ok(), "byte for byte")
	other := emptySite(t, "[store]\nmax_event = \"20MiB\"\n")
	other.write("large.jsonl", line)
	require.Contains(t, other.run("", "import", "large.jsonl").ok(), "1 event stored")
	require.True(t, line == other.run("", "export", "events").ok())
}
