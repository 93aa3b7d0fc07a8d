package partition

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/store"
)

// Leases is what the balancer needs of [store.Leases].
type Leases interface {
	Enlist(ctx context.Context, instanceID string, list []store.Enlistment) error
	Survey(ctx context.Context, builds []int64) (store.Survey, error)
	Reap(ctx context.Context) (int, error)
	Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error)
	Release(ctx context.Context, instanceID string, leases []store.Lease) error
}

// BalancerConfig is how often the balancer looks. Every field is needed.
type BalancerConfig struct {
	Partitions int // N
	// Rebalance is the time between two surveys.
	Rebalance time.Duration
	// Hasty is that time while partitions wait that are due to this host. After
	// two Rebalances in which nothing came of it, it doubles up to Rebalance.
	Hasty time.Duration
}

const (
	// claimsMax is how many claims a host has under way at once: a cold start
	// claims for every consumer, and heartbeats and applies want connections too.
	claimsMax = 4
	// callMax bounds each call, so that a connection that went dead does not hold
	// up the decisions on everything else. It is below the usual instance TTL.
	callMax = 10 * time.Second
	// lookGap is the least time between two surveys, whoever asks for one.
	lookGap = 50 * time.Millisecond
	// movesMax is how many of the latest moves are kept.
	movesMax = 100
)

// Balancer decides with every other host, without talking to it, which partitions
// this host applies: all survey the same database and draw the same conclusions.
// It looks at everything each time, never at what changed, so whatever is odd is
// put right by the next look. Safety does not depend on it: the generation of a
// lease does that (P2). It is safe for concurrent use.
type Balancer struct {
	leases Leases
	member *Member
	cfg    BalancerConfig
	log    hclog.Logger

	wanted   chan struct{} // somebody wants a survey
	refused  chan struct{} // a claim did not get everything
	claiming chan struct{} // a place for each claim under way
	assigned assignment    // Run's own

	mu         sync.Mutex
	instance   string // under which the shares hold
	ended      <-chan struct{}
	shares     map[int64]*Share
	enlisted   []store.Enlistment // what the store has of instance; nil: not known
	begun      int64              // surveys
	looked     chan struct{}      // closed by the next look
	survey     store.Survey       // the latest
	surveyedAt time.Time
	targets    map[int64][]string   // by that survey
	live       map[string]bool      // instances, by that survey
	members    map[int64][]string   // live ones, by that survey
	lapsed     map[string]time.Time // since when
	reaped     time.Time            // last asked for in any case
	err        error
	moves      []Move
	counts     Counts
}

// assignment is the latest one, with what it was made of.
type assignment struct {
	live    []store.Instance
	members []membership
	targets map[int64][]string
}

type membership struct {
	store.Enlistment
	instance string
}

// NewBalancer makes a balancer for a member. It does nothing before Run.
func NewBalancer(leases Leases, member *Member, cfg BalancerConfig, log hclog.Logger) *Balancer {
	b := &Balancer{
		leases: leases, member: member, cfg: cfg, log: log,
		wanted: make(chan struct{}, 1), refused: make(chan struct{}, 1), claiming: make(chan struct{}, claimsMax),
		lapsed: make(map[string]time.Time), shares: make(map[int64]*Share), looked: make(chan struct{}),
	}
	b.instance, b.ended = member.Instance()
	return b
}

// Look has a survey made soon.
func (b *Balancer) Look() { signal(b.wanted) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Looked returns a channel that is closed when the next look is over, whatever
// came of it.
func (b *Balancer) Looked() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.looked
}

// Enlist has the host run a build. Its share of the partitions is told by what it
// returns.
func (b *Balancer) Enlist(cfg ShareConfig) *Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.Look()
	s := &Share{
		b: b, cfg: cfg, changed: make(chan struct{}), parts: make([]part, b.cfg.Partitions), renew: -1,
		owners: make([]store.Ownership, b.cfg.Partitions), last: make([]Moved, b.cfg.Partitions),
	}
	b.shares[cfg.Build] = s
	return s
}

// Run surveys until ctx ends.
func (b *Balancer) Run(ctx context.Context) {
	pause, before, changed := b.cfg.Hasty, 0, time.Now()
	for {
		began := time.Now()
		waiting, err := b.look(ctx)
		if ctx.Err() != nil {
			return
		}
		b.tell(err)
		next := b.cfg.Rebalance
		switch {
		case err != nil:
			pause = min(2*pause, b.cfg.Rebalance)
			next = pause
		case waiting == 0 || waiting != before:
			pause, before, changed = b.cfg.Hasty, waiting, began
		case began.Sub(changed) > 2*b.cfg.Rebalance:
			// Owners that only needed to look have handed back by now.
			pause = min(2*pause, b.cfg.Rebalance)
		}
		if waiting > 0 {
			next = pause
		}
		if !b.rest(ctx, began, next, pause) {
			return
		}
	}
}

// rest waits until it is time for the next survey: next if nothing happens, hasty
// if a claim is refused, and sooner if somebody asks for it. It is false if ctx
// ended.
func (b *Balancer) rest(ctx context.Context, began time.Time, next, hasty time.Duration) bool {
	b.mu.Lock()
	ended := b.ended
	b.mu.Unlock()
	refused, wanted := b.refused, b.wanted
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-refused:
			refused = nil
			next = min(next, hasty)
		case <-ended:
			ended = nil
			next = lookGap
		case <-wanted:
			wanted = nil
			next = lookGap
		}
		timer.Reset(time.Until(began.Add(next)))
	}
}

// tell logs the first of a row of failures, and its end.
func (b *Balancer) tell(err error) {
	b.mu.Lock()
	before := b.err
	b.err = err
	close(b.looked)
	b.looked = make(chan struct{})
	b.mu.Unlock()
	switch {
	case err == nil && before != nil:
		b.log.Info("surveys succeed again")
	case err != nil && before == nil:
		b.log.Warn("survey failed: no partition changes hands here until one succeeds", "error", err)
	case err != nil:
		b.log.Debug("survey failed", "error", err)
	}
}

// look makes one survey and draws the conclusions. It tells how many partitions
// that are due to this host cannot be taken yet.
func (b *Balancer) look(ctx context.Context) (waiting int, err error) {
	b.mu.Lock()
	b.sync()
	me := b.instance
	var wanted []store.Enlistment
	builds := slices.Sorted(maps.Keys(b.shares))
	for _, build := range builds {
		if s := b.shares[build]; s.withdrawn == "" {
			wanted = append(wanted, store.Enlistment{Build: build, SingleOwner: s.cfg.SingleOwner})
		}
	}
	enlisted := b.enlisted != nil && slices.Equal(b.enlisted, wanted)
	b.mu.Unlock()
	if !enlisted {
		if err := b.enlist(ctx, me, wanted); err != nil {
			return 0, err
		}
	}
	b.mu.Lock()
	b.begun++
	asked := time.Now()
	number := b.begun
	b.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	survey, err := b.leases.Survey(call, builds)
	if err != nil {
		return 0, fmt.Errorf("survey the instances and owners: %w", err)
	}
	targets := b.assign(survey)

	b.mu.Lock()
	b.sync()
	if b.instance != me {
		b.mu.Unlock()
		b.Look() // the survey was made as another instance
		return 0, nil
	}
	reap := b.watch(survey)
	strays, waiting := b.digest(number, asked, builds, survey, targets)
	b.mu.Unlock()

	if len(strays) > 0 {
		call, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		if err := b.leases.Release(call, me, strays); err != nil {
			return waiting, fmt.Errorf("give back what is not applied here: %w", err)
		}
	}
	if reap {
		call, cancel := context.WithTimeout(ctx, callMax)
		defer cancel()
		n, err := b.leases.Reap(call)
		if err != nil {
			return waiting, fmt.Errorf("remove lapsed instances: %w", err)
		}
		if n > 0 {
			b.log.Info("removed instances that have lapsed", "instances", n)
		}
	}
	return waiting, nil
}

// sync notices that the host has become another instance: whatever it held as the
// former one is lost.
func (b *Balancer) sync() {
	me, ended := b.member.Instance()
	if me == b.instance {
		return
	}
	b.instance, b.ended, b.enlisted = me, ended, nil
	for _, s := range b.shares {
		for p := range s.parts {
			s.parts[p], s.tenure, s.renew = part{}, 0, -1
		}
		s.targets = nil
		s.notify()
	}
}

func (b *Balancer) enlist(ctx context.Context, me string, wanted []store.Enlistment) error {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	err := b.leases.Enlist(ctx, me, wanted)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.enlisted = nil
		b.doubt(err)
		return fmt.Errorf("enlist for %d builds: %w", len(wanted), err)
	}
	if b.sync(); b.instance == me {
		b.enlisted = append([]store.Enlistment{}, wanted...)
	}
	return nil
}

// doubt has the member look after itself when the store does not know it.
func (b *Balancer) doubt(err error) {
	if errors.Is(err, store.ErrNotFound) {
		b.member.Doubt()
	}
}

// assign gives every partition its target. It is made anew only if what it
// follows from is not what it was.
func (b *Balancer) assign(survey store.Survey) map[int64][]string {
	var live []store.Instance
	for _, i := range survey.Instances {
		if i.Live {
			live = append(live, i.Instance)
		}
	}
	members := make([]membership, len(survey.Members))
	for i, m := range survey.Members {
		members[i] = membership{m.Enlistment, m.InstanceID}
	}
	if a := b.assigned; a.targets == nil || !slices.Equal(a.live, live) || !slices.Equal(a.members, members) {
		b.assigned = assignment{live, members, Assign(b.cfg.Partitions, live, survey.Members)}
	}
	return b.assigned.targets
}

// watch keeps since when instances have lapsed. It tells whether one has for so
// long that it would have sent a heartbeat if it ran. Removed sooner, hosts that run
// had to begin anew, all of them and under other ids, when the clock was set. Later,
// one that died would come to life again when a clock that was set back has caught
// up with it.
func (b *Balancer) watch(survey store.Survey) (reap bool) {
	known, live := make(map[string]bool, len(survey.Instances)), false
	for _, i := range survey.Instances {
		known[i.ID] = true
		live = live || i.Live && i.ID == b.instance
		since, lapsed := b.lapsed[i.ID]
		switch {
		case i.Live || i.ID == b.instance:
			delete(b.lapsed, i.ID)
		case !lapsed:
			b.lapsed[i.ID] = time.Now()
		case time.Since(since) >= b.member.cfg.TTL/3:
			reap = true
		}
	}
	for id, since := range b.lapsed {
		// Kept for a while, to tell why its partitions moved.
		if !known[id] && time.Since(since) > time.Hour {
			delete(b.lapsed, id)
		}
	}
	if ttl := b.member.cfg.TTL; reap || live && ttl > 0 && time.Since(b.reaped) >= ttl {
		// Now and then in any case: a host may leave something open that it began
		// when it was removed already and did not know.
		b.reaped, reap = time.Now(), true
	}
	return reap
}

// digest makes a survey the shares' own. It gives the leases that the store has
// under this instance and that nobody here holds or wants, and counts the partitions
// that are due to it and belong to somebody else.
func (b *Balancer) digest(number int64, asked time.Time, builds []int64, survey store.Survey, targets map[int64][]string) (strays []store.Lease, waiting int) {
	me := b.instance
	live := make(map[string]bool)
	for _, i := range survey.Instances {
		live[i.ID] = i.Live
	}
	b.live, b.members = live, make(map[int64][]string)
	var mine []store.Enlistment
	tenures := make(map[int64]int64) // of this instance's memberships
	for _, m := range survey.Members {
		if live[m.InstanceID] {
			b.members[m.Build] = append(b.members[m.Build], m.InstanceID)
		}
		if m.InstanceID == me {
			mine = append(mine, m.Enlistment)
			tenures[m.Build] = m.Tenure
		}
	}
	if b.enlisted != nil && !slices.Equal(mine, b.enlisted) {
		b.enlisted = nil
		waiting++
	}
	if !live[me] {
		// It cannot claim, and should others not notice either, then what it
		// holds had better be applied by it than by nobody.
		waiting++
	}
	states := make(map[int64]store.ConsumerStatus)
	for _, c := range survey.Consumers {
		states[c.Build] = c
	}
	b.survey, b.surveyedAt, b.targets = survey, time.Now(), targets
	for _, build := range builds {
		s, rows := b.shares[build], survey.Owners[build]
		crew := make(map[string]bool)
		for _, id := range b.members[build] {
			crew[id] = true
		}
		b.follow(s, rows, live, crew)
		fresh := make(map[string]bool)
		for id := range crew {
			fresh[id] = s.crew != nil && !s.crew[id]
		}
		outside := make(map[string]time.Time)
		for id := range live {
			if live[id] && !crew[id] {
				outside[id] = time.Now()
				if since, was := s.outside[id]; was {
					outside[id] = since
				}
			}
		}
		s.seen, s.asked, s.status, s.crew, s.fresh, s.outside = number, asked, states[build], crew, fresh, outside
		clear(s.owners)
		for _, o := range rows {
			if s.has(o.Partition) {
				s.owners[o.Partition] = o
			}
		}
		s.targets = nil
		if live[me] {
			s.targets = targets[build]
			if s.targets == nil {
				s.targets = make([]string, b.cfg.Partitions)
			}
		}
		s.renew = -1
		if tenure, member := tenures[build]; member {
			s.compare(tenure)
		}
		for p := range s.parts {
			if part := &s.parts[p]; part.stage == idle && part.since < number && part.astraySince < number {
				part.astray = s.owners[p].InstanceID == me
			}
			switch stray, wait := s.odd(p); {
			case stray:
				strays = append(strays, store.Lease{Build: build, Partition: p, Generation: s.owners[p].Generation})
			case wait:
				waiting++
			}
		}
		s.notify()
	}
	return strays, waiting
}

// follow records what moved since the last survey.
func (b *Balancer) follow(s *Share, rows []store.Ownership, live, crew map[string]bool) {
	type way struct{ from, to, why string }
	moved := make(map[way][]int)
	for _, o := range rows {
		if !s.has(o.Partition) || o.InstanceID == "" {
			continue
		}
		last := &s.last[o.Partition]
		if last.To == o.InstanceID && last.Generation == o.Generation {
			continue
		}
		w := way{from: last.To, to: o.InstanceID}
		_, lapsed := b.lapsed[w.from]
		switch {
		case s.seen == 0:
			w.from, w.why = "", WhyFound
		case w.from == "":
			w.why = WhyFirst
		case w.from == w.to:
			w.why = WhyReclaimed
		case crew[w.from]:
			w.why = WhyRebalanced
		case live[w.from]:
			w.why = WhyWithdrawn
		case lapsed:
			w.why = WhyLapsed
		default:
			w.why = WhyLeft
		}
		*last = Moved{From: w.from, To: w.to, Generation: o.Generation, Why: w.why, At: time.Now()}
		if w.why != WhyFound {
			moved[w] = append(moved[w], o.Partition)
		}
	}
	for _, w := range slices.SortedFunc(maps.Keys(moved), func(a, b way) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.why, b.why))
	}) {
		b.moves = append(b.moves, Move{
			At: time.Now(), Consumer: s.cfg.Consumer, Build: s.cfg.Build, Partitions: moved[w], From: w.from, To: w.to, Why: w.why,
		})
		b.log.Info("partitions moved", "consumer", s.cfg.Consumer, "build", s.cfg.Build, "partitions", len(moved[w]), "from", w.from, "to", w.to, "why", w.why)
	}
	b.moves = slices.Delete(b.moves, 0, max(0, len(b.moves)-movesMax))
}
