//go:build !linux

package bench

import "time"

func processCPU(int) time.Duration { return 0 }

func serverThreadCPU(int) time.Duration { return 0 }
