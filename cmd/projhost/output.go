package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

func utcNow() time.Time { return time.Now().UTC() }

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// plain is a table without lines: easy to read, and to cut with awk.
var plain = func() table.Style {
	s := table.StyleDefault
	s.Name = "plain"
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft, s.Box.PaddingRight = "", "  "
	s.Format.Header = text.FormatUpper
	return s
}()

func newTable(w io.Writer, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(plain)
	t.SuppressTrailingSpaces()
	if len(header) > 0 {
		t.AppendHeader(header)
	}
	return t
}

// right aligns the columns of numbers, counted from 1.
func right(t table.Writer, columns ...int) {
	configs := make([]table.ColumnConfig, len(columns))
	for i, n := range columns {
		configs[i] = table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight}
	}
	t.SetColumnConfigs(configs)
}

// printJSON writes v on one line.
func (c *cli) printJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.printLine(b)
}

func (c *cli) printLine(b []byte) error {
	_, err := fmt.Fprintf(c.stdout, "%s\n", b)
	return err
}

func count(n int64) string { return humanize.Comma(n) }

// plural is "1 event", "2 events".
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

// perSecond is a rate for people.
func perSecond(n int64, d time.Duration) string {
	if d <= 0 {
		return "0/s"
	}
	return count(int64(float64(n)/d.Seconds())) + "/s"
}

func round(d time.Duration) time.Duration {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond)
	case d < time.Minute:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// progress is a bar on a terminal and nothing elsewhere. bytes: the unit. It
// shows no rate of events: the bar's is of its last few steps, which says
// nothing, and every command ends with the right one.
func (c *cli) progress(total int64, what string, bytes bool) *progressbar.ProgressBar {
	if !isTerminal(c.stderr) || c.json {
		return progressbar.DefaultSilent(total)
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(c.stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(24),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}
