package dbtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a private instance that a test may kill and restart.
type Server struct {
	// DSN of an empty database on it, of the same form as Postgres and MySQL give.
	DSN string

	t     testing.TB // nil for the shared servers
	admin string     // DSN of a database that is always there
	port  int
	keep  *keeper
	// serve is the shell command that runs the server in the foreground.
	serve func(port int) string
	// ready asks the server once whether it takes connections.
	ready func(context.Context) error
	pid   int
}

// Kill ends the server as a crash does. Start brings it back on the same data and address.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Start brings a killed server back and returns when it takes connections.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
}

// Freeze stops the server's processes where they are, as a machine does that is
// suspended: connections stay open and nothing answers. Thaw lets them go on.
func (s *Server) Freeze() { signalAll(append(descendants(s.pid), s.pid), syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (s *Server) Thaw() { signalAll(append(descendants(s.pid), s.pid), syscall.SIGCONT) }

func (s *Server) kill() error {
	if s.pid == 0 {
		return fmt.Errorf("the server is not running")
	}
	// The parent is stopped first, lest it tidies up after its children.
	signalAll([]int{s.pid}, syscall.SIGSTOP)
	// Until it has really stopped it may have another child, which would hold on to
	// what they share and not be known here.
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if state, _ := processState(s.pid); state != "R" && state != "S" && state != "D" {
			break
		}
		time.Sleep(time.Millisecond) // it is no child of ours: nothing tells
	}
	children := descendants(s.pid)
	signalAll(children, syscall.SIGKILL)
	signalAll([]int{s.pid}, syscall.SIGKILL)
	s.pid = 0
	// Nor would one whose children still let go of what they shared.
	for end := time.Now().Add(patience); len(children) > 0 && time.Now().Before(end); {
		if ended(children[0]) {
			children = children[1:]
			continue
		}
		time.Sleep(time.Millisecond) // they are no children of ours: nothing tells
	}
	// A server that is not waited for would look alive to its successor.
	_, err := s.keep.run(`wait $server; server=; echo`)
	return err
}

func (s *Server) start() error {
	if s.pid != 0 {
		return fmt.Errorf("the server is running")
	}
	out, err := s.keep.run(s.serve(s.port) + ` </dev/null >>"$dir/log" 2>&1 & server=$!; echo $server`)
	if err != nil {
		return err
	}
	if s.pid, err = strconv.Atoi(out); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		if ended(s.pid) {
			return fmt.Errorf("the server ended at its start:\n%s", s.keep.log())
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the server is not ready after %v: %w\n%s", patience, err, s.keep.log())
		}
		time.Sleep(20 * time.Millisecond) // nothing else tells when it listens
	}
}

// launch starts a server on a free port. Another process may take the port in
// between, so a server that ends at once gets further tries.
func (s *Server) launch() (err error) {
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.start(); err == nil {
			return nil
		}
		if s.pid != 0 {
			s.kill()
		}
	}
	return err
}

// freePort finds a port below those that the system gives to outgoing
// connections: one of them could sit on it while a killed server is down.
func freePort() (int, error) {
	var last error
	for range 100 {
		port := 12000 + rand.IntN(20000)
		l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return 0, last
}

// keeper is a small shell that owns a temporary folder and the server in it. It
// runs the lines it is given; when its input ends, because it is let go or
// because this process has died, it ends the server and removes the folder.
type keeper struct {
	dir string

	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// PostgreSQL holds shared memory outside of its folder and gives it back when it
// is told to end at once; where it was killed, what its lock file names is
// removed here.
const keeperScript = `
trap '' HUP INT TERM
dir=$1; server=
while IFS= read -r line; do eval "$line"; done
if [ -n "$server" ] && [ -f "$dir/data/postmaster.pid" ]; then
  kill -CONT $server; kill -QUIT $server
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ -d /proc/$server ] && ! grep -q '^State:.Z' /proc/$server/status || break
    sleep 0.1
  done
fi
[ -z "$server" ] || { kill -KILL $server; wait $server; }
if [ -f "$dir/data/postmaster.pid" ]; then
  segment=$(sed -n 7p "$dir/data/postmaster.pid" | tr -s ' ' | sed 's/^ *[0-9]* //')
  [ -z "$segment" ] || ipcrm -m $segment
fi
for i in 1 2 3 4 5; do rm -rf "$dir" && break; sleep 0.2; done
`

// newKeeper makes a folder that belongs to one of the users, the first there
// is, when this process is root: database servers refuse to run as root.
func newKeeper(users ...string) (*keeper, error) {
	dir, err := os.MkdirTemp("", "ph-dbtest-")
	if err != nil {
		return nil, err
	}
	k, err := keep(dir, users)
	if err != nil {
		os.RemoveAll(dir)
	}
	return k, err
}

func keep(dir string, users []string) (*keeper, error) {
	cmd := exec.Command("sh", "-c", keeperScript, "dbtest", dir)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir, "TMPDIR="+dir) // MariaDB names temporary files by process only
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}                   // Ctrl-C reaches the tests only
	if os.Getuid() == 0 {
		uid, gid, err := firstUser(users)
		if err != nil {
			return nil, err
		}
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			return nil, err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	k := &keeper{dir: dir, cmd: cmd}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	k.out = bufio.NewReader(out)
	if k.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return k, cmd.Start()
}

func firstUser(names []string) (uid, gid uint32, err error) {
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		id, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return 0, 0, err
		}
		group, err := strconv.ParseUint(u.Gid, 10, 32)
		return uint32(id), uint32(group), err
	}
	return 0, 0, fmt.Errorf("database servers do not run as root, and there is no user %s or nobody", strings.Join(names, ", "))
}

// run has the keeper run a line of shell and gives the line it answers.
func (k *keeper) run(line string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := io.WriteString(k.in, line+"\n"); err != nil {
		return "", err
	}
	answer, err := k.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// do runs a command that must succeed.
func (k *keeper) do(command string) error {
	status, err := k.run(command + ` </dev/null >>"$dir/log" 2>&1; echo $?`)
	if err != nil {
		return err
	}
	if status != "0" {
		return fmt.Errorf("%s: exit status %s\n%s", command, status, k.log())
	}
	return nil
}

// close ends the server, removes the folder, and returns when both are done.
func (k *keeper) close() error {
	k.in.Close()
	return k.cmd.Wait()
}

// log is the end of what the server wrote.
func (k *keeper) log() string {
	text, err := os.ReadFile(filepath.Join(k.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// command spells a command for the shell.
func command(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// program finds an installed program: in the folders, the last match of a
// pattern first, else in PATH. "" is none.
func program(name string, folders ...string) string {
	for _, folder := range folders {
		matches, _ := filepath.Glob(filepath.Join(folder, name))
		if best := newest(matches); best != "" {
			return best
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// newest picks the path with the highest number in it: 16 is newer than 9.
func newest(paths []string) string {
	best, highest := "", -1
	for _, p := range paths {
		n := 0
		for part := range strings.SplitSeq(p, "/") {
			if v, err := strconv.Atoi(part); err == nil {
				n = v
			}
		}
		if n > highest {
			best, highest = p, n
		}
	}
	return best
}

func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		syscall.Kill(pid, sig) // it may have ended by itself
	}
}

// descendants are the processes below pid, from /proc; where there is none, the
// children of a killed server end by themselves.
func descendants(pid int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if _, parent := processState(child); parent != 0 {
			children[parent] = append(children[parent], child)
		}
	}
	var found []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		found = append(found, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return found
}

// ended reports whether a process has ended, waited for or not.
func ended(pid int) bool {
	if state, _ := processState(pid); state != "" {
		return state == "Z"
	}
	return syscall.Kill(pid, 0) == syscall.ESRCH
}

// processState reads a process's state and parent from /proc.
func processState(pid int) (state string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// The name stands in parentheses and may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}
