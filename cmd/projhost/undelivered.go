package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/store"
)

func (c *cli) undeliveredCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undelivered",
		Short: "List, show, retry and delete messages that could not be applied",
		Long: `A message that a plugin cannot apply holds its key: later messages of the key wait behind it, all other keys go
on. It is kept with a copy until it is applied, or until somebody deletes it, which passes it over.

  FAILED           is tried again at its time
  WAITING          has an earlier message of its key before it
  HALTED           has used up its tries and halted its consumer
  DEAD_LETTER_KEY  has used up its tries, or is behind one that has: its key stands still
  DEAD_LETTER      has used up its tries and holds nothing`,
	}
	cmd.AddCommand(c.undeliveredList(), c.undeliveredShow(), c.undeliveredDecide(retrying), c.undeliveredDecide(deleting))
	return cmd
}

// selectFlags name messages of a consumer.
type selectFlags struct {
	key, eventType, status, topic string
	all                           bool
}

func (s *selectFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.key, "key", "", "messages of this `key`")
	f.StringVar(&s.eventType, "type", "", "messages of this event `type`")
	f.StringVar(&s.status, "status", "", "messages in this `state`: "+strings.Join(api.UndeliveredStatuses(), ", "))
	f.StringVar(&s.topic, "topic", "", "messages of this `topic`")
	completeNames(cmd, "status", api.UndeliveredStatuses())
}

// members are those of the selection as the API takes them. A flag that is given
// and empty would not narrow anything.
func (s *selectFlags) members(cmd *cobra.Command) (map[string]any, error) {
	out := map[string]any{}
	for _, m := range []struct{ flag, member, value string }{
		{"key", "key", s.key}, {"type", "event_type", s.eventType}, {"topic", "topic", s.topic}, {"status", "status", strings.ToUpper(s.status)},
	} {
		if !cmd.Flags().Changed(m.flag) {
			continue
		}
		if m.value == "" {
			return nil, usage("--%s is empty", m.flag)
		}
		out[m.member] = m.value
	}
	if status, ok := out["status"]; ok && !slices.Contains(api.UndeliveredStatuses(), status.(string)) {
		return nil, usage("--status is one of %s, not %q", strings.Join(api.UndeliveredStatuses(), ", "), s.status)
	}
	if s.all {
		out["all"] = true
	}
	return out, nil
}

func (c *cli) undeliveredList() *cobra.Command {
	var sel selectFlags
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use:   "list [NAME]",
		Short: "List the messages of a consumer that could not be applied, or those of all",
		Long: `list shows the messages that could not be applied, in the order they were recorded: of one consumer, or of all.

  projhost undelivered list
  projhost undelivered list accounts --status FAILED
  projhost undelivered list accounts --key A-1 --json`,
		Args: atMost("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 || after < 0 {
				return usage("--limit must be at least 1, and --after not negative")
			}
			if len(args) == 0 && after > 0 {
				return usage("--after goes on with one consumer: name it")
			}
			members, err := sel.members(cmd)
			if err != nil {
				return err
			}
			query := url.Values{}
			for name, v := range members {
				query.Set(name, v.(string))
			}
			cl, targets, err := c.targets(cmd.Context(), args)
			if err != nil {
				return err
			}
			all := api.Page[api.Undelivered]{Items: []api.Undelivered{}}
			for i, t := range targets {
				if limit == len(all.Items) {
					fmt.Fprintf(c.stderr, "more may follow: name one of the other consumers, such as %s\n", targets[i])
					break
				}
				page, err := pages[api.Undelivered](cmd.Context(), cl, t.path("undelivered"), query, after, limit-len(all.Items))
				if err != nil {
					return fmt.Errorf("list undelivered messages of %s: %w", t, err)
				}
				all.Items = append(all.Items, page.Items...)
				if len(args) > 0 {
					all.Next = page.Next
				} else if page.Next != nil {
					fmt.Fprintf(c.stderr, "more follow: projhost undelivered list %s --after %s\n", t.word(), *page.Next)
				}
			}
			if c.json {
				return c.printJSON(all)
			}
			if len(all.Items) == 0 {
				return c.printLine([]byte("no undelivered messages"))
			}
			printUndelivered(c.stdout, all.Items, len(args) == 0)
			c.tellMore(all.Next)
			return nil
		},
	}
	sel.add(cmd)
	cmd.Flags().Int64Var(&after, "after", 0, "begin after the message of this `id`")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most `n` messages")
	return cmd
}

// targets is the consumer named, or all.
func (c *cli) targets(ctx context.Context, args []string) (*client, []target, error) {
	if len(args) > 0 {
		cl, t, err := c.target(ctx, args[0])
		return cl, []target{t}, err
	}
	cl, err := c.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := allTargets(ctx, cl)
	return cl, all, err
}

func allTargets(ctx context.Context, cl *client) (all []target, err error) {
	var page api.Page[api.Consumer]
	if err := cl.get(ctx, "/v1/consumers", nil, &page); err != nil {
		return nil, fmt.Errorf("list consumers: %w", err)
	}
	for i := range page.Items {
		all = append(all, target{page.Items[i].Type, page.Items[i].Name})
	}
	return all, nil
}

func printUndelivered(w io.Writer, list []api.Undelivered, consumers bool) {
	header := []any{"id", "status", "at", "key", "event", "tries", "next retry", "reason"}
	if consumers {
		header = slices.Insert(header, 1, any("consumer"))
	}
	t := newTable(w, header...)
	right(t, 1, len(header)-2)
	for i := range list {
		m := &list[i]
		row := table.Row{m.ID, m.Status, fmt.Sprintf("%s:%d", m.Topic, m.Position), tableCell(printable(keyWord(m))), tableCell(m.EventType),
			m.Attempts + m.Passing, nextRetry(m), tableCell(printable(m.Reason))}
		if consumers {
			row = slices.Insert(row, 1, any(m.Consumer))
		}
		t.AppendRow(row)
	}
	t.Render()
}

func keyWord(m *api.Undelivered) string {
	switch {
	case m.Unresolved:
		return "(cannot be told)"
	case m.Key == "":
		return "(none)"
	}
	return m.Key
}

// nextRetry is when a message is tried again by itself.
func nextRetry(m *api.Undelivered) string {
	if m.NextRetryAt == nil {
		return "-"
	}
	return *m.NextRetryAt
}

// printable takes out of a text what would steer a terminal: keys are users', and
// reasons a guest's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

func (c *cli) undeliveredShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME] ID",
		Short: "Show one message in full, with its copy and what can be done",
		Long: `show tells of a message that could not be applied why, how often it was tried, when it is tried next, what waits
behind it, and what can be done; and it shows the copy of the event.

  projhost undelivered show 42
  projhost undelivered show accounts 42 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return exactly("NAME", "ID")(cmd, args)
			}
			return exactly("ID")(cmd, args[:min(len(args), 1)])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			row, err := rowID(args[len(args)-1])
			if err != nil {
				return err
			}
			_, t, body, err := c.findMessage(cmd.Context(), args[:len(args)-1], row)
			if err != nil {
				return err
			}
			if c.json {
				return c.printLine(body)
			}
			var m struct {
				api.Undelivered
				Event json.RawMessage `json:"event"`
			}
			if err := json.Unmarshal(body, &m); err != nil {
				return fmt.Errorf("show undelivered message %d: decode the answer: %w", row, err)
			}
			c.printMessage(t, &m.Undelivered, m.Event)
			return nil
		},
	}
}

func rowID(s string) (int64, error) {
	row, err := strconv.ParseInt(s, 10, 64)
	if err != nil || row < 1 {
		return 0, usage("%q is not the id of an undelivered message: see projhost undelivered list", s)
	}
	return row, nil
}

// findMessage gets a message of the consumer named, or of whichever has it.
func (c *cli) findMessage(ctx context.Context, name []string, row int64) (*client, target, []byte, error) {
	cl, targets, err := c.targets(ctx, name)
	if err != nil {
		return nil, target{}, nil, err
	}
	for _, t := range targets {
		body, _, err := cl.call(ctx, http.MethodGet, t.path("undelivered", strconv.FormatInt(row, 10)), nil, nil)
		if e, ok := errors.AsType[*answerError](err); ok && e.Code == api.CodeNotFound && len(name) == 0 {
			continue
		}
		if err != nil {
			return nil, t, nil, fmt.Errorf("undelivered message %d: %w", row, err)
		}
		return cl, t, body, nil
	}
	return nil, target{}, nil, fmt.Errorf("no consumer has an undelivered message %d: it was applied or deleted", row)
}

func (c *cli) printMessage(t target, m *api.Undelivered, event json.RawMessage) {
	tbl := newTable(c.stdout)
	tbl.AppendRows([]table.Row{
		{"message", m.ID}, {"consumer", m.Consumer}, {"status", m.Status}, {"key", printable(keyWord(m))}, {"at", fmt.Sprintf("%s:%d, partition %d", m.Topic, m.Position, m.Partition)},
		{"event", fmt.Sprintf("%s %s of %s", m.EventType, m.EventID, printable(m.AggregateType+"/"+m.AggregateID))},
		{"recorded", m.RecordedAt}, {"changed", m.ChangedAt},
	})
	if m.Code != 0 {
		class := fmt.Sprintf("%s (code %d)", m.Class, m.Code)
		if m.Class == "" {
			class = fmt.Sprintf("code %d", m.Code)
		}
		tbl.AppendRows([]table.Row{{"class", class}, {"module", m.Digest}})
	}
	tries := strconv.Itoa(m.Attempts)
	if m.Passing > 0 {
		tries += fmt.Sprintf(", and %d not counted: they may pass", m.Passing)
	}
	tbl.AppendRows([]table.Row{{"tries", tries}, {"next retry", nextRetry(m)}})
	if m.Behind != nil && *m.Behind > 0 {
		n := count(*m.Behind)
		if *m.Behind >= api.BehindMax {
			n += " or more"
		}
		tbl.AppendRow(table.Row{"behind it", n})
	}
	tbl.Render()
	if m.Reason != "" {
		fmt.Fprintf(c.stdout, "\nreason:\n  %s\n", strings.ReplaceAll(strings.TrimRight(printable(m.Reason), "\n"), "\n", "\n  "))
	}
	if len(event) > 0 {
		fmt.Fprintf(c.stdout, "\ncopy:\n  %s\n", printable(string(oneLine(event))))
	}
	fmt.Fprintln(c.stdout, "\nnext:")
	for _, step := range nextSteps(t, m) {
		fmt.Fprintf(c.stdout, "  %s\n", step)
	}
}

// nextSteps says what can be done about a message.
func nextSteps(t target, m *api.Undelivered) []string {
	command := func(what string) string { return fmt.Sprintf("projhost undelivered %s %s %d", what, t.word(), m.ID) }
	pass := "to pass it over for good: " + command("delete")
	if m.Head != 0 && m.Head != m.ID {
		return []string{
			fmt.Sprintf("it waits behind message %d: projhost undelivered show %s %d", m.Head, t.word(), m.Head),
			pass,
		}
	}
	switch store.UndeliveredStatus(m.Status) {
	case store.StatusHalted:
		return []string{
			"mend the plugin, then try it again: projhost consumers resume " + t.word(),
			fmt.Sprintf("to pass it over for good: projhost consumers resume %s --past-poison %d", t.word(), m.ID),
		}
	case store.StatusDeadLetter:
		return []string{
			"later messages of its key may have been applied; to try it all the same: " + command("retry") + " --out-of-order",
			pass,
		}
	case store.StatusWaiting:
		return []string{"its turn comes by itself", pass}
	}
	return []string{"to try it now, with a fresh budget: " + command("retry"), pass}
}

// A deciding is what undelivered retry and delete differ in.
type deciding struct {
	verb, short, long string
	done, would       string // of n messages
}

var (
	retrying = deciding{
		verb: "retry", short: "Try messages again now, with a fresh budget",
		long: `retry makes messages due at once, with a fresh budget; the owner of their partition tries them. Only the first
message of a key can be: the rest follows by itself. A DEAD_LETTER may have been overtaken by later messages of its
key: it is tried again only with --out-of-order, and the history keeps that.

  projhost undelivered retry 42
  projhost undelivered retry accounts --key A-1
  projhost undelivered retry accounts --status DEAD_LETTER --out-of-order --dry-run
  projhost undelivered retry accounts --all`,
		done: "are tried again", would: "would be tried again",
	}
	deleting = deciding{
		verb: "delete", short: "Pass messages over for good",
		long: `delete removes messages and passes them over for their keys, for good: what waits behind them goes on. The
consumer's history keeps that.

  projhost undelivered delete 42
  projhost undelivered delete accounts --key A-1 --dry-run
  projhost undelivered delete accounts --type withdrawn --all`,
		done: "are deleted and passed over", would: "would be deleted and passed over",
	}
)

func (c *cli) undeliveredDecide(d deciding) *cobra.Command {
	var sel selectFlags
	var dryRun, outOfOrder bool
	cmd := &cobra.Command{
		Use:   d.verb + " [NAME] [ID]",
		Short: d.short,
		Long:  d.long,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return exactly("NAME", "ID")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			members, err := sel.members(cmd)
			if err != nil {
				return err
			}
			name, row, err := namedMessage(cmd, args, len(members) > 0)
			if err != nil {
				return err
			}
			query := url.Values{}
			if dryRun {
				query.Set("dry_run", "1")
			}
			if outOfOrder {
				query.Set("out_of_order", "1")
			}
			var cl *client
			var t target
			if row != 0 && len(name) == 0 {
				cl, t, _, err = c.findMessage(cmd.Context(), nil, row)
			} else {
				cl, t, err = c.target(cmd.Context(), name[0])
			}
			if err != nil {
				return err
			}
			var body []byte
			id := strconv.FormatInt(row, 10)
			switch {
			case row == 0:
				body, err = cl.act(cmd.Context(), http.MethodPost, t.path("undelivered", d.verb), query, members)
			case d.verb == "retry":
				body, err = cl.act(cmd.Context(), http.MethodPost, t.path("undelivered", id, "retry"), query, nil)
			default:
				body, err = cl.act(cmd.Context(), http.MethodDelete, t.path("undelivered", id), query, nil)
			}
			if err != nil {
				return acted(d.verb+" undelivered messages of "+t.String(), err)
			}
			return c.tellDecision(d, t, body)
		},
	}
	sel.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&sel.all, "all", false, "all messages of the consumer (that match the other flags)")
	f.BoolVar(&dryRun, "dry-run", false, "tell what would be done, and do nothing")
	if d.verb == "retry" {
		f.BoolVar(&outOfOrder, "out-of-order", false, "also messages that later ones of their key may have overtaken")
	}
	return cmd
}

// namedMessage takes apart what names messages: an id, or a consumer with a
// selection. A lone number is an id, unless there is a selection.
func namedMessage(cmd *cobra.Command, args []string, selection bool) (name []string, row int64, err error) {
	switch {
	case len(args) == 2 && selection:
		return nil, 0, usage("ID %s names one message: leave the flags that select out", args[1])
	case len(args) == 2:
		row, err = rowID(args[1])
		return args[:1], row, err
	case len(args) == 1 && selection:
		return args, 0, nil
	case len(args) == 1:
		if row, err = rowID(args[0]); err != nil {
			return nil, 0, usage("which messages of %s: give an ID, --key, --type, --status, --topic or --all; see: %s --help", args[0], cmd.CommandPath())
		}
		return nil, row, nil
	case selection:
		return nil, 0, usage("%s needs the NAME of a consumer; see: %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return nil, 0, usage("%s needs an ID, or a NAME with --key, --type, --status, --topic or --all; see: %s --help", cmd.CommandPath(), cmd.CommandPath())
}

func (c *cli) tellDecision(d deciding, t target, body []byte) error {
	var decision api.Decision
	if err := json.Unmarshal(body, &decision); err != nil {
		return fmt.Errorf("%s undelivered messages of %s: decode the answer: %w", d.verb, t, err)
	}
	nothing := error(nil)
	if decision.Count == 0 && decision.Refused > 0 && !decision.DryRun {
		nothing = fmt.Errorf("%s undelivered messages of %s: none was: each is refused", d.verb, t)
	}
	if c.json {
		return errors.Join(c.printLine(body), nothing)
	}
	what := d.done
	if decision.DryRun {
		what = d.would
	}
	if decision.Count+decision.Refused == 0 {
		return c.printLine([]byte("no undelivered message of " + t.String() + " matches"))
	}
	// What was done needs no list; what would be, and what was not, does.
	rows := slices.DeleteFunc(slices.Clone(decision.Rows), func(r api.DecidedRow) bool { return r.Refused == "" && !decision.DryRun })
	if len(rows) > 0 {
		tbl := newTable(c.stdout, "id", "was", "at", "key", "event", "refused")
		right(tbl, 1)
		for _, r := range rows {
			tbl.AppendRow(table.Row{r.ID, r.Was, fmt.Sprintf("%s:%d", r.Topic, r.Position), tableCell(printable(r.Key)), tableCell(r.EventType), printable(r.Refused)})
		}
		tbl.Render()
		if left := decision.Count + decision.Refused - int64(len(decision.Rows)); left > 0 {
			fmt.Fprintf(c.stdout, "and %s more\n", count(left))
		}
		fmt.Fprintln(c.stdout)
	}
	line := plural(decision.Count, "message") + " of " + t.String() + " " + what
	if decision.Count == 1 {
		line = strings.Replace(line, " are ", " is ", 1)
	}
	if decision.Refused > 0 {
		line += fmt.Sprintf(", %s refused", count(decision.Refused))
	}
	return errors.Join(c.printLine([]byte(line)), nothing)
}

// heldMax bounds how many held keys are shown with a consumer.
const heldMax = 5

// printHeld shows the first messages that hold their keys, and what to do next.
func (c *cli) printHeld(ctx context.Context, cl *client, k *api.Consumer) error {
	t := target{k.Type, k.Name}
	var held []api.Undelivered
	for _, status := range api.UndeliveredStatuses() {
		if k.Undelivered[status] == 0 || status == string(store.StatusWaiting) {
			continue
		}
		// Behind the first of a dead key are others with its status.
		page, err := pages[api.Undelivered](ctx, cl, t.path("undelivered"), url.Values{"status": {status}}, 0, 10*heldMax)
		if err != nil {
			return fmt.Errorf("undelivered messages of %s: %w", t, err)
		}
		for _, m := range page.Items {
			if m.Code != 0 && len(held) < heldMax {
				held = append(held, m)
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	fmt.Fprintln(c.stdout, "\nmessages that could not be applied:")
	printUndelivered(c.stdout, held, false)
	fmt.Fprintf(c.stdout, "what can be done about one: projhost undelivered show %s %d\nall of them: projhost undelivered list %s\n", t.word(), held[0].ID, t.word())
	return nil
}

// undeliveredCounts are the counts that are not 0, the most urgent first.
func undeliveredCounts(k *api.Consumer) string {
	var parts []string
	for _, status := range api.UndeliveredStatuses() {
		if n := k.Undelivered[status]; n > 0 {
			parts = append(parts, count(n)+" "+status)
		}
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}

func undeliveredTotal(k *api.Consumer) (n int64) {
	for _, some := range k.Undelivered {
		n += some
	}
	return n
}
