package main

import (
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/cmd/projhost/bench"
)

func (c *cli) benchCommand() *cobra.Command {
	var o bench.Options
	var latency, appends, idle bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the host against pipelines written by hand, side by side",
		Long: `bench applies the demo's events (bank accounts, the same ones every time) to a read model, on embedded SQLite
or on a database server, in interleaved rounds: by the best native Go pipeline we know, which folds batches in memory, on the same
driver and doing the same work; by a loop of one transaction for each event; and by the host with a plugin in
C and one in Go, with the time limit of calls off and on. All must leave the same rows. Only ratios within one
run mean anything elsewhere. On a server the databases of the runs are made beside the one that --dsn names, called
projhost_bench_…, and dropped at the end: the user must be allowed to. Loading and compiling plugins is not in the figures, but told.

With --hosts it measures, instead of all that, how fast several hosts are together that share this machine's processors and the
database server: for each number of hosts in the list, each a process of its own, in interleaved rounds, a consumer whose key is
the stream's id and one whose key is a member of the payload. The hosts have shared the partitions out when the whole log appears
with one commit; measured is the time from then until all checkpoints are at its end. With --idle also what each asks when idle.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if latency {
				o.Appends = 2000
			}
			if appends {
				o.AppendFor = time.Second
			}
			if idle {
				o.IdleFor = 10 * time.Second
			}
			if err := o.Check(); err != nil {
				return usage("%v", err)
			}
			return c.bench(cmd, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Driver, "driver", "", "`name` of the database's driver: sqlite, postgres, mysql (default sqlite)")
	completeNames(cmd, "driver", bench.Drivers())
	f.StringVar(&o.DSN, "dsn", "", "connection `string` of the server: postgres://user:password@host/database, user:password@tcp(host)/database")
	f.IntVar(&o.Events, "events", demoEvents, "apply `n` events")
	f.IntVar(&o.Accounts, "accounts", 10_000, "over `n` accounts")
	f.IntVar(&o.Rounds, "rounds", 3, "run each contender `n` times")
	f.StringSliceVar(&o.Only, "only", nil, "`names` of the contenders to run: native, loop, c, c+limit, go, go+limit")
	f.StringVar(&o.CPUProfile, "cpuprofile", "", "write a profile of the runs to `file`")
	f.StringVar(&o.Dir, "dir", "", "`folder` for SQLite's databases, on the disk to be measured (default: the temporary one)")
	f.IntSliceVar(&o.Hosts, "hosts", nil, "compare these `numbers` of hosts on one database, with the first of them (servers only)")
	f.BoolVar(&latency, "latency", false, "also measure how soon after an append its row can be read")
	f.BoolVar(&appends, "append", false, "also measure appending through HTTP beside the driver used directly")
	f.BoolVar(&idle, "idle", false, "also count the statements of a host that has nothing to do (servers only)")
	return cmd
}

func (c *cli) bench(cmd *cobra.Command, o bench.Options) error {
	var bar *progressbar.ProgressBar
	what := ""
	o.Progress = func(done, total int64, now string) {
		if bar == nil || bar.GetMax64() != total {
			bar = c.progress(total, now, false)
		}
		if now != what {
			what = now
			bar.Describe(what)
		}
		_ = bar.Set64(done)
	}
	r, err := bench.Run(cmd.Context(), o)
	if bar != nil {
		_ = bar.Clear()
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if c.json {
		return c.printJSON(r)
	}
	c.printBench(r)
	return nil
}

func (c *cli) printBench(r *bench.Report) {
	c.say("%s %s; %s events, %s accounts, %d rounds; %s %s, %d CPUs", r.Driver, r.Server, count(int64(r.Events)), count(int64(r.Accounts)), r.Rounds, r.Go, r.System, r.CPUs)
	if r.Hosts != nil {
		c.printHosts(r.Hosts)
		return
	}
	t := newTable(c.stdout, "name", "events/s", "(min–max)", "of native", "× loop", "CPU µs", "of native", "B/event", "allocs", "")
	for i := range r.Results {
		x := &r.Results[i]
		t.AppendRow([]any{
			x.Name, count(int64(x.PerSecond.Median)), count(int64(x.PerSecond.Min)) + "–" + count(int64(x.PerSecond.Max)),
			figure(x.Ratio, "%.2f"), figure(x.Factor, "%.1f"), figure(x.CPUMicros, "%.1f"), figure(x.CPURatio, "%.2f"),
			fmt.Sprintf("%.0f", x.BytesPerEvent), fmt.Sprintf("%.1f", x.AllocsPerEvent), x.What,
		})
	}
	right(t, 2, 3, 4, 5, 6, 7, 8, 9)
	t.Render()
	for _, p := range r.Plugins {
		c.say("plugin %s: %s, built in %.2f s, compiled in %.2f s", p.Name, bytesIEC(uint64(p.Bytes)), p.BuildSeconds, p.LoadSeconds)
	}
	for _, a := range r.Append {
		c.say("append, %d clients, %d events each time: %s events/s through HTTP, %s by the driver: %.2f; CPU µs an event: %s and %s, of HTTP's its client %s",
			a.Clients, a.Batch, count(int64(a.HTTP.Median)), count(int64(a.Driver.Median)), a.Ratio,
			figure(a.HTTPCPUMicros, "%.1f"), figure(a.DriverCPUMicros, "%.1f"), figure(a.ClientCPUMicros, "%.1f"))
	}
	for _, l := range r.Latency {
		c.say("plugin %s, append acknowledged → row visible at %d/s: p50 %.2f ms, p99 %.2f ms, max %.2f ms (the append itself: p50 %.2f ms)",
			l.Name, l.Rate, l.P50, l.P99, l.Max, l.Append)
	}
	if r.Idle != nil {
		c.say("idle, %d partitions: %.1f statements a second", r.Idle.Partitions, r.Idle.PerSecond)
	}
	for _, text := range r.NotRun {
		c.say("not run: %s", text)
	}
}

func (c *cli) printHosts(h *bench.Hosts) {
	t := newTable(c.stdout, "hosts", "key", "messages/s", "(min–max)", "of first", "CPU µs, hosts", "database", "of first")
	for _, x := range h.Results {
		t.AppendRow([]any{
			x.Hosts, x.Key, count(int64(x.PerSecond.Median)), count(int64(x.PerSecond.Min)) + "–" + count(int64(x.PerSecond.Max)),
			fmt.Sprintf("%.2f", x.Ratio), figure(x.HostCPUMicros, "%.1f"), figure(x.DatabaseCPUMicros, "%.1f"), figure(x.CPURatio, "%.2f"),
		})
	}
	right(t, 1, 3, 4, 5, 6, 7, 8)
	t.Render()
	for _, i := range h.Idle {
		c.say("idle, %d hosts: %.1f statements a second and host, %.1f connections a host", i.Hosts, i.PerSecond, i.Connections)
	}
}

// figure leaves out what was not measured.
func figure(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
