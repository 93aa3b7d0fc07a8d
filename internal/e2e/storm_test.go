package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/guest"
)

var storms = flag.Int("storms", 40, "how often the host is killed in the storm of several clients and consumers")

// Promises P1 and P9 under everything at once: three consumers, an importer,
// clients that append with optimistic concurrency, and a host that is killed
// while it starts (the first times with an empty folder), while it applies,
// while it stops in good order, and while the log is moved into the file.
//
// What a client was told is true: a version is given once, an append that was
// acknowledged is there once, and one that was not is there once after it is
// sent again with the same event ids.
func TestStormOfKills(t *testing.T) {
	rounds := *storms
	if testing.Short() {
		rounds = min(rounds, 8)
	}
	storm(t, newSite(t, stormConfig), rounds, 200*time.Millisecond)
}

// The same on servers, where a host that was killed counts as running for a
// while, its connections end by themselves, and the next one is another
// instance beside it.
func TestStormOfKillsOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, v server) {
		rounds := max(1, *storms/4)
		if testing.Short() {
			rounds = min(rounds, 3)
		}
		storm(t, newSiteOn(t, v.driver, v.dsn(t), quick+stormConfig), rounds, 2500*time.Millisecond)
	})
}

const stormConfig = "[apply]\nbatch = 50\n[[plugin]]\nname = \"counter\"\npath = \"counter.wasm\"\n"

// storm kills a host again and again, at the latest when life is over.
func storm(t *testing.T, s *site, rounds int, life time.Duration) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 2))
	embedded := s.driver == ""
	s.write("counter.wasm", string(guest.Build(t, "testplugins/poison/mended")))
	began := time.Now()
	if embedded {
		s.start().ready().stop() // what is compiled is kept
		require.NoError(t, os.Rename(filepath.Join(s.dir, "data", "modules"), filepath.Join(s.dir, "modules")))
		require.NoError(t, os.RemoveAll(filepath.Join(s.dir, "data")))
		require.NoError(t, os.Mkdir(filepath.Join(s.dir, "data"), 0o700))
		require.NoError(t, os.Rename(filepath.Join(s.dir, "modules"), filepath.Join(s.dir, "data", "modules")))
	} else {
		s.command("plugins", "check", "loans.wasm", "counter.wasm")
	}
	slow := time.Since(began)

	// In start-up: a process, not a host that is waited for.
	starting := func() {
		t.Helper()
		c := exec.Command(program, "run")
		c.Dir = s.dir
		require.NoError(t, c.Start())
		time.Sleep(time.Duration(random.Int64N(int64(min(slow, 400*time.Millisecond))))) // the moment is the point
		require.NoError(t, c.Process.Kill())
		_ = c.Wait()
	}
	for range max(1, rounds/4) {
		starting()
		if embedded && random.IntN(2) == 0 { // a fresh folder again: migrations, subscribing
			files, err := filepath.Glob(s.database() + "*")
			require.NoError(t, err)
			for _, f := range files {
				require.NoError(t, os.Remove(f))
			}
		}
	}

	fold, lines := loanSample(t, 150*rounds)
	var url atomic.Pointer[string] // of the host that lives, if one does
	done := make(chan struct{})
	var clients sync.WaitGroup
	var shared atomic.Int64 // appends to the stream that all want
	for i := range 4 {
		c := &client{t: t, url: &url, done: done, random: rand.New(rand.NewPCG(*seed, uint64(100+i)))}
		clients.Go(func() { c.own(fmt.Sprintf("client-%d", i)) })
		clients.Go(func() {
			c := *c
			c.random = rand.New(rand.NewPCG(*seed, uint64(200+i)))
			shared.Add(c.contend("everybody"))
		})
	}
	sent := 0
	for k := range rounds {
		h := s.start()
		url.Store(&h.url)
		var feeding sync.WaitGroup
		feeding.Go(func() {
			for limit := len(lines) * (k + 1) / rounds; sent < limit; {
				next := min(sent+40, limit)
				if !h.send(bytes.Join(lines[sent:next], nil)) {
					return
				}
				sent = next
			}
		})
		moving := make(chan struct{})
		if embedded && random.IntN(3) == 0 {
			feeding.Go(func() { s.moveLog(moving) })
		}
		time.Sleep(time.Duration(random.Int64N(int64(life)))) // the moment is the point
		if random.IntN(3) == 0 {
			_ = h.cmd.Process.Signal(syscall.SIGTERM)
			time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		}
		_ = h.cmd.Process.Kill() // it may have stopped by itself
		<-h.ended
		url.Store(nil)
		close(moving)
		feeding.Wait()
		if random.IntN(3) == 0 {
			starting()
		}
	}
	h := s.start()
	url.Store(&h.url)
	for sent < len(lines) {
		next := min(sent+1000, len(lines))
		require.True(t, h.send(bytes.Join(lines[sent:next], nil)))
		sent = next
	}
	close(done)
	clients.Wait()
	h.caughtUp()
	end := h.end()
	h.applied("poison", end)
	h.stop()

	s.equalsOracle(fold)
	s.countsEveryEvent(end)
	streams := s.streams("thing")
	require.Len(t, streams["everybody"], int(shared.Load()), "appends that were acknowledged, and no other")
	require.Positive(t, shared.Load())
}

// end is the position of the last event.
func (h *host) end() int64 {
	h.t.Helper()
	var topics struct{ Items []struct{ End int64 } }
	require.NoError(h.t, json.Unmarshal(h.get("/v1/topics"), &topics))
	return topics.Items[0].End
}

// client appends to a host that comes and goes.
type client struct {
	t      *testing.T
	url    *atomic.Pointer[string]
	done   chan struct{}
	random *rand.Rand
}

func (c *client) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// try sends an append until it is answered by something else than "unknown".
func (c *client) try(stream, body string) (status int, version int64, text string) {
	for {
		url := c.url.Load()
		if url == nil {
			time.Sleep(5 * time.Millisecond) // until another process lives
			continue
		}
		h := &host{t: c.t, url: *url}
		a, ok := h.call("POST", "/v1/streams/thing/"+stream, body)
		if !ok || a.status == http.StatusServiceUnavailable {
			time.Sleep(time.Duration(c.random.IntN(5)) * time.Millisecond)
			continue
		}
		var res struct{ Version int64 }
		_ = json.Unmarshal([]byte(a.body), &res)
		return a.status, res.Version, a.body
	}
}

// event is the body of an append of one event with an id of its own.
func event(expected, n int64) string {
	return fmt.Sprintf(`{"expected_version":%d,"events":[{"id":%q,"type":"T","data":{"n":%d}}]}`, expected, uuid.NewString(), n)
}

// own appends to a stream that nobody else touches: its versions follow each
// other whatever happens in between.
func (c *client) own(stream string) {
	for v := int64(0); !c.over(); v++ {
		status, version, text := c.try(stream, event(v, v+1))
		if status != http.StatusCreated && status != http.StatusOK || version != v+1 {
			c.t.Errorf("append %d to %s: %d %s", v+1, stream, status, text)
			return
		}
	}
}

// contend appends to a stream that others append to as well, and returns how
// many of its appends were acknowledged.
func (c *client) contend(stream string) (acknowledged int64) {
	guess := int64(0)
	for !c.over() {
		status, version, text := c.try(stream, event(guess, 0))
		switch status {
		case http.StatusCreated, http.StatusOK:
			acknowledged++
			if version != guess+1 {
				c.t.Errorf("append to %s at version %d answered %d", stream, guess, version)
				return
			}
			guess = version
		case http.StatusConflict:
			var conflict struct {
				Error struct {
					Code   string
					Actual int64
				}
			}
			if json.Unmarshal([]byte(text), &conflict) != nil || conflict.Error.Code != "concurrent_write" {
				c.t.Errorf("append to %s: %s", stream, text)
				return
			}
			guess = conflict.Error.Actual
		default:
			c.t.Errorf("append to %s: %d %s", stream, status, text)
			return
		}
	}
	return acknowledged
}

// moveLog has the log moved into the file again and again, as an SQL client may.
func (s *site) moveLog(stop chan struct{}) {
	db := s.open()
	defer db.Close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		// Busy while somebody writes: that is as good a moment as any.
		_, _ = db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	}
}

// countsEveryEvent compares what the plugin mended made of all events, and how
// far the checkpoints of all consumers are, with the log itself.
func (s *site) countsEveryEvent(end int64) {
	s.t.Helper()
	if s.driver == "" {
		require.Equal(s.t, [][]string{{"ok"}}, s.rows("PRAGMA integrity_check"))
	}
	type state struct {
		events int
		last   string // position and payload
	}
	want := map[string]state{}
	events := s.rows(`SELECT "aggregate_id", "position", "data" FROM "ph_events" ORDER BY "position"`)
	for _, e := range events {
		want[e[0]] = state{want[e[0]].events + 1, e[1] + " " + e[2]}
	}
	if s.driver == "" {
		require.Equal(s.t, fmt.Sprint(end), fmt.Sprint(len(events)), "positions have no holes here")
	}
	require.Equal(s.t, [][]string{{"0"}}, s.rows(fmt.Sprintf(`SELECT count(*) FROM "ph_checkpoints" WHERE position <> %d`, end)), "checkpoints that are not at the end")
	have := map[string]state{}
	for _, r := range s.rows(`SELECT "key", "events", "ph_position", "last_data" FROM "poison"`) {
		n, err := strconv.Atoi(r[1])
		require.NoError(s.t, err)
		have[r[0]] = state{n, r[2] + " " + r[3]}
	}
	require.Equal(s.t, want, have)
}

// streams are the payloads of all streams of a type, in sequence, which must
// have no hole.
func (s *site) streams(typ string) map[string][]string {
	s.t.Helper()
	out := map[string][]string{}
	text := s.run("", "export", "events").ok()
	seen := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(text)); dec.More(); {
		var e struct {
			ID   string
			Type string `json:"aggregate_type"`
			Key  string `json:"aggregate_id"`
			Data json.RawMessage
		}
		require.NoError(s.t, dec.Decode(&e))
		require.Falsef(s.t, seen[e.ID], "event %s is there twice", e.ID)
		seen[e.ID] = true
		if e.Type == typ {
			out[e.Key] = append(out[e.Key], string(e.Data))
		}
	}
	for key, list := range out {
		for i, data := range list {
			if strings.HasPrefix(key, "client-") {
				require.Equal(s.t, fmt.Sprintf(`{"n":%d}`, i+1), data, key)
			}
		}
	}
	return out
}
