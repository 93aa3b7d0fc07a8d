//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// userTimeout does nothing where the kernel has no such limit; keep-alives find
// a dead peer in the end.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
