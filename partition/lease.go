package partition

import (
	"context"
	"fmt"

	"github.com/projhost/projhost/store"
)

// Holder claims leases for one instance. It is safe for concurrent use.
type Holder struct {
	leases   store.Leases
	instance string
	count    int
}

// NewHolder makes the holder of an instance that has joined, for databases of
// count partitions.
func NewHolder(leases store.Leases, instance string, count int) *Holder {
	return &Holder{leases: leases, instance: instance, count: count}
}

// Instance is the id of the instance.
func (h *Holder) Instance() string { return h.instance }

// Count is the number of partitions.
func (h *Holder) Count() int { return h.count }

// TakenError is a claim that did not get everything: the rest belongs to a live
// other instance, or is about to change hands.
type TakenError struct {
	Build int64
	Taken []int
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%d partitions of build %d belong to another running host", len(e.Taken), e.Build)
}

// Claim takes all partitions of a build, each under its next generation: what
// was applied under an earlier one, of this instance or another, can commit no
// more. Call it only when nobody of this instance applies the build. If some
// partitions belong to others the error is a *TakenError, and those that were
// free are given back: of two hosts that claim at once, neither keeps the half
// that the other waits for.
func (h *Holder) Claim(ctx context.Context, build int64) (*Term, error) {
	all := make([]int, h.count)
	for p := range all {
		all[p] = p
	}
	leases, err := h.leases.Claim(ctx, h.instance, build, all)
	if err != nil {
		return nil, fmt.Errorf("claim the partitions of build %d: %w", build, err)
	}
	t := &Term{leases: make([]store.Lease, h.count)}
	got := make([]bool, h.count)
	for _, l := range leases {
		t.leases[l.Partition], got[l.Partition] = l, true
	}
	var taken []int
	for p, ok := range got {
		if !ok {
			taken = append(taken, p)
		}
	}
	if len(taken) > 0 {
		if err := h.leases.Release(ctx, h.instance, leases); err != nil {
			return nil, fmt.Errorf("give partitions of build %d back: %w", build, err)
		}
		return nil, &TakenError{Build: build, Taken: taken}
	}
	return t, nil
}

// Term is the leases of one claim. It does not change: who loses a lease makes
// a new claim.
type Term struct {
	leases []store.Lease // by partition
}

// Lease is the lease of a partition.
func (t *Term) Lease(partition int) store.Lease { return t.leases[partition] }
