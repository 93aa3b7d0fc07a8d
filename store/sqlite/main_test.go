package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// children are what the test binary does when it is started as a process of
// its own, by name. Each gets the path of a database.
var children = map[string]func(path string){
	"append": childAppends,
	"apply":  childApplies,
	"hold":   childHolds,
	"open":   childOpens,
}

func TestMain(m *testing.M) {
	if name := os.Getenv("PROJHOST_TEST_CHILD"); name != "" {
		children[name](os.Getenv("PROJHOST_TEST_PATH"))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a process of ours that a test may kill.
type child struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startChild(t testing.TB, name, path string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PROJHOST_TEST_CHILD="+name, "PROJHOST_TEST_PATH="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{Cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// line is the child's next line of output, "" at its end.
func (c *child) line() string {
	if !c.lines.Scan() {
		return ""
	}
	return c.lines.Text()
}

func (c *child) kill() {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

func childFails(err error) {
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}
