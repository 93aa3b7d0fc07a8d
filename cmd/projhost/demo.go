package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host"
	"github.com/projhost/projhost/internal/config"
	"github.com/projhost/projhost/internal/guest"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/drivers"
)

const (
	demoEvents  = 100_000
	demoPlugin  = "accounts"
	demoListen  = "127.0.0.1:8080"
	demoBatch   = 5000
	demoRows    = 5
	demoRefresh = 100 * time.Millisecond
)

var demoConsumer = store.ConsumerID{Type: "projection", Name: demoPlugin}

type demoFlags struct {
	once    bool
	events  int
	listen  string
	dataDir string
	driver  string
	dsn     string
}

func (c *cli) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "The whole job on an empty machine: builds a plugin, feeds events, shows the read model",
		Long: `demo builds the example plugin testplugins/accounts with the Go toolchain, runs a host on embedded SQLite or
on the database that --driver and --dsn name, appends sample events of bank accounts (the same ones every time),
waits until the read model has caught up, prints some rows, and serves until Ctrl-C. It needs Go and this
repository. On SQLite it leaves nothing behind unless --data-dir says where. On a server it expects an empty
database, or one of an earlier demo, and leaves its tables there: drop the database when you have seen enough.
A second start over the same folder or database goes on where the first stopped.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.events < 0 {
				return usage("--events must not be negative")
			}
			if !slices.Contains(drivers.Names(), f.driver) {
				return usage("--driver is one of %s, not %q", strings.Join(drivers.Names(), ", "), f.driver)
			}
			if f.driver == "sqlite" && f.dsn != "" {
				return usage("--dsn needs a --driver other than sqlite; --data-dir says where SQLite's file goes")
			}
			if err := config.CheckDSN(f.driver, f.dsn); err != nil {
				return usage("--dsn %v", err)
			}
			return c.demo(cmd.Context(), f, cmd.Flags().Changed("listen"))
		},
	}
	cmd.Flags().BoolVar(&f.once, "once", false, "exit after printing")
	cmd.Flags().IntVar(&f.events, "events", demoEvents, "have `n` sample events")
	cmd.Flags().StringVar(&f.listen, "listen", demoListen, "`address` to serve at; if this one is taken, any free port")
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "", "`folder` of SQLite's database and of compiled plugins, kept afterwards (default: a temporary one, removed)")
	cmd.Flags().StringVar(&f.driver, "driver", "sqlite", "`name` of the database's driver: "+strings.Join(drivers.Names(), ", "))
	cmd.Flags().StringVar(&f.dsn, "dsn", "", "connection `string` of an empty database on a server")
	completeNames(cmd, "driver", drivers.Names())
	return cmd
}

// demoSummary is what a demo has to show, with --json.
type demoSummary struct {
	Events         int64   `json:"events"`
	Appended       int64   `json:"appended"`
	AppendSeconds  float64 `json:"append_seconds"`
	AppliedSeconds float64 `json:"applied_seconds"` // from the first append until all is applied
	PerSecond      float64 `json:"events_per_second"`
	Address        string  `json:"address"`
	Database       string  `json:"database"`
}

func (c *cli) demo(ctx context.Context, f demoFlags, listenGiven bool) (err error) {
	cfg := config.Default()
	cfg.HTTP.Listen = f.listen
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil || !config.Loopback(host) {
		return usage("--listen %q must be a loopback address with a port, such as 127.0.0.1:8080: the demo has no tokens", f.listen)
	}
	cfg.DataDir = f.dataDir
	if f.dataDir == "" {
		if cfg.DataDir, err = os.MkdirTemp("", "projhost-demo-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.DataDir)) }()
	}
	cfg.Store.Driver, cfg.Store.DSN = f.driver, f.dsn
	if err := demoMayUse(ctx, &cfg); err != nil {
		return err
	}
	start := time.Now()
	c.say("building the plugin testplugins/%s with Go …", demoPlugin)
	wasm, err := guest.Compile(ctx, "testplugins/"+demoPlugin)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	c.say("built: %s in %s", bytesIEC(uint64(len(wasm))), round(time.Since(start)))

	plugin := config.DefaultPlugin()
	plugin.Name = demoPlugin
	cfg.Plugins = []config.Plugin{plugin}
	cfg.Log = config.Log{Level: "warn", Format: "text"}
	l, err := demoListener(f.listen, listenGiven)
	if err != nil {
		return err
	}
	n, err := openNode(ctx, &cfg, c.logger(cfg.Log), map[string][]byte{demoPlugin: wasm}, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()

	// The node ends when the story does, or takes the story down with it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := n.run(ctx)
		cancel()
		done <- err
	}()
	err = c.demoStory(ctx, n, f)
	if err == nil && !f.once {
		<-ctx.Done()
		c.say("\nstopping")
	}
	cancel()
	if nodeErr := <-done; nodeErr != nil {
		return nodeErr
	}
	return err
}

// demoMayUse refuses a server's database that is somebody's: one whose tables
// are there and are not those of an earlier demo.
func demoMayUse(ctx context.Context, cfg *config.Config) (err error) {
	if cfg.Store.Driver == "sqlite" {
		return nil
	}
	st, err := openAsItIs(ctx, cfg)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	refused := fmt.Errorf("%s has tables of a projhost that are not the demo's: name an empty database with --dsn", cfg.Database())
	consumers, err := st.ListConsumers(ctx)
	if err != nil {
		return err
	}
	for i := range consumers {
		if consumers[i].ID != demoConsumer || consumers[i].Plugin != demoPlugin {
			return refused
		}
	}
	topic, err := st.Topic(ctx, store.EventsTopic)
	if err != nil {
		return err
	}
	if topic.End == 0 {
		return nil
	}
	for e := range samples.Accounts(1, samples.AccountsDefault) {
		stored, err := st.ReadStream(ctx, e.AggregateType, e.AggregateID, 1, 1)
		if err != nil {
			return err
		}
		if len(stored) == 0 || stored[0].ID != e.ID {
			return refused
		}
	}
	return nil
}

// say tells what is going on, unless JSON is asked for.
func (c *cli) say(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.stdout, format+"\n", args...)
	}
}

// demoListener listens at a free port where the usual one is taken and none was
// asked for.
func demoListener(address string, given bool) (net.Listener, error) {
	l, err := listen(address)
	if err != nil && !given {
		l, err = listen("127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}

func (c *cli) demoStory(ctx context.Context, n *node, f demoFlags) error {
	start := time.Now()
	appended, last, err := c.demoAppend(ctx, n, f.events)
	if err != nil {
		return demoError(ctx, "append", err)
	}
	appendTime := time.Since(start)
	if there := int64(f.events) - appended; there > 0 {
		c.say("%s are there from before", plural(there, "event"))
	}
	if appended > 0 {
		c.say("appended %s in %s (%s)", plural(appended, "event"), round(appendTime), perSecond(appended, appendTime))
	}
	if err := c.demoCatchUp(ctx, n, last); err != nil {
		return demoError(ctx, "apply", err)
	}
	took := time.Since(start)
	cl := &client{base: n.address(), http: &http.Client{}, close: noClose}
	if c.json {
		return c.printJSON(demoSummary{int64(f.events), appended, appendTime.Seconds(), took.Seconds(), float64(appended) / took.Seconds(), n.address(), n.cfg.Database()})
	}
	if appended > 0 {
		c.say("the read model has caught up: %s appended and applied in %s (%s)\n", plural(appended, "event"), round(took), perSecond(appended, took))
	} else {
		c.say("the read model has caught up\n")
	}
	if err := c.demoShow(ctx, cl); err != nil {
		return demoError(ctx, "show", err)
	}
	if f.once {
		return nil
	}
	c.say("\nserving at %s", n.address())
	c.demoHints(n)
	return nil
}

// demoError tells an interrupt from a failure.
func demoError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return fmt.Errorf("demo: %s: %w", what, err)
}

// demoAppend appends the sample events that are not there yet. They are appended
// in order and in whole batches, so a batch whose last event is there is there.
// Last is the highest of their positions.
func (c *cli) demoAppend(ctx context.Context, n *node, events int) (appended, last int64, err error) {
	bar := c.progress(int64(events), "append", false)
	defer func() { _ = bar.Clear() }()
	sequences := map[string]int64{}
	missing := false
	for batch := range batches(samples.Accounts(events, samples.AccountsDefault), demoBatch) {
		in := make([]store.ImportEvent, len(batch))
		for i, e := range batch {
			sequences[e.AggregateID]++
			in[i] = store.ImportEvent{AggregateType: e.AggregateType, AggregateID: e.AggregateID, NewEvent: store.NewEvent{
				ID: e.ID, HasID: true, Type: e.Type, Data: e.Data, Metadata: e.Metadata, OccurredUS: e.OccurredUS, HasOccurred: true}}
		}
		if !missing {
			end := &in[len(in)-1]
			stored, err := n.store.ReadStream(ctx, end.AggregateType, end.AggregateID, sequences[end.AggregateID], 1)
			if err != nil {
				return appended, last, err
			}
			if missing = len(stored) == 0 || stored[0].ID != end.ID; !missing {
				last = stored[0].Position
			}
		}
		if missing {
			res, err := n.store.Import(ctx, in)
			if err != nil {
				return appended, last, err
			}
			appended, last = appended+int64(res.Stored), res.LastPosition
		}
		_ = bar.Add(len(in))
	}
	return appended, last, ctx.Err()
}

func batches[T any](seq iter.Seq[T], size int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		batch := make([]T, 0, size)
		for e := range seq {
			if batch = append(batch, e); len(batch) == size {
				if !yield(batch) {
					return
				}
				batch = batch[:0]
			}
		}
		if len(batch) > 0 {
			yield(batch)
		}
	}
}

// demoCatchUp waits until everything up to a position is applied. That is the
// last one appended, not the topic's end: where others have transactions open,
// that may stay out of reach, and the high-water mark may not have come to what
// was appended just now.
func (c *cli) demoCatchUp(ctx context.Context, n *node, last int64) error {
	bar := c.progress(last, "apply", false)
	defer func() { _ = bar.Clear() }()
	for {
		if applied, ok := n.host.Applied(demoConsumer, store.EventsTopic, host.AllPartitions); ok {
			_ = bar.Set64(min(applied, last))
		}
		wait, cancel := context.WithTimeout(ctx, demoRefresh)
		err := n.host.WaitApplied(wait, demoConsumer, store.EventsTopic, last, host.AllPartitions)
		cancel()
		_, late := errors.AsType[*host.NotCaughtUpError](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case late:
		case errors.Is(err, host.ErrUnknownConsumer): // not subscribed yet
			select {
			case <-ctx.Done():
			case <-time.After(demoRefresh):
			}
		default:
			return err
		}
	}
}

// demoShow prints the first rows, by the way any client would read them.
func (c *cli) demoShow(ctx context.Context, cl *client) error {
	body, _, err := cl.call(ctx, http.MethodGet, path("read-models", demoPlugin), url.Values{"limit": {strconv.Itoa(demoRows)}}, nil)
	if err != nil {
		return err
	}
	rows, _, err := decodePage(body)
	if err != nil {
		return err
	}
	return c.printRows(rows, nil, "table")
}

// demoHints says what to try while the demo serves.
func (c *cli) demoHints(n *node) {
	me := os.Args[0]
	if strings.Contains(me, "go-build") {
		me = "go run ./cmd/projhost"
	} else {
		me = filepath.Base(me)
	}
	flag := ""
	if n.listener.Addr().String() != demoListen {
		flag = " --url " + n.address()
	}
	c.say("try, in another terminal:")
	for _, args := range []string{"status", "query accounts --order owner --limit 3", "query accounts account-00042", "topics tail events --follow"} {
		c.say("  %s %s%s", me, args, flag)
	}
	c.say("  curl %s/v1/read-models/accounts/account-00042", n.address())
	c.say("Ctrl-C ends it.")
}
