package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/rawjson"
)

// osUser is who runs the command, for the history of what it acts on; "" if that
// is not known.
func osUser() string {
	name := cmp.Or(os.Getenv("USER"), os.Getenv("USERNAME"))
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	runes := []rune(name)
	for i, c := range runes {
		if !api.ActorRune(c) {
			runes[i] = '_'
		}
	}
	if name = string(runes[:min(len(runes), 64)]); !api.PlainActor(name) {
		return ""
	}
	return name
}

// act sends an action on a consumer and gives its answer.
func (c *client) act(ctx context.Context, method, path string, query url.Values, body any) ([]byte, error) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	answer, _, err := c.call(ctx, method, path, query, b)
	return answer, err
}

// acted puts what was done before an error; the host's own say it themselves.
func acted(what string, err error) error {
	if _, ok := errors.AsType[*answerError](err); ok {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// target is a consumer that a command was given.
type target struct{ typ, name string }

func (t target) String() string { return t.typ + "/" + t.name }

// word names it on a command line.
func (t target) word() string { return shellWord(t.String()) }

func (t target) path(parts ...string) string {
	return path(append([]string{"consumers", t.typ, t.name}, parts...)...)
}

func (c *cli) target(ctx context.Context, arg string) (*client, target, error) {
	cl, err := c.connect(ctx)
	if err != nil {
		return nil, target{}, err
	}
	typ, name, err := findConsumer(ctx, cl, arg)
	return cl, target{typ, name}, err
}

// confirm asks for a name to be typed before something that cannot be undone.
func (c *cli) confirm(what, word string, yes bool) error {
	if yes {
		return nil
	}
	fmt.Fprintf(c.stderr, "%s\nType %s to go on: ", what, word)
	line, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.TrimSpace(line) {
	case word:
		return nil
	case "":
		fmt.Fprintln(c.stderr)
		return usage("nobody answers: say --yes where that is meant")
	}
	return errors.New("not done: that was another name")
}

func (c *cli) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause NAME",
		Short: "Stop applying messages to a consumer, on all hosts, until it is resumed",
		Long: `pause stops a consumer on all hosts: what is under way is dropped, nothing is lost, and messages wait in their
topics. While it is paused its rows may be mended by SQL.

  projhost consumers pause accounts`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			body, err := cl.act(cmd.Context(), http.MethodPost, t.path("pause"), nil, nil)
			if err != nil {
				return acted("pause "+t.String(), err)
			}
			if c.json {
				return c.printLine(body)
			}
			return c.printLine([]byte(t.String() + " is paused; to let it go on: projhost consumers resume " + t.word()))
		},
	}
}

func (c *cli) resumeCommand() *cobra.Command {
	var pastPoison int64
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Let a paused or halted consumer go on",
		Long: `resume lets a paused or halted consumer go on. What halted it is tried again; with --past-poison that message
is passed over for its key instead, for good. It is named by its id, so that no other one is passed over by
mistake: projhost undelivered list NAME --status HALTED shows it.

  projhost consumers resume accounts
  projhost consumers resume accounts --past-poison 42`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			past := cmd.Flags().Changed("past-poison")
			if past && pastPoison < 1 {
				return usage("--past-poison is the id of an undelivered message, not %d", pastPoison)
			}
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			request := map[string]int64{}
			if past {
				request["past_poison"] = pastPoison
			}
			body, err := cl.act(cmd.Context(), http.MethodPost, t.path("resume"), nil, request)
			if err != nil {
				return acted("resume "+t.String(), err)
			}
			if c.json {
				return c.printLine(body)
			}
			if past {
				fmt.Fprintf(c.stdout, "undelivered message %d is passed over\n", pastPoison)
			}
			return c.printLine([]byte(t.String() + " goes on"))
		},
	}
	cmd.Flags().Int64Var(&pastPoison, "past-poison", 0, "pass over the undelivered message of this `id`, which halted the consumer")
	return cmd
}

func (c *cli) resetCommand() *cobra.Command {
	var from, topic string
	var yes bool
	cmd := &cobra.Command{
		Use:   "reset NAME",
		Short: "Pass over everything up to a position of a topic",
		Long: `reset has a consumer go on behind a position of a topic, or behind its end. What lies before and is not applied
yet never will be, and the history of the consumer says so. It only goes forward: going back is a rebuild.

  projhost consumers reset accounts --from now
  projhost consumers reset accounts --from 120000 --topic events --yes`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := map[string]any{"from": from}
			if from == "" {
				return usage(`--from is missing: a position, behind which to go on, or "now"`)
			}
			if from != "now" {
				position, err := strconv.ParseInt(from, 10, 64)
				if err != nil || position < 0 {
					return usage(`--from is a position, behind which to go on, or "now", not %q`, from)
				}
				request["from"] = position
			}
			if topic != "" {
				request["topic"] = topic
			}
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			behind := "its end"
			if from != "now" {
				behind = "position " + from
			}
			if err := c.confirm(fmt.Sprintf("%s will go on behind %s of its topic; what lies before and is not applied never will be.", t, behind), t.String(), yes); err != nil {
				return err
			}
			body, err := cl.act(cmd.Context(), http.MethodPost, t.path("reset"), nil, request)
			if err != nil {
				return acted("reset "+t.String(), err)
			}
			if c.json {
				return c.printLine(body)
			}
			var done api.Acted
			if err := json.Unmarshal(body, &done); err != nil || done.Position == nil {
				return fmt.Errorf("reset %s: decode the answer: %v", t, err)
			}
			_, err = fmt.Fprintf(c.stdout, "%s goes on behind position %d of %s\n", t, *done.Position, done.Topic)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "go on behind this `position`, or behind the end: now")
	f.StringVar(&topic, "topic", "", "of this `topic`, where the consumer reads several")
	f.BoolVar(&yes, "yes", false, "do not ask")
	completeNames(cmd, "from", []string{"now"})
	return cmd
}

func (c *cli) dropCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "drop NAME",
		Short: "Remove a consumer for good, with its read models",
		Long: `drop removes a consumer for good: its tables and views, its progress and its undelivered messages. Only its
history is kept. No host may run it: take the plugin out of the configuration first.

  projhost consumers drop accounts`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(fmt.Sprintf("%s will be removed for good, with its tables and all rows in them.", t), t.String(), yes); err != nil {
				return err
			}
			body, err := cl.act(cmd.Context(), http.MethodDelete, t.path(), nil, nil)
			if err != nil {
				return acted("drop "+t.String(), err)
			}
			if c.json {
				return c.printLine(body)
			}
			return c.printLine([]byte(t.String() + " is dropped"))
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (c *cli) historyCommand() *cobra.Command {
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show what was done to a consumer, by whom and when",
		Long: `history shows what was done to a consumer and what its rows cannot tell: revisions of its module, halts,
messages that were passed over, and the actions of operators. It is kept for good; that of a dropped consumer is
found by its full name.

  projhost consumers history accounts
  projhost consumers history projection/accounts --after 120 --json`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || after < 0 {
				return usage("--limit must be at least 1, and --after not negative")
			}
			cl, t, err := c.target(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			page, err := pages[api.HistoryEntry](cmd.Context(), cl, t.path("history"), url.Values{}, after, limit)
			if err != nil {
				return fmt.Errorf("history of %s: %w", t, err)
			}
			if c.json {
				return c.printJSON(page)
			}
			c.printHistory(page.Items)
			c.tellMore(page.Next)
			return nil
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "begin after the entry of this `id`")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most `n` entries")
	return cmd
}

// pages reads as many pages of a list that goes by ids as it takes.
func pages[T any](ctx context.Context, cl *client, path string, query url.Values, after int64, limit int) (all api.Page[T], err error) {
	all.Items = []T{}
	for cursor := strconv.FormatInt(after, 10); ; {
		var page api.Page[T]
		query.Set("after", cursor)
		query.Set("limit", strconv.Itoa(min(limit-len(all.Items), rowsPage)))
		if err := cl.get(ctx, path, query, &page); err != nil {
			return all, err
		}
		all.Items = append(all.Items, page.Items...)
		if all.Next = page.Next; page.Next == nil || len(all.Items) >= limit {
			return all, nil
		}
		cursor = *page.Next
	}
}

func (c *cli) tellMore(next *string) {
	if next != nil {
		fmt.Fprintf(c.stderr, "more follow: --after %s\n", *next)
	}
}

func (c *cli) printHistory(list []api.HistoryEntry) {
	if len(list) == 0 {
		fmt.Fprintln(c.stdout, "nothing was done to it")
		return
	}
	t := newTable(c.stdout, "id", "at", "action", "by", "what")
	right(t, 1)
	for i := range list {
		e := &list[i]
		var what []string
		if e.Topic != "" {
			what = append(what, fmt.Sprintf("%s:%d", e.Topic, e.Position))
		}
		if e.Key != "" {
			what = append(what, "key "+e.Key)
		}
		if detail := detailOf(e.Detail); detail != "" {
			what = append(what, detail)
		}
		t.AppendRow(table.Row{e.ID, e.At, e.Action, printable(e.Actor), strings.ReplaceAll(printable(strings.Join(what, ", ")), "\n", " ")})
	}
	t.Render()
}

// placeMembers of a detail tell what an entry tells in its own columns.
var placeMembers = []string{"topic", "position", "partition", "key", "at_us"}

// detailMax is where a detail is cut: --json has all of it.
const detailMax = 160

// detailOf is the detail of an entry in a line, without what has parts itself.
func detailOf(detail json.RawMessage) string {
	var parts []string
	err := rawjson.Members(detail, func(name, value []byte, _ int) error {
		if kind := rawjson.Kind(value); kind != "an object" && !slices.Contains(placeMembers, string(name)) {
			parts = append(parts, string(name)+" "+shortDigest(cell(value)))
		}
		return nil
	})
	if err != nil { // it is no object
		return cell(detail)
	}
	s := strings.Join(parts, ", ")
	if r := []rune(s); len(r) > detailMax {
		s = string(r[:detailMax-1]) + "…"
	}
	return s
}
