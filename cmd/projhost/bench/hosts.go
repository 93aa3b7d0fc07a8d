package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// Hosts tells how fast several hosts are together, each a process of its own,
// that share the processors and the database.
type Hosts struct {
	Messages int           `json:"messages"`
	Results  []HostsResult `json:"results"`
	Idle     []HostsIdle   `json:"idle,omitempty"`
}

// HostsResult are the figures of a consumer that a number of hosts run.
type HostsResult struct {
	Hosts int `json:"hosts"`
	// Key is "native" where the key of a message is its stream's id, and
	// "computed" where it is a member of the payload.
	Key       string `json:"key"`
	PerSecond Spread `json:"messages_per_second"` // of all hosts together
	// Ratio is the speed beside that of the first number of hosts with the same
	// key, the median of the rounds.
	Ratio float64 `json:"ratio_to_first"`
	// CPURatio is the processors' time that the first number of hosts takes for a
	// message beside what these take, hosts and database together; 0 where it is not
	// known. Others on the machine change it less than the speed. What a host takes
	// for a run whatever its length is in it, so a short log flatters few hosts.
	CPURatio float64 `json:"cpu_ratio_to_first,omitempty"`
	// Processors' time for a message, of all hosts and of their sessions with the
	// database; 0 where it is not known. That of what works for nobody's session
	// is not in it.
	HostCPUMicros     float64 `json:"host_cpu_us_per_message,omitempty"`
	DatabaseCPUMicros float64 `json:"database_cpu_us_per_message,omitempty"`
}

// HostsIdle tells what each of a number of hosts asks of the database when there
// is nothing to do.
type HostsIdle struct {
	Hosts       int     `json:"hosts"`
	PerSecond   float64 `json:"statements_per_second_and_host"`
	Connections float64 `json:"connections_per_host"`
}

// keyed is a consumer under measurement, by its rule for keys.
type keyed struct {
	key string
	source
}

// Both make the rows of accounts, in a table of the same name.
var keyedSources = []keyed{
	{"native", sources[0]},
	{"computed", source{"c, key by pointer", func(context.Context) ([]byte, error) {
		return guest.Committed("testplugins/accounts-c/accounts-by-pointer.wasm")
	}}},
}

// server is an engine whose databases any number of hosts can share.
type server interface {
	engine
	counter
	// empty makes a database without any table, calls f with its name and removes
	// it.
	empty(ctx context.Context, f func(dsn string) error) error
	// sessions are the operating system's numbers of the processes or threads that
	// serve the connections of a database, where they can be told.
	sessions(ctx context.Context, dsn string) ([]int, error)
}

// fleetRun is one measured run of several hosts.
type fleetRun struct {
	wall, hosts, database time.Duration
}

// checkpointPoll is how often the end of a run is looked for. It is what a run
// may seem to last longer than it did.
const checkpointPoll = 20 * time.Millisecond

// sessionsPoll is how often new sessions are looked for: what they did before is
// not counted.
const sessionsPoll = 200 * time.Millisecond

// stuckAfter is how long hosts may apply nothing before a run is given up.
const stuckAfter = 2 * time.Minute

// fleets measures the numbers of hosts in turns.
func (b *run) fleets(ctx context.Context, db engine) error {
	srv, ok := db.(server)
	if !ok {
		return errors.New("a database that is embedded has one host")
	}
	b.data = &dataset{engine: db, events: b.Events, accounts: b.Accounts}
	b.report.Hosts = &Hosts{Messages: b.Events}
	modules, err := b.keyedModules(ctx)
	if err != nil {
		return err
	}
	type cell struct {
		keyed
		hosts int
	}
	var cells []cell
	for _, k := range keyedSources {
		for _, n := range b.Hosts {
			cells = append(cells, cell{k, n})
		}
	}
	events := hostEvents(b.Events, b.Accounts)
	runs := make(map[string]map[int][]fleetRun)
	for _, k := range keyedSources {
		runs[k.key] = make(map[int][]fleetRun)
	}
	done, total := 0, b.Rounds*len(cells)
	for range b.Rounds {
		for _, c := range cells {
			b.progress(int64(done), int64(total), fmt.Sprintf("%d hosts, %s key", c.hosts, c.key))
			r, err := b.fleet(ctx, srv, modules[c.key], c.hosts, events)
			if err != nil {
				return fmt.Errorf("%d hosts, %s key: %w", c.hosts, c.key, err)
			}
			runs[c.key][c.hosts] = append(runs[c.key][c.hosts], r)
			done++
		}
		slices.Reverse(cells)
	}
	for _, k := range keyedSources {
		first := runs[k.key][b.Hosts[0]]
		for _, n := range b.Hosts {
			b.report.Hosts.Results = append(b.report.Hosts.Results, b.hostsResult(n, k.key, runs[k.key][n], first))
		}
	}
	if b.IdleFor > 0 {
		for _, n := range b.Hosts {
			b.progress(int64(total), int64(total), fmt.Sprintf("%d hosts, idle", n))
			if err := b.idleFleet(ctx, srv, modules["native"], n, events); err != nil {
				return fmt.Errorf("%d idle hosts: %w", n, err)
			}
		}
	}
	return nil
}

func (b *run) hostsResult(hosts int, key string, runs, first []fleetRun) HostsResult {
	speeds := func(runs []fleetRun) (out []float64) {
		for _, r := range runs {
			out = append(out, float64(b.Events)/r.wall.Seconds())
		}
		return out
	}
	cpu := func(of func(*fleetRun) time.Duration) float64 {
		var micros []float64
		for i := range runs {
			micros = append(micros, float64(of(&runs[i]).Nanoseconds())/1e3/float64(b.Events))
		}
		return median(micros)
	}
	both := func(runs []fleetRun) (out []float64) {
		for _, r := range runs {
			if r.database > 0 {
				out = append(out, float64(r.hosts+r.database))
			}
		}
		return out
	}
	return HostsResult{
		CPURatio: beside(both(first), both(runs)),
		Hosts:    hosts, Key: key, PerSecond: spread(speeds(runs)), Ratio: beside(speeds(runs), speeds(first)),
		HostCPUMicros:     cpu(func(r *fleetRun) time.Duration { return r.hosts }),
		DatabaseCPUMicros: cpu(func(r *fleetRun) time.Duration { return r.database }),
	}
}

// hostEvents are the events of the workload with a member in front of the others
// that names the account: a computed key is the same as the native one.
func hostEvents(events, accounts int) []store.ImportEvent {
	list := make([]store.ImportEvent, 0, events)
	for e := range samples.Accounts(events, accounts) {
		e.Data = append([]byte(`{"account":"`+e.AggregateID+`",`), e.Data[1:]...)
		list = append(list, importEvent(&e))
	}
	return list
}

// fleet runs hosts on a database of their own. They have shared the partitions
// out and wait at the end of an empty log when all of it appears with one commit.
func (b *run) fleet(ctx context.Context, srv server, module string, n int, events []store.ImportEvent) (r fleetRun, err error) {
	err = srv.empty(ctx, func(dsn string) error {
		f, err := b.startFleet(ctx, srv, dsn, dsn, module, n, sharingSoon)
		if err != nil {
			return err
		}
		if err := f.measure(ctx, events, &r); err != nil {
			return errors.Join(err, f.close())
		}
		if err := f.close(); err != nil {
			return err
		}
		got, err := b.data.outcomeOf(ctx, dsn, hostTable)
		if err != nil {
			return err
		}
		// Another run's events may be at other positions, which are in the rows.
		b.data.positions, b.expected = f.positions, map[int]string{}
		return b.compare(&contender{events: b.Events}, got)
	})
	return r, err
}

// fleet is hosts at work on a database.
type fleet struct {
	server
	dsn        string
	store      store.Store // of this process, to append and to look
	partitions int
	build      int64
	hosts      []*process
	positions  []int64 // of what was appended
	served     map[int]served
	watched    time.Time
}

// sharingSoon is how hosts are configured that are measured at work: they need
// not wait long to have shared the partitions out.
const sharingSoon = "[cluster]\nrebalance = \"1s\"\n"

// startFleet starts n hosts and waits until each has its share. They reach the
// database by way of through.
func (b *run) startFleet(ctx context.Context, srv server, dsn, through, module string, n int, config string) (_ *fleet, err error) {
	f := &fleet{server: srv, dsn: dsn}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.store, err = srv.open(ctx, dsn); err != nil {
		return nil, err
	}
	info, err := f.store.Info(ctx)
	if err != nil {
		return nil, err
	}
	f.partitions = info.Partitions
	b.report.Driver, b.report.Server = info.Driver, info.ServerVersion
	file, err := writeHostConfig(b.loader.dir, b.Driver, through, module, config)
	if err != nil {
		return nil, err
	}
	for range n {
		p, err := startProcess(ctx, b.Program, "run", "--config", file)
		if err != nil {
			return nil, err
		}
		f.hosts = append(f.hosts, p)
	}
	return f, f.settle(ctx)
}

// settleHosts is how long who owns what has to stay as it is.
const settleHosts = time.Second

// settle waits until every host has its share, as near as it is promised.
func (f *fleet) settle(ctx context.Context) error {
	n := len(f.hosts)
	most := (f.partitions*5 + 4*n - 1) / (4 * n) // 1.25 times the share
	var before []store.Ownership
	began, since := time.Now(), time.Now()
	for {
		if err := f.pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if time.Since(began) > stuckAfter {
			return f.failure("the hosts do not share the partitions out")
		}
		c, err := f.store.Consumer(ctx, consumer)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		f.build = c.Build
		owners, err := f.store.Owners(ctx, c.Build)
		if err != nil {
			return err
		}
		if !slices.Equal(owners, before) {
			before, since = owners, time.Now()
		}
		shares := make(map[string]int)
		for _, o := range owners {
			shares[o.InstanceID]++
		}
		fair := len(shares) == n && shares[""] == 0
		for _, share := range shares {
			fair = fair && share <= most
		}
		if fair && time.Since(since) > settleHosts {
			return nil
		}
	}
}

// append stores the events with one commit and tells the last position of each
// partition.
func (f *fleet) append(ctx context.Context, events []store.ImportEvent) (ends []int64, err error) {
	res, err := f.store.Import(ctx, events)
	if err != nil {
		return nil, fmt.Errorf("import the workload: %w", err)
	}
	ends = make([]int64, f.partitions)
	for i := range events {
		// Nobody else appends, so they lie one behind the other.
		at := res.LastPosition - int64(len(events)-1-i)
		f.positions = append(f.positions, at)
		ends[partition.Of(events[i].AggregateID, f.partitions)] = at
	}
	return ends, nil
}

// applied waits until all partitions are applied up to their ends.
func (f *fleet) applied(ctx context.Context, ends []int64) error {
	sum, moved := int64(0), time.Now()
	for {
		list, err := f.store.Checkpoints(ctx, f.build)
		if err != nil {
			return err
		}
		left, now := 0, int64(0)
		for _, c := range list {
			if now += c.Position; c.Position < ends[c.Partition] {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if now != sum {
			sum, moved = now, time.Now()
		}
		if time.Since(moved) > stuckAfter {
			return f.failure(fmt.Sprintf("the hosts apply nothing, and %d partitions are left", left))
		}
		if f.served != nil && time.Since(f.watched) > sessionsPoll {
			if err := f.watch(ctx); err != nil {
				return err
			}
		}
		if err := f.pause(ctx, checkpointPoll); err != nil {
			return err
		}
	}
}

// measure has the log appear and waits until all of it is applied.
func (f *fleet) measure(ctx context.Context, events []store.ImportEvent, r *fleetRun) error {
	ends, err := f.append(ctx, events)
	if err != nil {
		return err
	}
	start, hosts := time.Now(), f.cpu()
	f.served = make(map[int]served)
	if err := f.watch(ctx); err != nil {
		return err
	}
	if err := f.applied(ctx, ends); err != nil {
		return err
	}
	r.wall, r.hosts = time.Since(start), f.cpu()-hosts
	if err := f.watch(ctx); err != nil {
		return err
	}
	for _, s := range f.served {
		r.database += s.to - s.from
	}
	return nil
}

// cpu is what the hosts have used of the processors so far, 0 where it cannot be
// told.
func (f *fleet) cpu() (used time.Duration) {
	for _, p := range f.hosts {
		used += processCPU(p.cmd.Process.Pid)
	}
	return used
}

// served is what a session of the database had used of the processors when it was
// seen first and when it was seen last. A server may have used its thread before.
type served struct{ from, to time.Duration }

// watch looks what the sessions of the database have used.
func (f *fleet) watch(ctx context.Context) error {
	pids, err := f.sessions(ctx, f.dsn)
	if err != nil {
		return err
	}
	f.watched = time.Now()
	for _, pid := range pids {
		used := serverThreadCPU(pid)
		s, known := f.served[pid]
		if !known {
			s.from = used
		}
		s.to = max(s.to, used)
		f.served[pid] = s
	}
	return nil
}

// pause waits, unless a host ends meanwhile.
func (f *fleet) pause(ctx context.Context, d time.Duration) error {
	for _, p := range f.hosts {
		select {
		case <-p.ended:
			return f.failure(fmt.Sprintf("a host has ended: %v", p.err))
		default:
		}
	}
	return pause(ctx, d)
}

// failure is an error with what the hosts have said.
func (f *fleet) failure(what string) error {
	for _, p := range f.hosts {
		if said := p.said(); said != "" {
			what += "\n" + said
		}
	}
	return errors.New(what)
}

func (f *fleet) close() error {
	var errs []error
	for _, p := range f.hosts {
		p.interrupt()
	}
	for _, p := range f.hosts {
		<-p.ended
		errs = append(errs, p.err)
	}
	if f.store != nil {
		errs = append(errs, f.store.Close())
	}
	return errors.Join(errs...)
}

// idleFleet counts the statements of hosts that have caught up, as they are
// configured by default.
func (b *run) idleFleet(ctx context.Context, srv server, module string, n int, events []store.ImportEvent) error {
	return srv.empty(ctx, func(dsn string) (err error) {
		line, err := listenCounting(srv)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, line.close()) }()
		f, err := b.startFleet(ctx, srv, dsn, srv.through(dsn, line.listener.Addr().String()), module, n, "")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.close()) }()
		ends, err := f.append(ctx, events[:min(len(events), 1000)])
		if err != nil {
			return err
		}
		if err := f.applied(ctx, ends); err != nil {
			return err
		}
		if err := pause(ctx, settleIdle); err != nil {
			return err
		}
		perSecond, err := line.count(ctx, b.IdleFor)
		if err != nil {
			return err
		}
		b.report.Hosts.Idle = append(b.report.Hosts.Idle, HostsIdle{
			Hosts: n, PerSecond: perSecond / float64(n), Connections: float64(line.connections.Load()) / float64(n),
		})
		return nil
	})
}
