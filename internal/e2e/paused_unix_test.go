//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A host that is stopped for longer than an instance may be silent, in the
// middle of applying, goes on as if nothing had been: nobody else could take
// its place meanwhile, and no limit of its own counts what it slept (P2).
func TestPaused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())

	const ttl = time.Second
	s := newSite(t, fmt.Sprintf("[cluster]\nheartbeat = \"300ms\"\ninstance_ttl = %q\n[apply]\nbatch = 30\n", ttl))
	// The plugin's time limit is shorter than a pause as well.
	s.write("config.toml", strings.NewReplacer("127.0.0.1:0", address, `timeout = "0s"`, `timeout = "1s"`).Replace(s.read("config.toml")))
	fold, lines := loanSample(t, 6000)
	h := s.start().ready()
	signal := func(sig syscall.Signal) { require.NoError(t, h.cmd.Process.Signal(sig)) }
	const pauses = 5
	for i := range pauses {
		require.True(t, h.send(bytes.Join(lines[len(lines)*i/pauses:len(lines)*(i+1)/pauses], nil)))
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // somewhere in applying them
		signal(syscall.SIGSTOP)
		began := time.Now()
		if i == 0 {
			// It holds its folder, asleep or not.
			o := s.run("", "run")
			require.Equal(t, 1, o.code)
			require.Contains(t, o.stderr, fmt.Sprintf("another projhost (process %d on ", h.cmd.Process.Pid))
			o = s.run(`{"type":"T","data":1}`, "append", "other", "O-1")
			require.Equal(t, 1, o.code)
			require.Contains(t, o.stderr, "and none answers at "+address)
		}
		time.Sleep(max(0, 2*ttl-time.Since(began))) // the pause is the point
		signal(syscall.SIGCONT)
	}
	h.caughtUp()
	h.ready()
	h.stop()
	s.equalsOracle(fold)
}
