package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/store"
)

// watchEvery is how often status --watch asks.
const watchEvery = time.Second

func (c *cli) statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the running host is doing",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			if !watch {
				return c.status(cmd.Context(), cl)
			}
			return c.watchStatus(cmd.Context(), cl)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on until interrupted")
	return cmd
}

func (c *cli) status(ctx context.Context, cl *client) error {
	body, _, err := cl.call(ctx, "GET", "/v1/status", nil, nil)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if c.json {
		return c.printLine(body)
	}
	var st api.Status
	if err := cl.get(ctx, "/v1/status", nil, &st); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	c.printStatus(&st)
	return nil
}

func (c *cli) watchStatus(ctx context.Context, cl *client) error {
	for first := true; ; first = false {
		if !c.json && isTerminal(c.stdout) {
			fmt.Fprint(c.stdout, "\x1b[H\x1b[2J")
		} else if !c.json && !first {
			fmt.Fprintln(c.stdout)
		}
		if err := c.status(ctx, cl); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

func (c *cli) printStatus(st *api.Status) {
	ready := "ready"
	if !st.Ready {
		ready = "not ready: " + strings.Join(st.Reasons, "; ")
	}
	fmt.Fprintf(c.stdout, "host %s (projhost %s), since %s, %s\n", st.InstanceID, st.Version, st.StartedAt, ready)
	fmt.Fprintf(c.stdout, "store %s %s, schema %d, %s\n\n", st.Store.Driver, st.Store.ServerVersion, st.Store.SchemaVersion, plural(int64(st.Store.Partitions), "partition"))
	c.printTopics(st.Topics)
	fmt.Fprintln(c.stdout)
	c.printConsumers(st.Consumers)
	fmt.Fprintln(c.stdout)
	c.printPlugins(st.Plugins)
	if len(st.Instances) > 0 {
		fmt.Fprintln(c.stdout)
		t := newTable(c.stdout, "instance", "host", "since", "heartbeat", "")
		for _, i := range st.Instances {
			t.AppendRow(table.Row{i.ID, i.HostName, i.StartedAt, i.HeartbeatAt, instanceNote(&i, st.InstanceID)})
		}
		t.Render()
	}
}

// instanceNote tells the answering host from others, and those that are gone.
func instanceNote(i *api.Instance, self string) string {
	switch {
	case i.ID == self:
		return "this host"
	case !i.Live:
		return "silent"
	}
	return ""
}

func (c *cli) printConsumers(list []api.Consumer) {
	if len(list) == 0 {
		fmt.Fprintln(c.stdout, "no consumers: configure a [[plugin]]")
		return
	}
	t := newTable(c.stdout, "consumer", "state", "lag", "partitions", "undelivered", "epoch", "plugin", "digest")
	right(t, 3, 4, 5, 6)
	for i := range list {
		k := &list[i]
		t.AppendRow(table.Row{k.ID(), k.State, count(k.Lag), k.Partitions, count(undeliveredTotal(k)), k.Epoch, k.Plugin, shortDigest(k.Digest)})
	}
	t.Render()
	for i := range list {
		printTrouble(c.stdout, &list[i])
	}
}

// printTrouble says why a consumer does not run.
func printTrouble(w io.Writer, k *api.Consumer) {
	switch {
	case k.Halt != nil:
		h := k.Halt
		fmt.Fprintf(w, "\n%s is halted: %s", k.ID(), h.Reason)
		if h.Code != 0 {
			fmt.Fprintf(w, " (code %d)", h.Code)
		}
		fmt.Fprintf(w, "\n  %s\n", strings.ReplaceAll(printable(h.Message), "\n", "\n  "))
		if h.Position > 0 {
			fmt.Fprintf(w, "  at %s:%d, event %s %s, key %s, partition %d\n", h.Topic, h.Position, h.EventType, h.EventID, printable(h.Key), h.Partition)
		}
		name := target{k.Type, k.Name}.word()
		if h.Reason == store.HaltApplyError {
			fmt.Fprintf(w, "  what can be done about the message: projhost undelivered list %s --status HALTED\n", name)
		}
		fmt.Fprintf(w, "  when it is mended: projhost consumers resume %s\n", name)
	case k.Reason != "":
		fmt.Fprintf(w, "\n%s is %s: %s\n", k.ID(), k.State, k.Reason)
	}
	for _, some := range []struct {
		partitions []int
		what       string
	}{
		{k.Orphans, "may be applied by no host: all are at their limit, or none runs it"},
		{k.Unowned, "have no live host at the moment"},
		{k.Stuck, "do not move though messages wait"},
	} {
		if n := len(some.partitions); n > 0 {
			fmt.Fprintf(w, "\n%s of %s %s\n", plural(int64(n), "partition"), k.ID(), some.what)
		}
	}
}

func (c *cli) printPlugins(list []api.Plugin) {
	if len(list) == 0 {
		fmt.Fprintln(c.stdout, "no plugins")
		return
	}
	t := newTable(c.stdout, "plugin", "version", "abi", "consumers", "instances", "memory", "digest")
	right(t, 5, 6)
	for _, p := range list {
		t.AppendRow(table.Row{p.Name, p.Version, p.ABI, strings.Join(p.Consumers, ", "), p.Instances, bytesIEC(p.MemoryBytes), shortDigest(p.Digest)})
	}
	t.Render()
}

// shortDigest is enough of a digest to tell modules apart.
func shortDigest(d string) string {
	if hash, ok := strings.CutPrefix(d, "sha256:"); ok && len(hash) > 12 {
		return hash[:12]
	}
	return d
}

func (c *cli) consumersCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "consumers", Short: "List consumers, show how far one is, stop and resume them"}
	cmd.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the consumers with their state and lag",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			var page api.Page[api.Consumer]
			if err := cl.get(cmd.Context(), "/v1/consumers", nil, &page); err != nil {
				return fmt.Errorf("list consumers: %w", err)
			}
			if c.json {
				return c.printJSON(page)
			}
			c.printConsumers(page.Items)
			return nil
		},
	}, &cobra.Command{
		Use:   "show NAME",
		Short: "Show one consumer: projection/accounts, or accounts where that is unambiguous",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			typ, name, err := findConsumer(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			body, _, err := cl.call(cmd.Context(), "GET", path("consumers", typ, name), nil, nil)
			if err != nil {
				return fmt.Errorf("show consumer %s: %w", args[0], err)
			}
			if c.json {
				return c.printLine(body)
			}
			var k api.Consumer
			if err := cl.get(cmd.Context(), path("consumers", typ, name), nil, &k); err != nil {
				return fmt.Errorf("show consumer %s: %w", args[0], err)
			}
			c.printConsumer(&k)
			return c.printHeld(cmd.Context(), cl, &k)
		},
	}, c.pauseCommand(), c.resumeCommand(), c.rebuildCommand(), c.resetCommand(), c.dropCommand(), c.historyCommand())
	return cmd
}

// findConsumer gives type and name of a consumer that was named either way.
func findConsumer(ctx context.Context, cl *client, arg string) (typ, name string, err error) {
	if typ, name, ok := strings.Cut(arg, "/"); ok {
		return typ, name, nil
	}
	var page api.Page[api.Consumer]
	if err := cl.get(ctx, "/v1/consumers", nil, &page); err != nil {
		return "", "", fmt.Errorf("find consumer %s: %w", arg, err)
	}
	var found, all []string
	for i := range page.Items {
		all = append(all, page.Items[i].ID())
		if page.Items[i].Name == arg {
			typ = page.Items[i].Type
			found = append(found, page.Items[i].ID())
		}
	}
	switch len(found) {
	case 1:
		return typ, arg, nil
	case 0:
		if len(all) == 0 {
			return "", "", fmt.Errorf("there is no consumer %q, nor any other: configure a [[plugin]]", arg)
		}
		return "", "", fmt.Errorf("there is no consumer %q; there are %s", arg, strings.Join(all, ", "))
	}
	return "", "", usage("%q names %s: say which", arg, strings.Join(found, " and "))
}

func sameProgress(a, b api.PartitionCheckpoint) bool {
	return a.Position == b.Position && a.ReadThrough == b.ReadThrough && a.Generation == b.Generation &&
		a.Owner == b.Owner && a.Why == b.Why
}

func (c *cli) printConsumer(k *api.Consumer) {
	t := newTable(c.stdout)
	t.AppendRows([]table.Row{
		{"consumer", k.ID()}, {"state", k.State}, {"since", k.StateSince}, {"plugin", k.Plugin}, {"digest", k.Digest},
		{"distribution", k.Distribution}, {"epoch", k.Epoch}, {"build", k.Build}, {"lag", count(k.Lag)}, {"partitions", k.Partitions}, {"undelivered", undeliveredCounts(k)},
	})
	t.Render()
	printTrouble(c.stdout, k)
	c.printRebuild(k.Rebuild)
	for _, topic := range k.Topics {
		fmt.Fprintf(c.stdout, "\ntopic %s: end %d, applied %d\n", topic.Topic, topic.End, topic.Applied)
		if len(topic.Checkpoints) == 0 {
			continue
		}
		t := newTable(c.stdout, "partition", "checkpoint", "applied", "lag", "generation", "owner", "why")
		right(t, 1, 2, 3, 4, 5)
		// Neighbours that are equally far share a line.
		for first := 0; first < len(topic.Checkpoints); {
			p := topic.Checkpoints[first]
			last := first
			for last+1 < len(topic.Checkpoints) && sameProgress(p, topic.Checkpoints[last+1]) {
				last++
			}
			name := strconv.Itoa(p.Partition)
			if last > first {
				name += "-" + strconv.Itoa(topic.Checkpoints[last].Partition)
			}
			t.AppendRow(table.Row{name, p.Position, p.ReadThrough, p.Lag, p.Generation, cmp.Or(p.Owner, "nobody"), p.Why})
			first = last + 1
		}
		t.Render()
	}
	if len(k.Lanes) > 0 {
		fmt.Fprintln(c.stdout)
		t := newTable(c.stdout, "lane", "partitions", "queued", "cached rows", "batches", "messages", "last batch")
		right(t, 1, 2, 3, 4, 5, 6, 7)
		for i, l := range k.Lanes {
			t.AppendRow(table.Row{i, l.Partitions, l.QueueMessages, l.CacheRows, l.Batches, l.Messages, l.LastBatch})
		}
		t.Render()
	}
}
