package bench

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// processCPU is what a process has used of the processors, 0 if that is not known.
func processCPU(pid int) time.Duration {
	_, used := procStat(fmt.Sprintf("/proc/%d/stat", pid))
	return used
}

// serverThreadCPU is what a thread of a database server has used: 0 for one that
// is none, since a server on another machine has numbers of its own.
func serverThreadCPU(tid int) time.Duration {
	name, used := procStat(fmt.Sprintf("/proc/%d/task/%[1]d/stat", tid))
	if !slices.Contains([]string{"postgres", "mariadbd", "mysqld", "connection"}, name) {
		return 0
	}
	return used
}

// ticks a second in which Linux tells processors' time to programs.
const ticks = 100

func procStat(file string) (name string, used time.Duration) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", 0
	}
	// The name stands in parentheses, and may hold any itself.
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 0 || to < from {
		return "", 0
	}
	fields := bytes.Fields(b[to+1:])
	const user, system = 11, 12 // counted from the state, which follows the name
	if len(fields) <= system {
		return "", 0
	}
	for _, f := range [][]byte{fields[user], fields[system]} {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return "", 0
		}
		used += time.Duration(n) * time.Second / ticks
	}
	return string(b[from+1 : to]), used
}
