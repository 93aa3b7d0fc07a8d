package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// followPoll is how often a followed topic is looked at.
const followPoll = 250 * time.Millisecond

func (c *cli) topicsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topics", Short: "List topics, show their messages"}
	cmd.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the topics with their ends and high-water marks",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cl, err := c.connectOrRead(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cl.close()) }()
			var page api.Page[api.Topic]
			if err := cl.get(cmd.Context(), "/v1/topics", nil, &page); err != nil {
				return fmt.Errorf("list topics: %w", err)
			}
			if c.json {
				return c.printJSON(page)
			}
			c.printTopics(page.Items)
			return nil
		},
	})
	cmd.AddCommand(c.tailCommand())
	return cmd
}

func (c *cli) printTopics(topics []api.Topic) {
	t := newTable(c.stdout, "topic", "kind", "start", "end", "high-water mark", "lag", "messages")
	right(t, 3, 4, 5, 6, 7)
	for _, topic := range topics {
		messages := "-"
		if topic.Messages != nil {
			messages = count(*topic.Messages)
		}
		t.AppendRow(table.Row{topic.Name, topic.Kind, topic.Start, topic.End, topic.HighWaterMark, count(topic.Lag), messages})
	}
	t.Render()
	for i := range topics {
		printMark(c.stdout, &topics[i])
	}
}

// printMark says what keeps events from being read.
func printMark(w io.Writer, topic *api.Topic) {
	if text := markText(topic); text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
}

// markText is "" where nothing does.
func markText(topic *api.Topic) string {
	h := topic.Holder
	switch {
	case topic.Reason != "":
		return fmt.Sprintf("%s: what follows position %d cannot be read yet: %s", topic.Name, topic.HighWaterMark, topic.Reason)
	case h == nil:
		return ""
	}
	who := fmt.Sprintf("the session with process id %d", h.PID)
	if h.Prepared != "" {
		who = fmt.Sprintf("the prepared transaction %q", h.Prepared)
	}
	if h.Application != "" {
		who += fmt.Sprintf(" (%s)", h.Application)
	}
	if h.State != "" {
		who += ", " + h.State + ","
	}
	age := round(time.Duration(h.AgeSeconds * float64(time.Second)))
	return fmt.Sprintf("%s: what follows position %d waits for the open transaction of %s since %s (%s)", topic.Name, topic.HighWaterMark, who, h.Since, age)
}

func (c *cli) tailCommand() *cobra.Command {
	var after, last int64
	var follow bool
	cmd := &cobra.Command{
		Use:   "tail TOPIC",
		Short: "Show the last messages of a topic, with --follow also those to come",
		Args:  exactly("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if last < 0 || after < 0 {
				return usage("--last and --after must not be negative")
			}
			if cmd.Flags().Changed("after") && cmd.Flags().Changed("last") {
				return usage("--after and --last contradict each other: give one")
			}
			cl, err := c.connectOrRead(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cl.close()) }()
			if follow && cl.local {
				return errors.New("--follow needs a running host: nothing is appended while this process holds the store")
			}
			if !cmd.Flags().Changed("after") {
				var topic api.Topic
				if err := cl.get(cmd.Context(), path("topics", args[0]), nil, &topic); err != nil {
					return fmt.Errorf("tail %s: %w", args[0], err)
				}
				after = max(0, topic.HighWaterMark-last)
			}
			return c.tail(cmd.Context(), cl, args[0], after, follow)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on as messages are appended, until interrupted")
	f.Int64VarP(&last, "last", "n", 10, "begin with the last `n` positions")
	f.Int64Var(&after, "after", 0, "begin after this `position`")
	return cmd
}

func (c *cli) tail(ctx context.Context, cl *client, topic string, after int64, follow bool) error {
	for {
		last, err := eachMessage(ctx, cl, topic, after, 0, func(e *store.Event, raw []byte) error {
			if c.json {
				return c.printLine(oneLine(raw))
			}
			data := fmt.Sprintf("(%d bytes of %s)", len(e.Data), e.Codec)
			if e.Codec == store.DefaultCodec {
				data = tableCell(string(e.Data))
			}
			_, err := fmt.Fprintf(c.stdout, "%d  %s  %s/%s#%d  %s  %s\n", e.Position, jsonl.FormatTime(e.OccurredUS), e.AggregateType, e.AggregateID, e.Sequence, e.Type, data)
			return err
		})
		if follow && ctx.Err() != nil {
			return nil // an interrupt is how following ends
		}
		if err != nil {
			return fmt.Errorf("tail %s: %w", topic, err)
		}
		if !follow {
			return nil
		}
		after = last
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPoll):
		}
	}
}
