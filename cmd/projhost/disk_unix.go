//go:build linux || darwin || freebsd

package main

import "golang.org/x/sys/unix"

// diskFree is what an ordinary user may still write to a folder's disk.
func diskFree(dir string) (uint64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return uint64(st.Bavail) * uint64(st.Bsize), true
}
