package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/store"
)

// ShareConfig is a build that the host runs.
type ShareConfig struct {
	Build       int64
	Consumer    store.ConsumerID
	SingleOwner bool
}

// Share is the part of one build's partitions that this host is to apply. What it
// says is carried out by its user, one at a time: nobody but the user of a Grant
// applies what that gave, until it is released or lost. It is safe for concurrent
// use.
type Share struct {
	b   *Balancer
	cfg ShareConfig

	// The rest is under the balancer's lock.
	changed   chan struct{}
	withdrawn string // why; "": it is a member
	parts     []part // by partition
	tenure    int64  // that the latest claim began; 0: none of this instance's
	tenureAt  int64  // how many surveys had begun when that was known
	renew     int    // a partition to be claimed anew, for the store to know of the tenure; -1: none

	asked   time.Time            // when the latest survey began
	seen    int64                // the number of the latest survey; 0: none yet
	owners  []store.Ownership    // by partition, as that survey saw them; and so on
	targets []string             // nil: not known, or this host is not live
	crew    map[string]bool      // live members
	fresh   map[string]bool      // those of them that were none before
	outside map[string]time.Time // since when live owners are no members
	status  store.ConsumerStatus
	last    []Moved
}

// part is what is known here of a partition.
type part struct {
	stage stage
	lease store.Lease // if held
	// since is how many surveys had begun when the store was last told something
	// of the partition: they say nothing about it. tried is how many had begun
	// when it was last claimed in vain.
	since, tried int64
	// astray: the store may have it under this instance although it is not held, as
	// far as was known when so many surveys had begun.
	astray      bool
	astraySince int64
}

type stage int

const (
	idle stage = iota
	taking
	held
	releasing
)

// Orders is what is to be done for the partitions to be where they belong, as far
// as it is known. Drop is held and is to be handed back at a batch boundary, Take
// can be claimed. Both rise. Why is by partition.
type Orders struct {
	Drop, Take []int
	Why        map[int]string
	At         time.Time            // when the survey began that this follows from; zero before the first
	Consumer   store.ConsumerStatus // zero before the first survey, and for a build that is not live
}

// Why a partition moves or moved.
const (
	WhyFirst      = "first"      // nobody had it before
	WhyReleased   = "released"   // its owner handed it back
	WhyLapsed     = "lapsed"     // its owner was silent for longer than its TTL
	WhyLeft       = "left"       // its owner has stopped
	WhyWithdrawn  = "withdrawn"  // its owner does not run the consumer any more
	WhyJoined     = "joined"     // it is due to a member that has just come
	WhyRebalanced = "rebalanced" // it is due to another member
	WhyReclaimed  = "reclaimed"  // the same owner took it anew, under the next generation
	WhyOvertaken  = "overtaken"  // somebody raised its generation
	WhyOrphaned   = "orphaned"   // no member may have it
	WhyFound      = "found"      // it was so when this host began to look
)

// Grant is what a Take got. The leases are by partition. Once Ended is closed the
// instance under which they were taken is no more, and they are lost.
type Grant struct {
	InstanceID string
	Leases     []store.Lease
	Ended      <-chan struct{}
}

// Build is the build it is a share of.
func (s *Share) Build() int64 { return s.cfg.Build }

// Changed returns a channel that is closed when Orders may be others than those
// that were read after it was asked for.
func (s *Share) Changed() <-chan struct{} {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.changed
}

func (s *Share) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Orders says what is to be done. What a Take did not get is not in it again
// before another survey has seen it.
func (s *Share) Orders() Orders {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.sync()
	o := Orders{Why: make(map[int]string), Consumer: s.status, At: s.asked}
	for p := range s.parts {
		if why := s.drop(p); why != "" {
			o.Drop = append(o.Drop, p)
			o.Why[p] = why
		} else if why := s.take(p); why != "" {
			o.Take = append(o.Take, p)
			o.Why[p] = why
		}
	}
	return o
}

// drop tells why a partition is to be dropped, "" if it is not.
func (s *Share) drop(p int) string {
	part, owner, me := s.parts[p], s.owners[p], s.b.instance
	switch {
	case part.stage != held:
		return ""
	case s.withdrawn != "":
		return WhyWithdrawn
	case part.since < s.seen && (owner.InstanceID != me || owner.Generation != part.lease.Generation):
		return WhyOvertaken
	case p == s.renew:
		return WhyReclaimed
	case s.targets == nil || s.targets[p] == me:
		return ""
	case s.targets[p] == "":
		return WhyOrphaned
	case s.fresh[s.targets[p]]:
		return WhyJoined
	}
	return WhyRebalanced
}

// has tells whether there is such a partition: a row may say anything.
func (s *Share) has(p int) bool { return p >= 0 && p < len(s.parts) }

// take tells why a partition can be taken, "" if it cannot.
func (s *Share) take(p int) string {
	part, owner := s.parts[p], s.owners[p]
	_, lapsed := s.b.lapsed[owner.InstanceID]
	switch {
	case part.stage != idle || !s.due(p) || part.tried >= s.seen:
		return ""
	case owner.InstanceID == "" && owner.Generation == 0:
		return WhyFirst
	case owner.InstanceID == "":
		return WhyReleased
	case owner.InstanceID == s.b.instance:
		return WhyReclaimed
	case s.b.live[owner.InstanceID]:
		if since, outside := s.outside[owner.InstanceID]; outside && time.Since(since) >= s.b.member.cfg.TTL {
			return WhyWithdrawn // it does not hand it back any more (H36)
		}
		return "" // it does at a batch boundary, also if it is no member any more
	case lapsed:
		return WhyLapsed
	}
	return WhyLeft
}

// due tells whether a partition is to be this host's.
func (s *Share) due(p int) bool {
	return s.withdrawn == "" && s.targets != nil && s.targets[p] == s.b.instance
}

// odd tells of a partition that nobody holds here whether the store has it under
// this instance in vain, or else whether it is due here and cannot be taken yet, or
// could not the last time.
func (s *Share) odd(p int) (stray, wait bool) {
	part := s.parts[p]
	if part.stage != idle {
		return false, false
	}
	stray = !s.due(p) && s.targets != nil && part.since < s.seen && s.owners[p].InstanceID == s.b.instance
	return stray, s.due(p) && (part.tried > 0 || s.take(p) == "")
}

// Take claims partitions, each under its next generation: what was applied under
// an earlier one can commit no more. What it gets is held from now on. What it
// does not get, since somebody else was faster or the claim failed, is no error
// of the caller's and stays due: it is in the orders again when a survey
// has seen it. Taking what is held is a mistake.
func (s *Share) Take(ctx context.Context, partitions []int) (Grant, error) {
	b := s.b
	b.mu.Lock()
	b.sync()
	g := Grant{InstanceID: b.instance, Ended: b.ended}
	for _, p := range partitions {
		if s.parts[p].stage != idle {
			b.mu.Unlock()
			return Grant{}, fmt.Errorf("take partition %d of %s: it is in use here", p, s.cfg.Consumer)
		}
	}
	s.enter(partitions, taking)
	b.mu.Unlock()

	leases, tenure, err := s.claim(ctx, g.InstanceID, partitions)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Claims++
	b.counts.Refused += int64(len(partitions) - len(leases))
	if len(leases) < len(partitions) {
		signal(b.refused)
	}
	if err != nil {
		b.counts.ClaimFailures++
		b.doubt(err)
	}
	if b.sync(); b.instance != g.InstanceID {
		return g, err // whatever it got went with the instance
	}
	for _, p := range partitions {
		s.parts[p] = part{tried: b.begun, astray: err != nil, astraySince: b.begun}
	}
	if len(leases) > 0 {
		s.tenure, s.tenureAt, s.renew = tenure, b.begun, -1
	}
	for _, l := range leases {
		s.parts[l.Partition] = part{stage: held, lease: l, since: b.begun}
	}
	g.Leases = leases
	return g, err
}

func (s *Share) claim(ctx context.Context, instance string, partitions []int) ([]store.Lease, int64, error) {
	select {
	case s.b.claiming <- struct{}{}:
		defer func() { <-s.b.claiming }()
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	leases, tenure, err := s.b.leases.Claim(ctx, instance, s.cfg.Build, partitions)
	if err != nil {
		return nil, 0, fmt.Errorf("claim %d partitions of %s: %w", len(partitions), s.cfg.Consumer, err)
	}
	return leases, tenure, nil
}

// Release hands back what is held of partitions, for others to take under the next
// generation. Nobody applies it any more. After an error the balancer goes on
// trying.
func (s *Share) Release(ctx context.Context, partitions []int) error {
	b := s.b
	b.mu.Lock()
	b.sync()
	me := b.instance
	var leases []store.Lease
	partitions = slices.DeleteFunc(slices.Clone(partitions), func(p int) bool { return s.parts[p].stage != held })
	for _, p := range partitions {
		leases = append(leases, s.parts[p].lease)
	}
	s.enter(partitions, releasing)
	b.mu.Unlock()
	if len(leases) == 0 {
		return nil
	}

	call, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	err := b.leases.Release(call, me, leases)

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sync(); b.instance == me {
		for _, p := range partitions {
			s.parts[p] = part{since: b.begun, astray: err != nil, astraySince: b.begun}
			if p == s.renew {
				s.renew = -1
				s.notify() // it is to be taken at once
			}
		}
	}
	if err != nil {
		signal(b.refused)
		return fmt.Errorf("release %d partitions of %s: %w", len(leases), s.cfg.Consumer, err)
	}
	return nil
}

func (s *Share) enter(partitions []int, to stage) {
	for _, p := range partitions {
		s.parts[p].stage = to
	}
}

// Lost says that partitions are held no more: a fence said so, or what became of a
// batch is not known. Nobody applies them any more. If they are still due they are
// taken anew.
func (s *Share) Lost(partitions []int) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.sync()
	for _, p := range partitions {
		if s.parts[p].stage == held {
			s.parts[p] = part{since: s.parts[p].since, astray: true, astraySince: s.b.begun}
		}
	}
	s.notify()
	s.b.Look()
}

// Lease is the lease of a partition, if it is held.
func (s *Share) Lease(partition int) (store.Lease, bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.sync()
	part := s.parts[partition]
	return part.lease, part.stage == held
}

// Tenure gives what is held and in which tenure, under which the store is to be
// told how far all of it is applied (see [store.Leases]). Nothing is given while the
// store may have more under this instance than is held here: what was lost, or is
// being claimed or handed back, is its until it is known to be another's.
func (s *Share) Tenure() (tenure int64, leases []store.Lease) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.sync()
	for p := range s.parts {
		switch part := &s.parts[p]; {
		case part.stage == held:
			leases = append(leases, part.lease)
		case part.astray, part.stage != idle:
			return 0, nil
		}
	}
	return s.tenure, leases
}

// compare sees to it that the store has the tenure that is known here. A claim whose
// answer was lost, or a membership that was made anew, began another, and whatever
// is told in the former is not heard. The next claim begins one that both know.
func (s *Share) compare(stored int64) {
	s.renew = -1
	if stored == s.tenure || s.tenureAt >= s.seen {
		return
	}
	for p := range s.parts {
		switch part := s.parts[p]; {
		case part.stage == held:
			if s.renew < 0 {
				s.renew = p
			}
		case part.stage != idle, s.take(p) != "":
			s.renew = -1 // the claim that is about to be made begins another
			return
		}
	}
}

// Withdraw ends the membership: others are to run the consumer. Everything held
// is to be dropped.
func (s *Share) Withdraw(why string) {
	if why == "" {
		why = errWithdrawn.Error()
	}
	s.withdraw(why)
}

var errWithdrawn = errors.New("this host does not run it")

// Return takes a Withdraw back.
func (s *Share) Return() { s.withdraw("") }

func (s *Share) withdraw(why string) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.withdrawn = why
	s.notify()
	s.b.Look()
}

// Others is how many live members the build has besides this host, by the latest
// survey: that many could run it in its stead.
func (s *Share) Others() int {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	n := len(s.crew)
	if s.crew[s.b.instance] {
		n--
	}
	return n
}
