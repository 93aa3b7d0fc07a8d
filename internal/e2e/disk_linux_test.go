package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// small mounts a file system of a few megabytes as the site's data folder, or
// tells why it cannot.
func (s *site) small(size string) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "data")
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), "mount") {
			s.t.Fatalf("mounting a small file system: %v", err)
		}
		s.t.Skipf("no small file system to fill: mounting one needs root (%v)", err)
	}
	s.t.Cleanup(func() { require.NoError(s.t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// fill leaves about so much room on the data folder's disk.
func (s *site) fill(room int64) {
	s.t.Helper()
	var st syscall.Statfs_t
	require.NoError(s.t, syscall.Statfs(filepath.Join(s.dir, "data"), &st))
	free := int64(st.Bavail) * st.Bsize
	require.Greater(s.t, free, room)
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, "data", "ballast"), make([]byte, free-room), 0o600))
}

func (s *site) empty() {
	s.t.Helper()
	require.NoError(s.t, os.Remove(filepath.Join(s.dir, "data", "ballast")))
}

const freeSpace = "free some space"

// A disk that is full: appends are refused with what to do, the host says that
// it is retrying and why, reads go on, and with space again it goes on by
// itself. Nothing is lost (P9), nothing counts twice (P1).
func TestDiskFull(t *testing.T) {
	// Small batches, so that applying takes more room than is left.
	s := newSite(t, "[apply]\nbatch = 100\n")
	s.small("64m")
	fold, lines := loanSample(t, 20_000)
	s.start().ready().stop() // what is compiled is kept
	s.write("loans.jsonl", string(bytes.Join(lines[:len(lines)/2], nil)))
	require.Contains(t, s.run("", "import", "loans.jsonl").ok(), "10,000 events stored")

	// Room to start, and for some batches.
	s.fill(700 << 10)
	h := s.start()
	c := h.stuck()
	require.Contains(t, c.Reason, freeSpace)
	require.Positive(t, c.Lag)
	for _, name := range []string{"applications", "resources"} {
		require.Equal(t, http.StatusOK, h.must("GET", "/v1/read-models/"+name+"?limit=3", "").status)
	}
	require.Regexp(t, `projection/\w+ is retrying: apply: database or disk is full \(13\) \(the disk or the database's size limit is full: free some space`, s.command("status", "--url", h.url))

	// The last room goes to small appends; the one that is refused is not there.
	stored := 0
	for ; ; stored++ {
		a := h.must("POST", "/v1/streams/other/O-1", `{"expected_version":"any","events":[{"type":"T","data":"`+strings.Repeat("x", 10_000)+`"}]}`)
		if a.status != http.StatusCreated {
			require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
			require.Equal(t, "unavailable", a.Error.Code)
			require.Contains(t, a.Error.Message, freeSpace)
			require.NotEmpty(t, a.header.Get("Retry-After"))
			break
		}
	}
	require.Contains(t, h.must("GET", "/v1/streams/other/O-1?limit=1", "").body, fmt.Sprintf(`"version":%d`, stored))
	s.write("loans.jsonl", string(bytes.Join(lines, nil)))
	o := s.run("", "import", "loans.jsonl", "--url", h.url, "--retry-for", "0")
	require.Equal(t, 1, o.code)
	require.Regexp(t, `^projhost: import loans\.jsonl: import: the database cannot be used right now: .*`+freeSpace+`.* \(unavailable\) \(0 events stored( and [0-9,]+ already there)?; import again to go on\)\n$`, o.stderr)

	s.empty()
	require.Contains(t, s.run("", "import", "loans.jsonl", "--url", h.url).ok(), "10,000 events stored, 10,000 already there")
	h.caughtUp()
	h.ready()
	h.stop()
	require.NotEmpty(t, h.logLines("goes on after retrying"))
	require.Equal(t, len(lines)+stored, s.count("ph_events"))
	s.equalsOracle(fold)
}

// Killed on a full disk, started there in vain, and again when there is room.
func TestKilledOnAFullDisk(t *testing.T) {
	// Small batches, so that applying takes more room than is left.
	s := newSite(t, "[apply]\nbatch = 100\n")
	s.small("64m")
	fold, lines := loanSample(t, 20_000)
	s.start().ready().stop()
	s.write("loans.jsonl", string(bytes.Join(lines, nil)))
	require.Contains(t, s.run("", "import", "loans.jsonl").ok(), "20,000 events stored")
	s.fill(700 << 10)
	h := s.start()
	h.stuck()
	h.kill()

	// What the log has room for decides whether it starts; if so it says that
	// it is stuck, if not it ends with the reason.
	s.empty()
	s.fill(0)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	run := exec.CommandContext(ctx, program, "run")
	run.Dir = s.dir
	out, err := run.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), freeSpace)
	s.empty()
	h = s.start()
	h.caughtUp()
	h.stop()
	s.equalsOracle(fold)
}

// An import that opens the store itself stops with the count of what is there;
// started again with more room it completes.
func TestDiskFullDuringImport(t *testing.T) {
	s := newSite(t, "")
	s.small("32m")
	_, lines := loanSample(t, 20_000)
	s.write("loans.jsonl", string(bytes.Join(lines, nil)))
	s.run("", "append", "other", "O-1").fails(1, "standard input holds no events: give one JSON object a line")
	s.write("data/ballast", strings.Repeat("x", 28<<20))
	o := s.run("", "import", "loans.jsonl", "--retry-for", "0")
	require.Equal(t, 1, o.code)
	said := regexp.MustCompile(`^projhost: import loans\.jsonl: import: the database cannot be used right now: .*` + freeSpace + `.* \(unavailable\) \(([0-9,]+) events stored; import again to go on\)\n$`).FindStringSubmatch(o.stderr)
	require.NotNil(t, said, o.stderr)
	stored, err := strconv.Atoi(strings.ReplaceAll(said[1], ",", ""))
	require.NoError(t, err)
	require.Positive(t, stored)
	s.empty()
	require.Equal(t, stored, s.count("ph_events"))
	require.Contains(t, s.run("", "import", "loans.jsonl").ok(), said[1]+" already there")
	require.Equal(t, len(lines), s.count("ph_events"))
	require.Equal(t, string(bytes.Join(lines, nil)), strings.ReplaceAll(s.run("", "export", "events").ok(), `"revision":0,"data"`, `"data"`))
}
