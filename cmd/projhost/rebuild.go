package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/store"
)

func (c *cli) rebuildCommand() *cobra.Command {
	var mode string
	var watch, yes bool
	cmd := &cobra.Command{
		Use:   "rebuild NAME",
		Short: "Make a consumer's rows anew from history",
		Long: `rebuild applies a consumer's messages once more from the beginning, with the module that runs now. In place, the
rows are made anew in the tables they are in: readers have the old row of a key until the new one is there, and
messages that come meanwhile are applied when all is done. Rows that history does not make again are removed at the
end. It goes on over restarts, pauses and halts; asked for again it begins anew. A paused consumer is resumed first.

  projhost consumers rebuild accounts --mode in-place --watch
  projhost consumers rebuild projection/accounts --mode in-place --yes`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if mode != store.RebuildInPlace {
				return usage("%v", &store.UnknownModeError{Mode: mode})
			}
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(fmt.Sprintf("The rows of %s will be made anew in the tables they are in: until that is done readers see old and new ones side by side, "+
				"and nothing that comes is applied.", t), t.String(), yes); err != nil {
				return err
			}
			body, err := cl.act(cmd.Context(), http.MethodPost, t.path("rebuild"), nil, map[string]string{"mode": mode})
			switch {
			case err != nil:
				return acted("rebuild "+t.String(), err)
			case watch:
				return c.watchRebuild(cmd.Context(), cl, t)
			case c.json:
				return c.printLine(body)
			}
			return c.printLine([]byte(t.String() + " is being rebuilt; to see how far it is: projhost consumers show " + t.word()))
		},
	}
	f := cmd.Flags()
	f.StringVar(&mode, "mode", store.RebuildShadow, "`how`: in-place")
	f.BoolVarP(&watch, "watch", "w", false, "show the progress until it is rebuilt")
	f.BoolVar(&yes, "yes", false, "do not ask")
	completeNames(cmd, "mode", []string{store.RebuildInPlace})
	return cmd
}

// watchRebuild waits for the end of a rebuild, and fails if it cannot go on by
// itself. Interrupted, it leaves the rebuild alone.
func (c *cli) watchRebuild(ctx context.Context, cl *client, t target) error {
	bar := c.progress(-1, "rebuild", false)
	for {
		var k api.Consumer
		if err := cl.get(ctx, t.path(), nil, &k); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the rebuild of %s: %w", t, err)
		}
		if r := k.Rebuild; r != nil {
			bar.ChangeMax64(max(1, r.Total))
			_ = bar.Set64(min(r.Done, r.Total)) // what cannot be drawn is not
		}
		switch {
		case k.Halt != nil:
			_ = bar.Exit()
			printTrouble(c.stderr, &k)
			return errors.New("the rebuild waits: " + t.String() + " is halted")
		case k.State == string(store.StatePaused):
			_ = bar.Exit()
			return errors.New("the rebuild waits: " + t.String() + " is paused")
		case k.Rebuild == nil:
			_ = bar.Finish()
			if c.json {
				return c.printJSON(k)
			}
			return c.printLine([]byte(t.String() + " is rebuilt"))
		}
		select {
		case <-ctx.Done():
			_ = bar.Exit()
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// printRebuild tells how far a rebuild is.
func (c *cli) printRebuild(r *api.Rebuild) {
	if r == nil {
		return
	}
	fmt.Fprintf(c.stdout, "\nrebuild %s: %d of %d positions, %d left", r.Mode, r.Done, r.Total, r.Remaining)
	if r.Rate > 0 {
		fmt.Fprintf(c.stdout, " at %.0f a second", r.Rate)
	}
	fmt.Fprintf(c.stdout, "; %d of %s done\n", r.Pruned, plural(int64(r.Partitions), "partition"))
	if r.HistoryMissing {
		fmt.Fprintln(c.stdout, "  history is missing: rows that are not made again are kept")
	}
}
