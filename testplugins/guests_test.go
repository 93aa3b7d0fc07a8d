package testplugins

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/testplugins/loans/oracle"
)

// messages is a log, still without keys.
type messages []abi.Entry

func accountMessages(n, accounts int) messages {
	var log messages
	for e := range samples.Accounts(n, accounts) {
		log = append(log, message(e))
	}
	return log
}

func loanMessages(n int) messages {
	var log messages
	for e := range samples.Loans(n) {
		log = append(log, message(e))
	}
	return log
}

func message(e samples.Event) abi.Entry {
	return abi.Entry{ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, TypeName: e.Type,
		Data: e.Data, Metadata: e.Metadata, TimeUS: e.OccurredUS}
}

// entries resolves what of a log a consumer gets.
func (m *machine) entriesOf(consumer int, log messages) []abi.Entry {
	m.t.Helper()
	c := &m.manifest.Consumers[consumer]
	var pointers []*abi.Pointers
	for i := range c.Inputs {
		p, err := abi.CompilePointers(c.Inputs[i].Key.Pointers...)
		require.NoError(m.t, err)
		pointers = append(pointers, p)
	}
	var entries []abi.Entry
	var keys []string
	for i := range log {
		e := log[i]
		e.Position = uint64(i + 1)
		var ok bool
		if e.Input, e.Type, ok = c.Match("events", e.AggregateType, e.TypeName); !ok {
			continue
		}
		keys = append(keys[:0], e.AggregateID)
		if c.Inputs[e.Input].Key.Kind == abi.KeyPointers {
			keys, ok = pointers[e.Input].Keys(keys[:0], e.Data)
			require.True(m.t, ok)
		}
		for _, key := range keys {
			e.Key = key
			entries = append(entries, e)
		}
	}
	return entries
}

// run gives a whole log to every consumer in batches.
func (m *machine) run(log messages, size int) {
	m.t.Helper()
	for consumer := range m.manifest.Consumers {
		for batch := range slices.Chunk(m.entriesOf(consumer, log), size) {
			done, err := m.batch(consumer, batch)
			require.NoError(m.t, err, m.reason)
			require.Equal(m.t, len(batch), done, m.reason)
		}
	}
}

func TestLoansInWasmMakeTheRowsOfTheOracle(t *testing.T) {
	compareLoans(t, loanMessages(samples.LoansDefault))
}

func TestRealLoansInWasmMakeTheRowsOfTheOracle(t *testing.T) {
	compareLoans(t, readLoans(t))
}

func compareLoans(t *testing.T, log messages) {
	m := start(t, guest.Build(t, "testplugins/loans"))
	m.run(log, 1000)
	fold := oracle.New()
	for i := range log {
		e := &log[i]
		require.NoError(t, fold.Add(oracle.Event{AggregateType: e.AggregateType, AggregateID: e.AggregateID,
			Type: e.TypeName, Data: e.Data, OccurredUS: e.TimeUS}))
	}
	got := map[string]map[[2]string]string{}
	for at, row := range m.rows {
		table := m.tables[at.consumer][at.table]
		if got[table.Name] == nil {
			got[table.Name] = map[[2]string]string{}
		}
		got[table.Name][[2]string{at.key, at.child}] = string(table.AppendJSON(nil, row))
	}
	for table, rows := range fold.Tables() {
		require.Len(t, got[table], len(rows), table)
		for _, row := range rows {
			require.Equal(t, row.JSON, got[table][[2]string{row.Key, row.Child}], "%s %s %s", table, row.Key, row.Child)
		}
	}
}

// readLoans reads the real log.
func readLoans(t testing.TB) messages {
	t.Helper()
	if testing.Short() {
		t.Skip("not run on real input: -short")
	}
	path := os.Getenv("PROJHOST_TEST_LOANS")
	if path == "" {
		if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), "loans") {
			t.Fatal("PROJHOST_TEST_LOANS must name the file of real loan events")
		}
		t.Skip("not run on real input: PROJHOST_TEST_LOANS does not name the file of loan events")
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	require.NoError(t, err)
	var log messages
	for lines := bufio.NewReader(unzipped); ; {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return log
		}
		var e struct {
			AggregateType string          `json:"aggregate_type"`
			AggregateID   string          `json:"aggregate_id"`
			Type          string          `json:"type"`
			Data          json.RawMessage `json:"data"`
			Metadata      json.RawMessage `json:"metadata"`
			OccurredAt    time.Time       `json:"occurred_at"`
		}
		require.NoError(t, json.Unmarshal(line, &e))
		log = append(log, abi.Entry{AggregateType: e.AggregateType, AggregateID: e.AggregateID, TypeName: e.Type,
			Data: e.Data, Metadata: e.Metadata, TimeUS: e.OccurredAt.UnixMicro()})
	}
}

// An instance whose memory has grown cannot be restored; making a new one for
// every batch would cost more than the batch.
func TestMemoryDoesNotGrow(t *testing.T) {
	for plugin, log := range map[string]messages{"loans": loanMessages(8000), "accounts": accountMessages(8000, 1000)} {
		m := start(t, guest.Build(t, "testplugins/"+plugin))
		for _, size := range []int{1, 256, 1000, 4000} {
			for consumer := range m.manifest.Consumers {
				clear(m.rows)
				m.instantiate()
				before := m.module.Memory().Size()
				entries := m.entriesOf(consumer, log)
				for batch := range slices.Chunk(entries[:min(len(entries), 4000)], size) {
					done, err := m.batch(consumer, batch)
					require.NoError(t, err)
					require.Equal(t, len(batch), done, m.reason)
				}
				require.Equal(t, before, m.module.Memory().Size(), "%s, consumer %d, batches of %d", plugin, consumer, size)
			}
		}
		t.Logf("%s: %d KiB", plugin, m.module.Memory().Size()>>10)
	}
}

func TestFailuresOfAGoGuest(t *testing.T) {
	m := start(t, guest.Build(t, "testplugins/poison"))
	for how, want := range map[string]struct {
		status abi.Status // 0: it traps
		words  string     // of fail, or of what the runtime writes when it gives up
	}{
		"reject":    {abi.StatusReject, "the message says so"},
		"error":     {abi.StatusReject, "a handler's error"},
		"fatal":     {abi.StatusFatal, "the message says so"},
		"retry":     {abi.StatusRetry, "not now"},
		"scale":     {abi.StatusReject, "column amount: 0.001 has more than 2 digits behind the point"},
		"precision": {abi.CodeMalformed, "amount"},
		"nul":       {abi.CodeMalformed, "U+0000"},
		"panic":     {0, "panic: the message says so at poison/main.go:"},
		"nil":       {0, "panic: runtime error: invalid memory address or nil pointer dereference at poison/main.go:"},
		"index":     {0, "panic: runtime error: index out of range [17] with length 16 at poison/main.go:"},
		"stack":     {0, "out of memory"},
		"memory":    {0, "out of memory"},
	} {
		clear(m.rows)
		m.instantiate()
		m.log = nil
		entry := func(key, data string) abi.Entry {
			return abi.Entry{Key: key, AggregateID: key, AggregateType: "x", TypeName: "y", Type: abi.TypeByName, Data: []byte(data)}
		}
		done, err := m.batch(0, []abi.Entry{entry("a", "{}"), entry("b", `{"fail":"`+how+`"}`), entry("c", "{}")})
		require.Equal(t, 1, done, how)
		require.Contains(t, m.reason+strings.Join(m.log, ""), want.words, how)
		require.Len(t, m.rows, 1, how)
		if want.status != 0 {
			require.NoError(t, err, how)
			require.Equal(t, want.status, m.status, how)
			continue
		}
		require.Error(t, err, how)
	}
}

func BenchmarkGuests(b *testing.B) {
	loans, accounts := loanMessages(20_000), accountMessages(20_000, 10_000)
	for _, g := range []struct {
		name string
		wasm []byte
		log  messages
	}{
		{"loans", guest.Build(b, "testplugins/loans"), loans},
		{"accounts", guest.Build(b, "testplugins/accounts"), accounts},
		{"accounts-c", committedC(b), accounts},
	} {
		m := start(b, g.wasm)
		for consumer, c := range m.manifest.Consumers {
			for _, size := range []int{256, 1000} {
				b.Run(fmt.Sprintf("%s/%s/batch=%d", g.name, c.Name, size), func(b *testing.B) { m.measure(b, consumer, g.log, size) })
			}
		}
	}
}

// measure times the guest on entries whose rows are there already, as most are
// in a long log.
func (m *machine) measure(b *testing.B, consumer int, log messages, size int) {
	m.t = b
	entries := m.entriesOf(consumer, log)
	half := len(entries) / 2
	clear(m.rows)
	m.instantiate()
	m.replaying, m.answers = false, nil
	var best []time.Duration // of each batch, over all rounds
	run := func(entries []abi.Entry) {
		i := 0
		for batch := range slices.Chunk(entries, size) {
			start := time.Now()
			if done, err := m.batch(consumer, batch); err != nil || done != len(batch) {
				b.Fatal(done, err, m.reason)
			}
			if i == len(best) {
				best = append(best, time.Hour)
			}
			best[i] = min(best[i], time.Since(start))
			i++
		}
	}
	run(entries[:half])
	m.recording = true
	run(entries[half:])
	m.recording, m.replaying = false, true
	defer func() { m.replaying = false }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best = nil
	start := cpuTime()
	for b.Loop() {
		m.answer = 0
		run(entries[half:])
	}
	perRound := float64(len(entries) - half)
	b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N)/perRound, "cpu-ns/event")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/perRound, "ns/event")
	// What neighbours on the machine take away is least in a batch's best round.
	var sum time.Duration
	for _, d := range best {
		sum += d
	}
	b.ReportMetric(float64(sum.Nanoseconds())/perRound, "best-ns/event")
	b.ReportMetric(float64(m.module.Memory().Size()>>10), "KiB")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRestore times what a host does before each batch, and once per
// instance.
func BenchmarkRestore(b *testing.B) {
	for _, plugin := range []string{"loans", "accounts"} {
		m := start(b, guest.Build(b, "testplugins/"+plugin))
		b.Run(plugin+"/restore", func(b *testing.B) {
			m.t = b
			memory, ok := m.module.Memory().Read(0, m.module.Memory().Size())
			require.True(b, ok)
			snapshot := slices.Clone(memory)
			for b.Loop() {
				copy(memory, snapshot)
			}
		})
		b.Run(plugin+"/instantiate", func(b *testing.B) {
			m.t = b
			for b.Loop() {
				m.instantiate()
			}
		})
	}
}

func TestBatchSplitDoesNotShow(t *testing.T) {
	for plugin, log := range map[string]messages{"loans": loanMessages(1500), "accounts": accountMessages(1500, 100)} {
		m := start(t, guest.Build(t, "testplugins/"+plugin))
		var want string
		for _, size := range []int{256, 7, 1} {
			clear(m.rows)
			m.instantiate()
			m.run(log, size)
			if want == "" {
				want = m.dump()
			}
			require.Equal(t, want, m.dump(), "%s in batches of %d", plugin, size)
		}
	}
}
