//go:build !linux

package testplugins

import "time"

var cpuStart = time.Now()

// cpuTime is the time on the wall where a thread's own is not to be had.
func cpuTime() time.Duration { return time.Since(cpuStart) }
