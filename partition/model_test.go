package partition_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// The model: hosts as they are, on a database that is a map, in virtual time.
// What befalls them is a script.

const (
	modelPartitions = 16
	together        = int64(3) // the build that is single-owner
)

var modelBuilds = []int64{1, 2, together}

// event is one thing that befalls a host or the database.
type event struct {
	After time.Duration // since the one before
	Kind  string
	Host  int // which of those that run
	For   time.Duration
	Call  string // that fails
	K     int    // the K-th from now on
	Times int
	Done  bool // it was done although it failed, or before it hung
	Build int64
}

func (e event) String() string { return fmt.Sprintf("%+v", struct{ event }{e}) }

const (
	joins     = "joins"
	leaves    = "leaves"
	dies      = "dies"
	freezes   = "freezes"
	fails     = "fails" // a call
	withdraws = "withdraws"
	returns   = "returns"
	jumps     = "clock jumps"
	outage    = "outage"
	raised    = "generations raised"
	removed   = "removed"
	forgotten = "forgotten" // its memberships
)

func events() *rapid.Generator[event] {
	return rapid.Custom(func(t *rapid.T) event {
		e := event{
			After: time.Duration(rapid.IntRange(0, 200).Draw(t, "after")) * 100 * time.Millisecond,
			Kind: rapid.SampledFrom([]string{
				joins, joins, joins, leaves, dies, freezes, freezes, fails, fails, fails, withdraws, returns, jumps, outage, raised, removed, forgotten,
			}).Draw(t, "kind"),
			Host: rapid.IntRange(0, 4).Draw(t, "host"),
		}
		switch e.Kind {
		case freezes:
			e.For = time.Duration(rapid.IntRange(1, 60).Draw(t, "for")) * time.Second
			e.Done = rapid.Bool().Draw(t, "done")
		case outage:
			e.For = time.Duration(rapid.IntRange(1, 40).Draw(t, "for")) * time.Second
		case fails:
			e.Call = rapid.SampledFrom([]string{"heartbeat", "join", "enlist", "survey", "claim", "release", "reap", "apply"}).Draw(t, "call")
			e.K = rapid.IntRange(1, 6).Draw(t, "k")
			e.Times = rapid.IntRange(1, 8).Draw(t, "times")
			e.Done = rapid.Bool().Draw(t, "done")
		case jumps:
			e.For = rapid.SampledFrom([]time.Duration{
				-2 * time.Hour, -40 * time.Second, -20 * time.Second, -5 * time.Second, 5 * time.Second, 20 * time.Second, 40 * time.Second, 2 * time.Hour,
			}).Draw(t, "for")
		case withdraws, returns, raised:
			e.Build = rapid.SampledFrom(modelBuilds).Draw(t, "build")
		}
		return e
	})
}

// process is a host that applies what it holds.
type process struct {
	*host
	name string
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	dead    bool
	frozen  chan struct{} // closed when it goes on; nil: it runs
	late    bool          // a call that was under way is done before it freezes
	failing map[string][]event
}

type processKey struct{}

// model is what the script is played on.
type model struct {
	*cluster
	down      bool
	processes []*process // those that live
	started   int
}

// fault is what befalls a call.
func (m *model) fault(ctx context.Context, call string) (after func() error, before error) {
	p, _ := ctx.Value(processKey{}).(*process)
	if p == nil {
		return func() error { return nil }, nil
	}
	hold := func() error {
		for {
			p.mu.Lock()
			frozen, dead := p.frozen, p.dead
			p.mu.Unlock()
			switch {
			case dead:
				return errDown
			case frozen == nil:
				return nil
			}
			<-frozen
		}
	}
	p.mu.Lock()
	late := p.late
	var lost error // its answer
	if list := p.failing[call]; len(list) > 0 {
		e := &list[0]
		if e.K--; e.K <= 0 {
			if e.Done {
				lost = errDown
			} else {
				before = errDown
			}
			if e.Times--; e.Times <= 0 {
				p.failing[call] = list[1:]
			}
		}
	}
	p.mu.Unlock()
	if !late {
		if err := hold(); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	if m.down {
		before = errDown
	}
	m.mu.Unlock()
	if before == nil && lost == nil && !late {
		before = ctx.Err()
	}
	return func() error { return errors.Join(hold(), lost) }, before
}

var errDown = errors.New("down")

// start starts a process.
func (m *model) start(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	p := &process{name: fmt.Sprintf("host %d", m.started), stop: stop, failing: make(map[string][]event)}
	m.started++
	ctx = context.WithValue(ctx, processKey{}, p)
	member, err := partition.Join(ctx, m.cluster, partition.MemberConfig{
		HostName: p.name, TTL: ttl, Heartbeat: 3 * time.Second,
	}, hclog.NewNullLogger())
	if err != nil {
		stop()
		return // the database is down
	}
	p.host = &host{
		Balancer: partition.NewBalancer(m.cluster, member, partition.BalancerConfig{
			Partitions: m.n, Rebalance: rebalance, Hasty: 250 * time.Millisecond,
		}, hclog.NewNullLogger()),
		member: member, shares: make(map[int64]*partition.Share),
	}
	p.done.Go(func() { member.Run(ctx) })
	for _, b := range modelBuilds {
		s := p.Enlist(partition.ShareConfig{Build: b, Consumer: consumerOf(b), SingleOwner: b == together})
		p.shares[b] = s
		p.done.Go(func() { m.run(ctx, s) })
	}
	p.done.Go(func() { p.Run(ctx) })
	m.processes = append(m.processes, p)
}

// session applies what one grant gave.
type session struct {
	grant  partition.Grant
	batch  chan struct{} // taken for a batch; who waits for a mutex would stop virtual time
	leases map[int]store.Lease
}

// drop ends the work on partitions at a batch boundary.
func (s *session) drop(partitions []int) {
	s.batch <- struct{}{}
	defer func() { <-s.batch }()
	for _, p := range partitions {
		delete(s.leases, p)
	}
}

// run does what the orders of a share say, and applies.
func (m *model) run(ctx context.Context, s *partition.Share) {
	var sessions []*session
	var work sync.WaitGroup
	defer work.Wait()
	for {
		changed, orders := s.Changed(), s.Orders()
		if len(orders.Drop) > 0 {
			for _, x := range sessions {
				x.drop(orders.Drop)
			}
			_ = s.Release(ctx, orders.Drop) // the balancer repeats it
		}
		if len(orders.Take) > 0 {
			for _, x := range sessions {
				x.drop(orders.Take) // of an instance that ended
			}
			g, _ := s.Take(ctx, orders.Take)
			x := &session{grant: g, batch: make(chan struct{}, 1), leases: make(map[int]store.Lease)}
			for _, l := range g.Leases {
				x.leases[l.Partition] = l
			}
			sessions = append(sessions, x)
			work.Go(func() { m.apply(ctx, s, x) })
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// apply is the lane of a session.
func (m *model) apply(ctx context.Context, s *partition.Share, x *session) {
	for {
		x.batch <- struct{}{}
		for p, l := range x.leases {
			err := m.cluster.apply(ctx, x.grant.InstanceID, l, x)
			if err != nil {
				delete(x.leases, p)
				s.Lost([]int{p})
			}
		}
		n := len(x.leases)
		<-x.batch
		if n == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-x.grant.Ended:
			x.batch <- struct{}{}
			clear(x.leases)
			<-x.batch
			return
		case <-time.After(time.Second):
		}
	}
}

// end ends a process: without a word, or handing back what it holds.
func (m *model) end(t *testing.T, p *process, leave bool) {
	p.stop()
	p.mu.Lock()
	p.dead = !leave
	p.thaw()
	p.mu.Unlock()
	p.done.Wait()
	if leave {
		_ = p.member.Leave(t.Context())
	}
	m.processes = slices.DeleteFunc(m.processes, func(x *process) bool { return x == p })
}

func (p *process) thaw() {
	if p.frozen != nil {
		close(p.frozen)
	}
	p.frozen, p.late = nil, false
}

// befall has an event happen.
func (m *model) befall(t *testing.T, e event) {
	if e.Kind == joins || len(m.processes) == 0 {
		if len(m.processes) < 5 {
			m.start(t)
		}
		return
	}
	p := m.processes[e.Host%len(m.processes)]
	switch e.Kind {
	case leaves, dies:
		m.end(t, p, e.Kind == leaves)
	case freezes:
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.frozen != nil {
			return
		}
		frozen := make(chan struct{})
		p.frozen, p.late = frozen, e.Done
		time.AfterFunc(e.For, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.frozen == frozen {
				p.thaw()
			}
		})
	case fails:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failing[e.Call] = append(p.failing[e.Call], e)
	case withdraws:
		p.shares[e.Build].Withdraw("it cannot")
	case returns:
		p.shares[e.Build].Return()
	case jumps:
		m.set(func() { m.ahead += e.For })
	case outage:
		m.set(func() { m.down = true })
		time.AfterFunc(e.For, func() { m.set(func() { m.down = false }) })
	case raised:
		m.set(func() {
			for i := range m.owners[e.Build] {
				m.owners[e.Build][i].Generation++
			}
		})
	case removed:
		m.set(func() { m.remove(p.id()) })
	case forgotten:
		m.set(func() { delete(m.members, p.id()) })
	}
}

// calm has everything go well from now on, on at least one host.
func (m *model) calm(t *testing.T) {
	m.set(func() { m.down = false })
	if len(m.processes) == 0 {
		m.start(t)
	}
	for _, p := range m.processes {
		p.mu.Lock()
		p.thaw()
		clear(p.failing)
		p.mu.Unlock()
		for _, s := range p.shares {
			s.Return()
		}
	}
}

// check tells what is not as it has to be once everything has calmed down.
func (m *model) check() (odd []string) {
	byID := make(map[string]*process)
	var live []store.Instance
	var members []store.Membership
	for _, p := range m.processes {
		byID[p.id()] = p
		live = append(live, store.Instance{ID: p.id()})
		for _, b := range modelBuilds {
			members = append(members, store.Membership{Enlistment: store.Enlistment{Build: b, SingleOwner: b == together}, InstanceID: p.id()})
		}
	}
	targets := partition.Assign(m.n, live, members)
	m.mu.Lock()
	owners := make(map[int64][]store.Ownership)
	for b, rows := range m.owners {
		owners[b] = slices.Clone(rows)
	}
	m.mu.Unlock()
	for b, rows := range owners {
		load := make(map[string]int)
		for i, r := range rows {
			p := byID[r.InstanceID]
			load[r.InstanceID]++
			if p == nil {
				odd = append(odd, fmt.Sprintf("partition %d of build %d is owned by %q, who is nobody", i, b, r.InstanceID))
				continue
			}
			if l, held := p.shares[b].Lease(i); !held || l.Generation != r.Generation {
				odd = append(odd, fmt.Sprintf("partition %d of build %d belongs to %s under generation %d, who holds it: %t, %d", i, b, p.name, r.Generation, held, l.Generation))
			}
			if targets[b][i] != r.InstanceID {
				odd = append(odd, fmt.Sprintf("partition %d of build %d belongs to %s and is due to %q", i, b, p.name, targets[b][i]))
			}
			m.mu.Lock()
			if _, applied := m.written[write{b, i, r.Generation}]; !applied {
				odd = append(odd, fmt.Sprintf("partition %d of build %d is not applied by %s", i, b, p.name))
			}
			m.mu.Unlock()
		}
		for id, n := range load {
			if b != together && n > (5*m.n+4*len(m.processes)-1)/(4*len(m.processes)) || b == together && n != m.n {
				odd = append(odd, fmt.Sprintf("build %d: %q has %d of %d with %d hosts", b, id, n, m.n, len(m.processes)))
			}
		}
	}
	return odd
}

// play plays a script, and gives what is wrong in the end.
func play(t *testing.T, script []event, mutant string) (odd []string) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{cluster: newCluster(modelPartitions, modelBuilds...)}
		m.cluster.fault, m.mutant = m.fault, mutant
		m.start(t)
		for _, e := range script {
			pass(e.After)
			m.befall(t, e)
		}
		m.calm(t)
		settled := 2*ttl + rebalance + 2*time.Second
		if slices.ContainsFunc(script, func(e event) bool { return e.Kind == jumps && e.For < 0 }) {
			// Whoever died when his row was just too far in the future is live
			// for two TTLs from when it is not, unless he is removed before.
			settled += ttl/3 + rebalance
		}
		pass(settled)
		odd = append(m.broken, m.check()...)
		var moves int
		m.set(func() { moves = m.moves })
		pass(time.Minute)
		m.set(func() {
			if m.moves != moves {
				odd = append(odd, fmt.Sprintf("%d rows moved without need", m.moves-moves))
			}
			if len(m.instances) != len(m.processes) {
				odd = append(odd, fmt.Sprintf("%d hosts run, and there are %d instances", len(m.processes), len(m.instances)))
			}
		})
		for len(m.processes) > 0 {
			m.end(t, m.processes[0], true)
		}
		for b, rows := range m.owners {
			for i, r := range rows {
				if r.InstanceID != "" {
					odd = append(odd, fmt.Sprintf("partition %d of build %d is left with %q", i, b, r.InstanceID))
				}
			}
		}
	})
	return odd
}

// Whatever befalls the hosts: no generation has two writers, nothing is written
// under an old one, and when all is calm again every partition is applied by the
// one host it is due to, and stays there.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		script := rapid.SliceOfN(events(), 1, 30).Draw(r, "script")
		if odd := play(t, script, ""); len(odd) > 0 {
			r.Fatalf("%d things are odd:\n%s", len(odd), strings.Join(odd[:min(10, len(odd))], "\n"))
		}
	})
}

// The model notices a database that does it wrong.
func TestModelHasTeeth(t *testing.T) {
	t.Parallel()
	for _, mutant := range []string{sameGeneration, noFence, keepsRows} {
		t.Run(mutant, func(t *testing.T) {
			scripts := rapid.SliceOfN(events(), 10, 30)
			for seed := range 1000 {
				if len(play(t, scripts.Example(seed), mutant)) > 0 {
					return
				}
			}
			t.Fatal("nobody noticed")
		})
	}
}
