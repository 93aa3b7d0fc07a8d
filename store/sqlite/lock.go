package sqlite

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// holder is what the lock file tells about the process that holds it.
type holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// LockedError is a database that another process has open.
type LockedError struct {
	Path   string
	Holder string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("another projhost (%s) has the database open, it holds %s: stop it, or talk to it over HTTP (--url)", e.Holder, e.Path)
}

// lockFile takes the lock. The kernel gives it back however the process ends,
// so a file that is left behind means nothing.
func lockFile(path string, now time.Time) (unlock func() error, err error) {
	const remedy = "may this user write to the folder, and is there room?"
	l := flock.New(path)
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w (%s)", path, err, remedy)
	}
	if !ok {
		return nil, &LockedError{Path: path, Holder: readHolder(path)}
	}
	host, _ := os.Hostname()
	text, err := json.Marshal(holder{PID: os.Getpid(), Host: host, Since: now.UTC().Truncate(time.Second)})
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		_ = l.Unlock()
		return nil, fmt.Errorf("write lock file: %w (%s)", err, remedy)
	}
	return l.Unlock, nil
}

func readHolder(path string) string {
	var h holder
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &h) != nil {
		return "process unknown"
	}
	return fmt.Sprintf("process %d on %s, since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}
