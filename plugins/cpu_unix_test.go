//go:build unix

package plugins

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used so far: on a busy machine the wall
// clock says little.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
