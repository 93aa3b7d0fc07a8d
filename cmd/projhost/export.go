package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// messagePage is how many messages are asked for at a time.
const messagePage = 2000

func (c *cli) exportCommand() *cobra.Command {
	var after, limit int64
	var zip, sequence bool
	var output string
	cmd := &cobra.Command{
		Use:   "export TOPIC",
		Short: "Write a topic's events as JSON Lines, as import reads them",
		Long: `export writes the events of a topic to standard output, one JSON object a line, in the format that import
reads. Data and metadata are written byte for byte as they are stored.`,
		Args: exactly("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if after < 0 || limit < 0 {
				return usage("--after and --limit must not be negative")
			}
			cl, err := c.connectOrRead(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cl.close()) }()
			dst := c.stdout
			if output != "" {
				f, err := os.Create(output)
				if err != nil {
					return fmt.Errorf("--output: %w", err)
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				dst = f
			}
			return c.export(cmd.Context(), cl, dst, args[0], after, limit, zip || strings.HasSuffix(output, ".gz"), sequence)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&after, "after", 0, "begin after this `position`")
	f.Int64Var(&limit, "limit", 0, "at most `n` events; 0: all")
	f.BoolVar(&zip, "gzip", false, "compress the output (a file that ends in .gz always is)")
	f.BoolVar(&sequence, "with-sequence", false, "write each event's place in its stream, which import then checks")
	f.StringVarP(&output, "output", "o", "", "write to `file` instead of standard output")
	return cmd
}

func (c *cli) export(ctx context.Context, cl *client, dst io.Writer, topic string, after, limit int64, zip, sequence bool) error {
	w := bufio.NewWriterSize(dst, 256<<10)
	out := io.Writer(w)
	var zw *gzip.Writer
	if zip {
		zw = gzip.NewWriter(w)
		out = zw
	}
	waiting, err := settle(ctx, cl, topic)
	if err != nil {
		return fmt.Errorf("export %s: %w", topic, err)
	}
	var line []byte
	_, err = eachMessage(ctx, cl, topic, after, limit, func(e *store.Event, _ []byte) error {
		line = jsonl.AppendLine(line[:0], e, sequence)
		_, err := out.Write(line)
		return err
	})
	if err == nil && zw != nil {
		err = zw.Close()
	}
	// What was read is written even if more could not be.
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	if err == nil && limit == 0 {
		err = waiting
	}
	if err != nil {
		return fmt.Errorf("export %s: %w", topic, err)
	}
	return nil
}

// markPatience is how long an export waits for events that are on their way to
// be read: a moment, unless somebody keeps a transaction open.
var markPatience = 10 * time.Second

// settle waits until what was appended to a topic before the call can be read,
// so that an export is whole. waiting says what is missing if it cannot be.
func settle(ctx context.Context, cl *client, topic string) (waiting, err error) {
	end := int64(-1)
	for until := time.Now().Add(markPatience); ; {
		var t api.Topic
		if err := cl.get(ctx, path("topics", topic), nil, &t); err != nil {
			return nil, err
		}
		if end < 0 {
			end = t.End
		}
		if t.HighWaterMark >= end {
			return nil, nil
		}
		if time.Now().After(until) {
			text := markText(&t)
			if text == "" {
				text = fmt.Sprintf("the mark stands at position %d", t.HighWaterMark)
			}
			return fmt.Errorf("what follows may be missing up to position %d: %s", end, text), nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(readyPoll):
		}
	}
}

// eachMessage calls each for the messages after a position, at most limit of
// them (0: all there are), and returns the last one's position. raw is the
// message as the API gave it.
func eachMessage(ctx context.Context, cl *client, topic string, after, limit int64, each func(e *store.Event, raw []byte) error) (int64, error) {
	var d jsonl.Decoder
	for n := int64(0); limit == 0 || n < limit; {
		page := int64(messagePage)
		if limit > 0 {
			page = min(page, limit-n)
		}
		body, _, err := cl.call(ctx, http.MethodGet, path("topics", topic, "messages"),
			url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.FormatInt(page, 10)}}, nil)
		if err != nil {
			return after, err
		}
		more := false
		err = rawjson.Members(body, func(name, value []byte, _ int) error {
			switch string(name) {
			case "next":
				more = !rawjson.IsNull(value)
			case "items":
				return rawjson.Elements(value, func(raw []byte, _ int) error {
					var e store.Event
					if err := d.DecodeMessage(raw, &e); err != nil {
						return fmt.Errorf("decode a message: %w", err)
					}
					after = e.Position
					n++
					return each(&e, raw)
				})
			}
			return nil
		})
		if err != nil || !more {
			return after, err
		}
	}
	return after, nil
}
