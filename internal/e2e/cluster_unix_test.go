//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/testplugins/loans/oracle"
)

const (
	clusterTTL       = 2 * time.Second
	clusterRebalance = 500 * time.Millisecond
	partitions       = 32
	// slack is what a busy machine may take longer than the limits of hosts.
	slack = 10 * time.Second
)

// clusterConfig is of hosts that find each other soon, and have few partitions so
// that a short test sees each of them move.
var clusterConfig = fmt.Sprintf("[cluster]\nheartbeat = \"300ms\"\ninstance_ttl = %q\nrebalance = %q\n[partitions]\ncount = %d\n[apply]\nlanes = 2\nbatch = 40\n",
	clusterTTL, clusterRebalance, partitions)

// cluster is hosts on one database, each a process with a way of its own to it.
type cluster struct {
	t         *testing.T
	consumers []string
	db        *site // the database without any host, and not by way of a proxy
	members   []*member
}

// plan is what a cluster is to be.
type plan struct {
	places  int    // of hosts
	config  string // ahead of the plugins' tables
	ledgers bool   // and no other plugin
	spin    int    // turns of a loop for each message of a ledger
}

func (p plan) site(t *testing.T, driver, dsn string) *site {
	t.Helper()
	s := newSiteOn(t, driver, dsn, p.config)
	if p.ledgers {
		config := s.read("config.toml")
		s.write("config.toml", config[:strings.Index(config, "[[plugin]]")])
	}
	return s.withLedger(p.spin)
}

// newCluster makes the places of hosts, of which none runs. The tables of the
// read models are there, and their ledgers are audited.
func newCluster(t *testing.T, v server, dsn string, p plan) *cluster {
	t.Helper()
	c := &cluster{t: t, db: p.site(t, v.driver, dsn), consumers: ledgers}
	if !p.ledgers {
		c.consumers = append([]string{"applications", "resources"}, ledgers...)
	}
	c.db.start().ready().stop()
	c.db.auditLedgers()
	for range p.places {
		m := &member{proxy: dbtest.NewProxy(t, dsn)}
		m.site = p.site(t, v.driver, m.proxy.DSN)
		// What is compiled once will do for all.
		require.NoError(t, os.CopyFS(filepath.Join(m.dir, "data", "modules"), os.DirFS(filepath.Join(c.db.dir, "data", "modules"))))
		c.members = append(c.members, m)
	}
	t.Cleanup(c.kill) // nothing runs on after a test that has failed
	return c
}

// kill ends all hosts at once.
func (c *cluster) kill() {
	for _, m := range c.members {
		m.mu.Lock()
		m.wanted = false
		m.mu.Unlock()
		m.signal(syscall.SIGKILL)
	}
	for _, m := range c.members {
		m.running.Wait()
	}
}

// member is the place of a host that is started again when it has ended, as a
// supervisor does, while it is wanted.
type member struct {
	*site
	proxy  *dbtest.Proxy
	hidden bool // nobody reaches its host

	mu      sync.Mutex
	wanted  bool
	kept    bool // by keep
	ending  bool // the process was told to end, or killed
	h       *host
	url     string // "" unless it serves
	logs    bytes.Buffer
	running sync.WaitGroup
}

// run wants a host here from now on.
func (m *member) run() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = true
	if !m.kept {
		m.kept = true
		m.running.Go(m.keep)
	}
}

// keep runs one host after the other while one is wanted.
func (m *member) keep() {
	for {
		m.mu.Lock()
		if !m.wanted {
			m.kept = false
			m.mu.Unlock()
			return
		}
		h := m.launch()
		m.h, m.ending = h, false
		m.mu.Unlock()
		var err error
		select {
		case url := <-h.serving:
			m.mu.Lock()
			if !m.hidden {
				m.url = url
			}
			m.mu.Unlock()
			err = <-h.ended
		case err = <-h.ended:
		}
		m.mu.Lock()
		// Before it has started it may: a start that loses its database is for
		// the supervisor to repeat.
		if !m.ending && m.t.Context().Err() == nil && len(h.logLines("started")) > 0 {
			m.t.Errorf("a host ended by itself: %v\n%s", err, tail(h.log.String()))
		}
		m.h, m.url = nil, ""
		m.logs.Write(h.log.Bytes())
		m.mu.Unlock()
		time.Sleep(100 * time.Millisecond) // as a supervisor does, lest it runs in circles
	}
}

func tail(log string) string { return log[max(0, len(log)-4000):] }

// signal sends a signal to the process, if there is one.
func (m *member) signal(sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.h == nil {
		return
	}
	switch sig {
	case syscall.SIGKILL:
		m.ending, m.url = true, ""
	case syscall.SIGTERM:
		m.ending = true
	}
	_ = m.h.cmd.Process.Signal(sig) // it may have ended meanwhile
}

// leave has the host stop in good order, and no other start.
func (m *member) leave() {
	m.mu.Lock()
	m.wanted = false
	m.mu.Unlock()
	m.signal(syscall.SIGTERM)
}

// gone waits until nothing runs here.
func (m *member) gone() {
	m.t.Helper()
	ended := make(chan struct{})
	go func() { m.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		require.FailNow(m.t, "a host does not stop")
	}
}

// serves is the host if it serves, or is frozen and would.
func (m *member) serves() *host {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.url == "" {
		return nil
	}
	return &host{t: m.t, url: m.url}
}

// instance is what the host that serves here counts as now.
func (m *member) instance() string {
	m.t.Helper()
	h := m.serves()
	require.NotNil(m.t, h, "no host serves")
	var status struct {
		InstanceID string `json:"instance_id"`
	}
	require.NoError(m.t, json.Unmarshal(h.get("/v1/status"), &status))
	return status.InstanceID
}

// owned is how many partitions belong to an instance.
func (c *cluster) owned(instance string) int {
	c.t.Helper()
	return c.db.count("ph_ownership WHERE instance_id = '" + instance + "'")
}

// settled waits until the partitions of every consumer are spread over these hosts
// as evenly as is promised, or all with one where they belong together, and none
// changes hands.
func (c *cluster) settled(members ...*member) {
	c.t.Helper()
	since, before := time.Now(), ""
	c.wait("who owns what is settled", func() string {
		rows := c.db.rows(`SELECT c."name", o."partition", o."instance_id", o."generation" FROM "ph_ownership" o JOIN "ph_consumers" c ON c."live_build" = o."build" ORDER BY c."name", o."partition"`)
		if now := fmt.Sprint(rows); now != before {
			since, before = time.Now(), now
		}
		owned := map[string]map[string]int{} // by consumer and instance
		for _, row := range rows {
			if owned[row[0]] == nil {
				owned[row[0]] = map[string]int{}
			}
			owned[row[0]][row[2]]++
		}
		var ids []string
		for _, m := range members {
			ids = append(ids, m.instance())
		}
		for name, by := range owned {
			total, most := 0, 0
			for _, id := range ids {
				total, most = total+by[id], max(most, by[id])
			}
			bound := (5*partitions + 4*len(ids) - 1) / (4 * len(ids)) // 1.25 of an equal share, rounded up
			switch {
			case total < partitions:
				return fmt.Sprintf("%d of %d partitions of %s belong to these hosts: %v", total, partitions, name, by)
			case name == "ledger_total" && most < partitions:
				return fmt.Sprintf("the partitions of %s belong together: %v", name, by)
			case name != "ledger_total" && (most > bound || len(by) < len(ids)):
				return fmt.Sprintf("the partitions of %s are not spread, at most %d to each: %v", name, bound, by)
			}
		}
		if time.Since(since) < 2*clusterRebalance {
			return "they change hands"
		}
		return ""
	})
}

// start runs hosts at these members and waits until they are ready.
func (c *cluster) start(members ...*member) {
	c.t.Helper()
	for _, m := range members {
		m.run()
	}
	c.wait("all are ready", func() string {
		for i, m := range members {
			h := m.serves()
			if h == nil {
				return fmt.Sprintf("host %d does not serve", i)
			}
			if a, ok := h.call("GET", "/readyz", ""); !ok || a.status != http.StatusOK {
				return fmt.Sprintf("host %d: %s", i, a.body)
			}
		}
		return ""
	})
}

// stop ends all hosts in good order.
func (c *cluster) stop() {
	c.t.Helper()
	for _, m := range c.members {
		m.leave()
	}
	for _, m := range c.members {
		m.gone()
	}
}

// wait asks other processes, which have no other way to tell, until nothing is
// missing.
func (c *cluster) wait(what string, missing func() string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		why := missing()
		if why == "" {
			return
		}
		require.Truef(c.t, time.Now().Before(deadline), "%s: not within %s: %s", what, patience, why)
	}
}

// caughtUp waits until every consumer has applied everything: for every partition
// some host says so, and none of those that are not asked has to.
func (c *cluster) caughtUp(but ...*member) {
	c.t.Helper()
	for _, name := range c.consumers {
		c.wait(name+" has caught up", func() (why string) {
			var behind map[int]bool // with every host that was asked
			for i, m := range c.members {
				h := m.serves()
				if h == nil || slices.Contains(but, m) {
					continue
				}
				a, ok := h.call("GET", fmt.Sprintf("/v1/read-models/%s?limit=1&min_position=%d&wait=100ms", name, h.end()), "")
				if ok && a.status == http.StatusOK {
					return ""
				}
				why += fmt.Sprintf(" host %d: %s", i, a.body)
				var e struct {
					Error struct{ Lagging []struct{ Partition int } }
				}
				if !ok || json.Unmarshal([]byte(a.body), &e) != nil || len(e.Error.Lagging) == 0 {
					continue // it does not know
				}
				here := map[int]bool{}
				for _, l := range e.Error.Lagging {
					here[l.Partition] = behind == nil || behind[l.Partition]
				}
				behind = here
				maps.DeleteFunc(behind, func(_ int, yes bool) bool { return !yes })
				if len(behind) == 0 {
					return ""
				}
			}
			return cmp.Or(why, " no host serves")
		})
	}
}

// equalsTheLog compares all that a cluster at rest has made of the lines with
// what it should have.
func (c *cluster) equalsTheLog(sent *feeder) {
	c.t.Helper()
	require.Equal(c.t, sent.lines, c.db.count("ph_events"), "events")
	end := c.db.rows(`SELECT max("position") FROM "ph_events"`)[0][0]
	require.Empty(c.t, c.db.rows(`SELECT * FROM "ph_checkpoints" WHERE "position" < `+end), "checkpoints that are not at the end")
	require.Empty(c.t, c.db.rows(`SELECT "name", "halt" FROM "ph_consumers" WHERE "state" <> 'running'`), "consumers that do not run")
	if len(c.consumers) > len(ledgers) {
		c.db.equalsOracle(sent.fold)
	}
	c.db.balances()
	for i, m := range c.members {
		for line := range strings.Lines(m.logs.String()) {
			var l struct {
				Level   string `json:"@level"`
				Message string `json:"@message"`
			}
			// A host that was cut off for long leaves its consumers to others.
			if json.Unmarshal([]byte(line), &l) == nil && l.Level == "error" && l.Message != "consumer is left to other hosts" || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
				c.t.Errorf("host %d: %s", i, line)
			}
		}
	}
}

// feeder appends lines through the hosts of a cluster, in their order and each
// chunk again until it is acknowledged.
type feeder struct {
	c      *cluster
	random *rand.Rand
	next   func() (oracle.Event, []byte, bool)
	client http.Client

	fold     *oracle.Fold
	lines    int // that were acknowledged
	attempts int
}

func newFeeder(c *cluster, random *rand.Rand, lines iter.Seq2[oracle.Event, []byte]) *feeder {
	f := &feeder{c: c, random: random, fold: oracle.New(), client: http.Client{Timeout: clusterTTL / 2}}
	next, stop := iter.Pull2(lines)
	c.t.Cleanup(stop)
	f.next = next
	return f
}

// chunk is lines that are appended together.
type chunk struct {
	text  []byte
	lines int
}

// take gives the next lines.
func (f *feeder) take(n int) (c chunk) {
	for ; c.lines < n; c.lines++ {
		e, line, ok := f.next()
		if !ok {
			f.c.t.Error("no more lines")
			break
		}
		if err := f.fold.Add(e); err != nil {
			f.c.t.Error(err)
			break
		}
		c.text = append(c.text, line...)
	}
	return c
}

// push appends a chunk by way of whatever host takes it, and of none of some. It
// returns when it is acknowledged.
func (f *feeder) push(c chunk, but ...*member) bool {
	for !f.c.t.Failed() {
		m := f.c.members[f.random.IntN(len(f.c.members))]
		if h := m.serves(); h != nil && !slices.Contains(but, m) {
			f.attempts++
			if f.send(h, c.text) {
				f.lines += c.lines
				return true
			}
		}
		time.Sleep(5 * time.Millisecond) // before another host is asked
	}
	return false
}

// feed takes lines and pushes them.
func (f *feeder) feed(n int) bool { return f.push(f.take(n)) }

// meanwhile feeds until the function it returns is called: there is always
// something to apply, and never much.
func (f *feeder) meanwhile() (stop func()) {
	done := make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for f.feed(40) {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() {
		close(done)
		feeding.Wait()
	}
}

// send reports whether the host acknowledged the lines: one that is killed,
// frozen or cut off does not.
func (f *feeder) send(h *host, lines []byte) bool {
	resp, err := f.client.Post(h.url+"/v1/import", "application/x-ndjson", bytes.NewReader(lines))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil || resp.StatusCode == http.StatusServiceUnavailable:
		return false
	case resp.StatusCode != http.StatusOK:
		f.c.t.Errorf("import: %s %s", resp.Status, body)
		return false
	}
	return true
}

// loanLines are those of the real log where PROJHOST_TEST_LOANS names it, and of
// the generated one behind them or in their place.
func loanLines(t *testing.T) iter.Seq2[oracle.Event, []byte] {
	return func(yield func(oracle.Event, []byte) bool) {
		if file := os.Getenv("PROJHOST_TEST_LOANS"); file != "" {
			f, err := os.Open(file)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			z, err := gzip.NewReader(f)
			if err != nil {
				t.Error(err)
				return
			}
			for log := bufio.NewReader(z); ; {
				line, err := log.ReadBytes('\n')
				if err == io.EOF {
					break
				}
				e, err := loanEvent(line)
				if err != nil {
					t.Error(err)
					return
				}
				if !yield(e, line) {
					return
				}
			}
		}
		for e := range samples.Loans(math.MaxInt) {
			if !yield(oracle.Event{AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Data: e.Data, OccurredUS: e.OccurredUS}, e.AppendLine(nil)) {
				return
			}
		}
	}
}
