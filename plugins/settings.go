package plugins

import (
	"fmt"
	"time"
)

// Isolate says what a guest keeps from one batch to the next.
type Isolate uint8

const (
	// IsolateBatch starts every batch from the state after ph_init (P7).
	IsolateBatch Isolate = iota
	// IsolateLane keeps the guest's state while all goes well, at its author's
	// risk; after a failure it is put back all the same.
	IsolateLane
)

const (
	pageSize = 64 << 10

	// DefaultMemoryLimit is what one instance may use when nothing else is said.
	DefaultMemoryLimit = 64 << 20
	// DefaultTimeout ends a call that takes longer when nothing else is said.
	DefaultTimeout = 10 * time.Second
	// DefaultFrameMax bounds a request frame when nothing else is said.
	DefaultFrameMax = 4 << 20
	// DefaultLogRate is the number of guest log lines per second and instance.
	DefaultLogRate = 50
	// DefaultLogLineMax is where a guest's log line or message is cut, in bytes.
	DefaultLogLineMax = 2 << 10

	// frameMin leaves room for an entry of everyday size.
	frameMin = 4 << 10
	frameTop = 1 << 30
)

// Settings are what a deployment fixes for a module. The zero value is no
// valid setting: begin with [DefaultSettings].
type Settings struct {
	// Name is the deployment's name. It is in every log line and seeds the
	// randomness a guest sees.
	Name string
	// Config is the JSON text given to ph_init; empty means {}.
	Config []byte
	// MemoryLimit bounds the linear memory of one instance, in bytes. Guests
	// see a refused memory.grow.
	// Default: 64 MiB
	MemoryLimit uint64
	// Timeout bounds the wall clock of one call of the guest, start-up
	// included. Time the guest waits for rows is allowed for, up to three times
	// the limit. 0: no limit and no checks for one in the compiled code, so a
	// guest that loops can only be ended with its process.
	// Default: 10 s
	Timeout time.Duration
	// FrameMax bounds a request frame, in bytes. The guest sets as much of its
	// memory aside.
	// Default: 4 MiB
	FrameMax int
	// Isolate says what a guest keeps between batches.
	// Default: IsolateBatch
	Isolate Isolate
	// LogRate is how many lines per second one instance may log; more are
	// dropped and counted. 0: none.
	// Default: 50
	LogRate int
	// LogLineMax cuts a logged line and the text of fail, in bytes.
	// Default: 2 KiB
	LogLineMax int
}

// DefaultSettings are the settings of a deployment that says nothing else.
func DefaultSettings(name string) Settings {
	return Settings{
		Name:        name,
		MemoryLimit: DefaultMemoryLimit,
		Timeout:     DefaultTimeout,
		FrameMax:    DefaultFrameMax,
		LogRate:     DefaultLogRate,
		LogLineMax:  DefaultLogLineMax,
	}
}

func (s Settings) validate() []string {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if s.Name == "" {
		bad("settings: the plugin has no name")
	}
	if s.MemoryLimit < pageSize || s.MemoryLimit > 4<<30 {
		bad("settings: memory limit of %d bytes, want 64 KiB to 4 GiB", s.MemoryLimit)
	}
	if s.Timeout < 0 {
		bad("settings: time limit of %v, want 0 (none) or more", s.Timeout)
	}
	if s.FrameMax < frameMin || s.FrameMax > frameTop {
		bad("settings: frame limit of %d bytes, want 4 KiB to 1 GiB", s.FrameMax)
	}
	if s.Isolate > IsolateLane {
		bad("settings: unknown isolation %d", s.Isolate)
	}
	if s.LogRate < 0 || s.LogLineMax < 0 {
		bad("settings: log rate of %d and line limit of %d, want 0 or more", s.LogRate, s.LogLineMax)
	}
	return problems
}
