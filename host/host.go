package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/metrics"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Deps are the things a host is made of. The caller closes them after Run.
type Deps struct {
	Store   store.Store
	Plugins []Plugin
	Log     hclog.Logger
	Metrics prometheus.Registerer // nil: none are kept
}

// Host runs the consumers of its plugins.
type Host struct {
	deps      Deps
	cfg       Config
	log       hclog.Logger
	metrics   *metrics.Metrics
	consumers []*consumer
	plugins   []*pluginState
	lookouts  lookouts

	// Set by Run before anything reads them.
	partitions int // N
	sources    map[string]*reader.Source

	mu        sync.Mutex
	member    *partition.Member   // nil before it has joined
	balancer  *partition.Balancer // likewise
	running   bool
	startedUS int64

	counting  sync.Mutex // what metrics were last told of undelivered messages
	counts    map[store.ConsumerID]map[store.UndeliveredStatus]int64
	countedAt time.Time
}

type pluginState struct {
	*Plugin
	guests instances
}

// New makes a host. It does no I/O; the error joins every problem of the
// config and of what the plugins declare.
func New(deps Deps, cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("host config: %w", err)
	}
	if deps.Log == nil {
		deps.Log = hclog.NewNullLogger()
	}
	h := &Host{deps: deps, cfg: cfg, log: deps.Log.Named("host")}
	var problems []error
	names := make(map[string]bool)
	owners := make(map[store.ConsumerID]string)
	for i := range deps.Plugins {
		p := &pluginState{Plugin: &deps.Plugins[i]}
		if names[p.Name] {
			problems = append(problems, fmt.Errorf("plugin %s: given twice; each needs a name of its own", p.Name))
		}
		names[p.Name] = true
		h.plugins = append(h.plugins, p)
		manifest := p.Module.Manifest()
		for index := range manifest.Consumers {
			c, err := h.consumer(p, index)
			if err != nil {
				problems = append(problems, fmt.Errorf("plugin %s: %w", p.Name, err))
				continue
			}
			if owner, taken := owners[c.id]; taken {
				problems = append(problems, fmt.Errorf("plugin %s: %s is already declared by plugin %s; rename it in one of them", p.Name, c.id, owner))
				continue
			}
			owners[c.id] = p.Name
			h.consumers = append(h.consumers, c)
		}
		for name := range p.Consumers {
			if !slices.ContainsFunc(manifest.Consumers, func(c abi.Consumer) bool { return c.Name == name }) {
				problems = append(problems, fmt.Errorf("plugin %s: the config has a consumer %q that the module does not declare", p.Name, name))
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if deps.Metrics != nil {
		m, err := metrics.New(deps.Metrics, h.sample)
		if err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		h.metrics = m
	}
	return h, nil
}

// consumer makes one of a plugin's consumers.
func (h *Host) consumer(p *pluginState, index int) (*consumer, error) {
	declared := &p.Module.Manifest().Consumers[index]
	c := &consumer{
		host: h, plugin: p.Plugin, declared: declared, index: index, guests: &p.guests,
		id:       store.ConsumerID{Type: declared.Type, Name: declared.Name},
		retrying: make(map[*reporter]error), moved: make(chan struct{}), careful: make(map[int]lane.Careful),
		refused: make(map[int64]lane.RefusedRow), held: &lane.Held{Max: int64(h.cfg.MaxUndelivered)}, delivery: h.cfg.Delivery,
	}
	if e := p.Consumers[declared.Name].OnExhausted; e != "" {
		if !e.Valid() {
			return nil, fmt.Errorf("%s: on_exhausted must be halt, dead_letter_key, dead_letter or skip, it is %q", c.id, e)
		}
		c.delivery.OnExhausted = e
	}
	if declared.Type != abi.Projection {
		return nil, fmt.Errorf("%s: this version runs projections only", c.id)
	}
	tables, err := readmodel.NewTables(declared.Tables)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.id, err)
	}
	c.tables = tables
	for _, t := range tables {
		c.free = c.free || t.Free
	}
	for i := range declared.Inputs {
		if topic := declared.Inputs[i].Topic; !slices.Contains(c.topics, topic) {
			c.topics = append(c.topics, topic)
		}
	}
	c.singleOwner = declared.Distribution == abi.SingleOwner || p.Consumers[declared.Name].SingleOwner
	c.log = h.deps.Log.Named("consumer").With("plugin", p.Name, "consumer", c.id.String())
	c.setState(StateStarting, "", nil)
	return c, nil
}

func (h *Host) policy() retry.Policy { return retry.Policy{Min: h.cfg.RetryMin, Max: h.cfg.RetryMax} }

// Run subscribes and claims, applies until ctx ends, lets the batches in hand
// commit, saves checkpoints, gives the leases back and returns nil. An error
// means that the host could not start: a consumer that fails later only halts
// itself.
func (h *Host) Run(ctx context.Context) error {
	h.mu.Lock()
	if h.startedUS != 0 {
		h.mu.Unlock()
		return errors.New("a host is run once: make another")
	}
	h.startedUS = time.Now().UnixMicro()
	h.mu.Unlock()

	if err := h.run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	h.log.Info("stopped", "cause", context.Cause(ctx))
	return nil
}

// run fails where the host cannot start; an end of ctx before that is no
// failure to Run.
func (h *Host) run(ctx context.Context) error {
	info, err := h.deps.Store.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask the store: %w", err)
	}
	if info.Hash != store.PartitionHash {
		return fmt.Errorf("the database was made with partition hash %q, this host computes %q: it needs another version of projhost", info.Hash, store.PartitionHash)
	}
	h.partitions = info.Partitions
	member, err := partition.Join(ctx, h.deps.Store, partition.MemberConfig{
		HostName: h.cfg.HostName, TTL: h.cfg.InstanceTTL, Heartbeat: h.cfg.Heartbeat, MaxPartitions: h.cfg.MaxPartitions,
	}, h.log)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.member = member
	h.mu.Unlock()
	defer h.leave(ctx)
	// Heartbeats go on while a stop waits for the batches in hand.
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	var heart sync.WaitGroup
	heart.Go(func() { member.Run(alive) })
	defer heart.Wait()
	defer die()
	balancer := partition.NewBalancer(h.deps.Store, member, partition.BalancerConfig{
		Partitions: info.Partitions, Rebalance: h.cfg.Rebalance, Hasty: min(hasty, h.cfg.Rebalance),
	}, h.log)
	h.mu.Lock()
	h.balancer = balancer
	h.mu.Unlock()
	if err := h.subscribe(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while it started
		}
		return err
	}
	heart.Go(func() { balancer.Run(alive) })
	if !info.Embedded {
		heart.Go(func() { h.advance(alive) })
	}
	heart.Go(func() { h.sweepSkips(alive) })
	h.log.Info("started", "instance", h.instance(), "partitions", info.Partitions, "plugins", len(h.plugins), "consumers", len(h.consumers))
	h.apply(ctx)
	return nil
}

// hasty is the time between two looks at who owns what while partitions wait for
// this host to take them.
const hasty = 250 * time.Millisecond

// subscribe records all consumers. One whose declaration is not the stored one's
// stays out and leaves the others alone; anything else stops the start.
func (h *Host) subscribe(ctx context.Context) error {
	h.sources = make(map[string]*reader.Source)
	for _, c := range h.consumers {
		for _, topic := range c.topics {
			if h.sources[topic] != nil {
				continue
			}
			if _, err := h.deps.Store.Topic(ctx, topic); err != nil {
				return fmt.Errorf("%s reads topic %q: %w", c.id, topic, err)
			}
			h.sources[topic] = reader.NewSource(h.deps.Store, topic, reader.SourceConfig{
				PageMessages: h.cfg.PageMessages, PageBytes: h.cfg.PageBytes,
				RingBytes: h.cfg.RingBytes, Poll: h.cfg.Poll,
			})
		}
		c.mu.Lock()
		c.at = make([]*session, h.partitions)
		c.mu.Unlock()
		switch err := c.subscribe(ctx); {
		case errors.As(err, &c.differs):
			c.setState(StatePending, c.differs.Error(), nil)
		case err != nil:
			return err
		default:
			c.enlist()
		}
	}
	return nil
}

// apply runs the sources and consumers until ctx ends and they have stopped.
func (h *Host) apply(ctx context.Context) {
	stop, stopped := context.WithCancelCause(context.WithoutCancel(ctx))
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	defer abandon(nil)

	var sources, consumers sync.WaitGroup
	for _, s := range h.sources {
		sources.Go(func() { s.Run(reading) })
	}
	for _, c := range h.consumers {
		consumers.Go(func() { c.run(work, stop) })
	}
	h.setRunning(true)
	<-ctx.Done()
	h.setRunning(false)
	stopped(errShutdown)
	late := time.AfterFunc(h.cfg.ShutdownTimeout, func() { abandon(errTooLong) })
	consumers.Wait()
	late.Stop()
	stopReading()
	sources.Wait()
}

// leave gives the leases back, also when ctx has ended: another host is to take
// over without waiting for this one's expiry.
func (h *Host) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.ReleaseTimeout)
	defer cancel()
	if err := h.member.Leave(ctx); err != nil {
		h.log.Warn("leases are not given back: they lapse with the instance", "error", err)
	}
}

// instance is the id under which the host is known to others, "" before it has
// joined.
func (h *Host) instance() string {
	h.mu.Lock()
	member := h.member
	h.mu.Unlock()
	if member == nil {
		return ""
	}
	id, _ := member.Instance()
	return id
}

func (h *Host) setRunning(running bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = running
}
