package plugins

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
)

// Instance is a guest with memory of its own. It serves one call at a time.
type Instance struct{}

// Stats tells what an instance has done since it was made.
type Stats struct {
	Calls        uint64
	Entries      uint64 // answered well
	Failures     uint64
	Restores     uint64 // the state was put back in place
	Instantiated uint64 // a new guest was made because it could not be
	Dropped      uint64 // log lines over the rate
	MemoryBytes  uint64 // linear memory now
}

// SetLogger makes the guest's lines go to log, which names the lane. By
// default they go to the engine's, named by the plugin.
func (i *Instance) SetLogger(log hclog.Logger) {}

// FrameMax is the size of the input region: a frame of at most so many bytes
// fits.
func (i *Instance) FrameMax() int { return 0 }

// FrameFits reports whether a batch fits the input region.
func (i *Instance) FrameFits(entries []abi.Entry) bool { return false }

// Apply hands the guest a batch and gives its results to sink, in order. The
// guest starts from its state after ph_init (IsolateBatch).
//
// done counts the entries with a result. A failure belongs to entry number
// done: entries before it have their results, entries after it have none, and
// the instance is as good as new. err is not the guest's doing: ctx ended, a
// batch larger than the input region (*[FrameError]), a fault of the sink, an
// instance that could not be made; results given so far are to be dropped.
func (i *Instance) Apply(ctx context.Context, consumer int, entries []abi.Entry, sink Sink) (done int, fail *Failure, err error) {
	return 0, nil, errors.ErrUnsupported
}

// Keys asks the guest for the keys of each message (key rule "function") and
// gives them to each in order; keys are views valid during that call only. An
// error of each is the guest's fault unless wrapped by [HostFault]. Results
// are as for Apply.
func (i *Instance) Keys(ctx context.Context, consumer int, entries []abi.Entry, each func(index int, keys [][]byte) error) (done int, fail *Failure, err error) {
	return 0, nil, errors.ErrUnsupported
}

// Stats tells what the instance has done.
func (i *Instance) Stats() Stats { return Stats{} }

// Close ends the instance. It must not be used again.
func (i *Instance) Close(ctx context.Context) error { return nil }
