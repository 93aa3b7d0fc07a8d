//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An edit of the program's source is made for one build, by go build -overlay:
// there is nothing in the program itself that could take a guard out.
type edit struct{ file, was, becomes string }

// Without the fence a batch may be applied by whom its partitions do not belong
// to: the rows are still locked, if they are there, but not counted.
var noFence = []edit{
	{"store/postgres/queries.go", `guarded("count(*) = $5::bigint", leases)`, `guarded("count(*) <= $5::bigint", leases)`},
	{"store/mysql/apply.go", `n != int64(len(b.Leases))`, `n > int64(len(b.Leases))`},
}

// Without the comparison a batch may be applied that was not read from where the
// checkpoints are.
var noCompare = []edit{
	{"store/postgres/queries.go", "guarded(\"count(*) = $7::bigint\", `SELECT 1 FROM moved`)", "guarded(\"count(*) <= $7::bigint\", `SELECT 1 FROM moved`)"},
	{"store/mysql/apply.go", `n != int64(len(moves))`, `n > int64(len(moves))`},
}

// A host that is told that it was removed drops what it has in hand, most of it
// in time. That spares work and is no guard.
var unaware = edit{"partition/member.go", `removed := errors.Is(err, store.ErrNotFound)`, `removed := errors.Is(err, store.ErrNotFound) && false`}

// builtWith builds the program with its source edited.
func builtWith(t *testing.T, edits ...edit) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	texts := map[string]string{}
	for _, e := range edits {
		text, ok := texts[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, e.file))
			require.NoError(t, err)
			text = string(b)
		}
		require.Equalf(t, 1, strings.Count(text, e.was), "%s has changed: where is %s now?", e.file, e.was)
		texts[e.file] = strings.Replace(text, e.was, e.becomes, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range texts {
		edited := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		require.NoError(t, os.WriteFile(edited, []byte(text), 0o600))
		overlay.Replace[filepath.Join(root, file)] = edited
	}
	list, err := json.Marshal(overlay)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600))
	out := filepath.Join(dir, "projhost")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", out, "./cmd/projhost")
	build.Dir = root
	text, err := build.CombinedOutput()
	require.NoErrorf(t, err, "%s", text)
	return out
}

// That the ledgers would show it, and that it is the fence which holds (P2).
//
// Two guards keep a host that was frozen inside an apply from committing it after
// others went on: its generation is old, and the checkpoints have moved. Either
// is enough for that, so a program without the fence alone shows nothing. Neither
// program here compares checkpoints. The one that has no fence besides applies
// messages twice, in as many rounds as it takes; the one that has it does not.
func TestTheFenceHolds(t *testing.T) {
	long(t)
	unfenced := builtWith(t, append(append([]edit{unaware}, noCompare...), noFence...)...)
	uncompared := builtWith(t, append([]edit{unaware}, noCompare...)...)
	onPrivate(t, func(t *testing.T, v server) {
		began := time.Now()
		rounds, twice := thawUntil(t, v, unfenced, func(rounds, twice int) bool { return twice > 0 })
		require.Positive(t, twice, "the ledgers show nothing")
		t.Logf("without the fence %d entries were written twice, in round %d, after %v", twice, rounds, time.Since(began).Round(time.Second))
		_, twice = thawUntil(t, v, uncompared, func(rounds, twice int) bool { return rounds == 4 })
		require.Zero(t, twice, "entries that were written twice")
	})
}

// thawUntil runs hosts of a program and, in each round, freezes one that owns
// partitions until others do, and thaws it. It goes on until enough is seen or
// the time is up, and returns how many rounds there were and how many entries
// were committed more than once. Where none were, the ledgers must balance.
func thawUntil(t *testing.T, v server, binary string, enough func(rounds, twice int) bool) (rounds, twice int) {
	// There is little to do but in the guest: a host that loses its connection in
	// the middle of a statement, because the server or its own clock ended that
	// meanwhile, knows that it has to look anew.
	c := newCluster(t, v, v.dsn(t), plan{places: 3, ledgers: true, spin: 50_000, config: strings.Replace(clusterConfig, "lanes = 2", "lanes = 1", 1)})
	for _, m := range c.members {
		m.binary = binary
	}
	c.start(c.members...)
	feed := newFeeder(c, rand.New(rand.NewPCG(*seed, 21)), loanLines(t))
	for deadline := time.Now().Add(2 * patience); !enough(rounds, twice) && time.Now().Before(deadline); {
		m := c.members[rand.IntN(len(c.members))]
		if m.serves() == nil {
			continue
		}
		id := m.instance()
		if c.owned(id) == 0 {
			continue
		}
		require.True(t, feed.feed(800))                                       // a second's work or so
		time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Millisecond)))) // the moment is the point
		m.signal(syscall.SIGSTOP)
		time.Sleep(clusterTTL) // it counts as running until then
		c.wait("others have taken over", func() string {
			if n := c.owned(id); n > 0 {
				return fmt.Sprintf("%d partitions are still its own", n)
			}
			return ""
		})
		time.Sleep(clusterRebalance) // in which they apply what it has in hand
		m.signal(syscall.SIGCONT)
		time.Sleep(clusterRebalance) // in which it tries to
		m.signal(syscall.SIGKILL)
		rounds++
		twice = c.db.count("(SELECT 1 FROM audit GROUP BY entries, account, message HAVING count(*) > 1) twice")
	}
	if twice > 0 {
		c.kill()
	} else {
		c.start(c.members...)
		c.caughtUp()
		c.stop()
		c.equalsTheLog(feed)
	}
	return rounds, twice
}
