// Package bench measures the host against what one would write by hand: how
// fast it applies a backlog of events to a read model, how soon an appended
// event is visible in it, what HTTP costs an append, and what an idle host asks
// of its database. It does so on SQLite and on the database servers.
//
// It promises that all contenders of a run do the same work (their rows and the
// shape of their tables are compared, and a difference is an error), and that
// they take turns, so that a machine that slows down slows all of them. Only
// ratios within one run mean anything elsewhere.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/plugins"
)

// Options say what is measured.
type Options struct {
	// Driver is the database's, "sqlite" if empty. DSN names a server and any
	// database there that the user may connect to; the databases of the runs are
	// made beside it.
	Driver   string
	DSN      string
	Events   int
	Accounts int
	Rounds   int
	// Only names the contenders that take part; empty: all.
	Only []string
	// CPUProfile is a file for the profile of the runs, not of what prepares
	// them; empty: none.
	CPUProfile string
	// Dir is where the databases of SQLite are made, on the disk that is to be
	// measured; empty: the system's temporary folder.
	Dir string
	// Appends of the measurement of latency; 0: none.
	Appends int
	// AppendFor is how long each side appends in a round; 0: not at all.
	AppendFor time.Duration
	// IdleFor is how long an idle host's statements are counted; 0: not at all.
	IdleFor time.Duration
	// Hosts are the numbers of hosts that are measured beside each other, instead of
	// the contenders; empty: none. Each host is a process of its own.
	Hosts []int
	// Program is what runs as a host, with the arguments "run" and "--config";
	// empty: this program.
	Program string
	// Progress is told of steps done; it may be nil.
	Progress func(done, total int64, what string)
}

// nativeBatches are the batch sizes of the baseline. The ratios are against the one
// with the highest median.
var nativeBatches = []int{1000, 5000, 20_000}

// loopShare is the part of the events that the loop of single transactions
// gets: it would take minutes for all.
const loopShare = 20

// contender is one way to apply the events.
type contender struct {
	name   string
	what   string
	events int
	native bool
	table  string
	run    func(ctx context.Context, dsn string, m *meter) error
}

// Names are the contenders' names, for Options.Only.
func Names() []string {
	names := []string{"native", "loop"}
	for _, src := range sources {
		names = append(names, src.name, src.name+"+limit")
	}
	return names
}

// Check tells what is wrong with the options.
func (o *Options) Check() error {
	if o.Driver != "" && !slices.Contains(Drivers(), o.Driver) {
		return fmt.Errorf("--driver %s: it is one of %s", o.Driver, strings.Join(Drivers(), ", "))
	}
	server := o.Driver != "" && o.Driver != "sqlite"
	if err := o.checkHosts(server); err != nil {
		return err
	}
	if server != (o.DSN != "") {
		if server {
			return fmt.Errorf("--driver %s needs --dsn: the server, and a database there to connect to; those of the runs are made beside it", o.Driver)
		}
		return errors.New("--dsn needs --driver: SQLite's files are made in --dir")
	}
	for _, v := range []struct {
		name  string
		value int
	}{{"events", o.Events}, {"accounts", o.Accounts}, {"rounds", o.Rounds}} {
		if v.value < 1 {
			return fmt.Errorf("--%s must be at least 1, it is %d", v.name, v.value)
		}
	}
	for _, name := range o.Only {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("--only %s: it is one of %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

// hostsMax is how many processes a run starts at most.
const hostsMax = 64

func (o *Options) checkHosts(server bool) error {
	switch {
	case len(o.Hosts) == 0:
		return nil
	case !server:
		return errors.New("--hosts needs a database server (--driver postgres or mysql, and --dsn): an SQLite database has one host")
	case len(o.Only) > 0 || o.CPUProfile != "" || o.Appends > 0 || o.AppendFor > 0:
		return errors.New("--hosts measures hosts beside each other, and nothing else but --idle: leave out --only, --cpuprofile, --append and --latency")
	}
	for i, n := range o.Hosts {
		if n < 1 || n > hostsMax {
			return fmt.Errorf("--hosts must be numbers from 1 to %d, one is %d", hostsMax, n)
		}
		if slices.Contains(o.Hosts[:i], n) {
			return fmt.Errorf("--hosts has %d twice", n)
		}
	}
	return nil
}

func (o *Options) wants(name string) bool { return len(o.Only) == 0 || slices.Contains(o.Only, name) }

// Run measures. The databases are removed afterwards.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "projhost-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	loader, err := newLoader(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, loader.close()) }()
	db, err := newEngine(ctx, o.Driver, o.DSN, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	b := &run{Options: o, loader: loader, payloads: samplePayloads(o.Accounts)}
	return b.all(ctx, db)
}

// run is one run of the benchmark.
type run struct {
	Options
	loader   *loader
	data     *dataset
	payloads []samples.Event // of appends
	report   Report

	shape    string // of the first contender's table
	expected map[int]string
	samples  map[string][]meter
}

func (b *run) all(ctx context.Context, db engine) (*Report, error) {
	b.report = Report{
		Events: b.Events, Accounts: b.Accounts, Rounds: b.Rounds,
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0),
	}
	if len(b.Hosts) > 0 {
		if err := b.fleets(ctx, db); err != nil {
			return nil, err
		}
		return &b.report, nil
	}
	contenders, err := b.contenders(ctx)
	if err != nil {
		return nil, err
	}
	b.progress(0, int64(b.Events), "import")
	imported := 0
	b.data, err = newDataset(ctx, db, b.Events, b.Accounts, func(n int) {
		imported += n
		b.progress(int64(imported), int64(b.Events), "import")
	})
	if err != nil {
		return nil, err
	}
	b.report.Driver, b.report.Server = b.data.info.Driver, b.data.info.ServerVersion
	if err := b.profiled(func() error { return b.measureAll(ctx, contenders) }); err != nil {
		return nil, err
	}
	for _, src := range sources {
		if p := b.loader.reports[src.name]; p != nil {
			b.report.Plugins = append(b.report.Plugins, *p)
		}
	}
	return &b.report, nil
}

func (b *run) measureAll(ctx context.Context, contenders []contender) error {
	if err := b.rounds(ctx, contenders); err != nil {
		return err
	}
	b.summarise(contenders)
	for _, extra := range []struct {
		wanted  bool
		measure func(context.Context) error
	}{{b.AppendFor > 0, b.appends}, {b.Appends > 0, b.latencies}, {b.IdleFor > 0, b.idle}} {
		if extra.wanted {
			if err := extra.measure(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *run) progress(done, total int64, what string) {
	if b.Progress != nil {
		b.Progress(done, total, what)
	}
}

// contenders makes those that can run here; the report says which cannot.
func (b *run) contenders(ctx context.Context) (list []contender, err error) {
	if b.wants("native") {
		for _, batch := range nativeBatches {
			list = append(list, contender{
				name: fmt.Sprintf("native/%d", batch), what: fmt.Sprintf("native Go, batches of %d folded in memory", batch),
				events: b.Events, native: true, table: nativeTable,
				run: func(ctx context.Context, dsn string, m *meter) error {
					return batchFold(ctx, b.data, dsn, b.Events, batch, m)
				},
			})
		}
	}
	if b.wants("loop") {
		events := max(1, b.Events/loopShare)
		list = append(list, contender{
			name: "loop", what: "native Go, a transaction for each event", events: events, table: nativeTable,
			run: func(ctx context.Context, dsn string, m *meter) error { return perEvent(ctx, b.data, dsn, events, m) },
		})
	}
	for _, src := range sources {
		for _, limit := range []time.Duration{0, plugins.DefaultTimeout} {
			name, what := src.name, "host, "+src.name+" plugin, time limit off"
			if limit > 0 {
				name, what = src.name+"+limit", "host, "+src.name+" plugin, time limit on"
			}
			if !b.wants(name) {
				continue
			}
			p, err := b.loader.load(ctx, src, limit)
			if err != nil {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				b.report.NotRun = append(b.report.NotRun, fmt.Sprintf("%s: %s", name, firstLine(err)))
				continue
			}
			list = append(list, contender{
				name: name, what: what, events: b.Events, table: hostTable,
				run: func(ctx context.Context, dsn string, m *meter) error {
					return catchUp(ctx, b.data, dsn, p, b.data.last(), m)
				},
			})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("nothing to run: %s", strings.Join(b.report.NotRun, "; "))
	}
	return list, nil
}

// firstLine: a compiler's output is for its own command.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func (b *run) profiled(f func() error) (err error) {
	if b.CPUProfile == "" {
		return f()
	}
	file, err := os.Create(filepath.Clean(b.CPUProfile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

// rounds has the contenders take turns, there and back again.
func (b *run) rounds(ctx context.Context, contenders []contender) error {
	b.samples, b.expected = map[string][]meter{}, map[int]string{}
	done, total := 0, b.Rounds*len(contenders)
	for range b.Rounds {
		for i := range contenders {
			c := &contenders[i]
			b.progress(int64(done), int64(total), c.name)
			if err := b.measure(ctx, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			done++
		}
		slices.Reverse(contenders)
	}
	b.progress(int64(total), int64(total), "done")
	return nil
}

// measure runs a contender on a database of its own and compares what it leaves.
func (b *run) measure(ctx context.Context, c *contender) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var m meter
	var got outcome
	err := b.data.with(ctx, func(dsn string) (err error) {
		if err := c.run(ctx, dsn, &m); err != nil {
			return err
		}
		got, err = b.data.outcomeOf(ctx, dsn, c.table)
		return err
	})
	if err != nil {
		return err
	}
	b.samples[c.name] = append(b.samples[c.name], m)
	return b.compare(c, got)
}

func (b *run) compare(c *contender, got outcome) error {
	want, ok := b.expected[c.events]
	if !ok {
		var err error
		if want, err = b.data.expected(c.events); err != nil {
			return err
		}
		b.expected[c.events] = want
	}
	if got.rows != want {
		return errors.New("its rows are not those of the events: the figures would compare different work")
	}
	if b.shape == "" {
		b.shape = got.shape
	}
	if got.shape != b.shape {
		return fmt.Errorf("its table differs from the first contender's, so the figures would compare different work:\n%s\n%s", got.shape, b.shape)
	}
	return nil
}
