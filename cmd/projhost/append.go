package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

func (c *cli) appendCommand() *cobra.Command {
	var expected string
	cmd := &cobra.Command{
		Use:   "append TYPE ID",
		Short: "Append events from standard input to one stream, all or none",
		Long: `append reads events from standard input, one JSON object a line as for import, and appends them to the
stream TYPE ID in one commit. aggregate_type and aggregate_id may be left out; where present they must match.

  echo '{"type":"Deposited","data":{"amount":"10.00"}}' | projhost append account A-1 --expected-version 3

Events with an id can be appended again: a repeat answers as the first time did.`,
		Args: exactly("TYPE", "ID"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if args[0] == "" || args[1] == "" {
				return usage("TYPE and ID must not be empty")
			}
			var version []byte
			switch n, err := strconv.ParseInt(expected, 10, 64); {
			case expected == "any" || expected == "new":
				version = []byte(`"` + expected + `"`)
			case err == nil && n >= 0:
				version = []byte(expected)
			default:
				return usage(`--expected-version is the number of events the stream has, "new" or "any", not %q`, expected)
			}
			body, err := c.appendBody(args[0], args[1], version)
			if err != nil {
				return err
			}
			cl, err := c.connectOrOpen(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cl.close()) }()
			return c.append(cmd.Context(), cl, args[0], args[1], body)
		},
	}
	cmd.Flags().StringVar(&expected, "expected-version", "any", "`version` the stream must have: a number of events, new or any")
	return cmd
}

// appendBody makes a request of the lines on standard input, payloads as they
// stand there.
func (c *cli) appendBody(typ, id string, version []byte) ([]byte, error) {
	r, err := jsonl.NewReader(c.stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	r.Max = c.lineMax()
	body := append([]byte(`{"expected_version":`), version...)
	body = append(body, `,"events":[`...)
	d := jsonl.Decoder{Stream: jsonl.StreamOptional}
	n := int64(0)
	for {
		line, err := r.Next()
		if err == io.EOF {
			break
		}
		var e store.ImportEvent
		if err == nil {
			err = d.Decode(line, &e)
		}
		if err == nil {
			err = sameStream(&e, typ, id, version, n+1)
		}
		if err != nil {
			return nil, fmt.Errorf("standard input: line %d: %w (nothing was stored)", max(r.Line(), 1), err)
		}
		if n > 0 {
			body = append(body, ',')
		}
		body = appendWithoutStream(body, line)
		n++
	}
	if n == 0 {
		return nil, errors.New("standard input holds no events: give one JSON object a line")
	}
	return append(body, `]}`...), nil
}

func sameStream(e *store.ImportEvent, typ, id string, version []byte, place int64) error {
	switch {
	case e.AggregateType != "" && e.AggregateType != typ:
		return fmt.Errorf(`member "aggregate_type" is %q, the stream's is %q`, e.AggregateType, typ)
	case e.AggregateID != "" && e.AggregateID != id:
		return fmt.Errorf(`member "aggregate_id" is %q, the stream's is %q`, e.AggregateID, id)
	case e.Sequence == 0:
		return nil
	}
	base := int64(0)
	if version[0] == '"' {
		if string(version) == `"any"` {
			return errors.New(`member "sequence" can be checked only with --expected-version`)
		}
	} else {
		base, _ = strconv.ParseInt(string(version), 10, 64)
	}
	if e.Sequence != base+place {
		return fmt.Errorf(`member "sequence" is %d, the event would get %d`, e.Sequence, base+place)
	}
	return nil
}

// appendWithoutStream copies a checked line's members but those that name the
// stream.
func appendWithoutStream(dst, line []byte) []byte {
	dst = append(dst, '{')
	first := true
	_ = rawjson.Members(line, func(name, value []byte, _ int) error {
		switch string(name) {
		case "aggregate_type", "aggregate_id", "sequence":
			return nil
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(jsonl.AppendString(dst, string(name)), ':')
		dst = append(dst, value...)
		return nil
	})
	return append(dst, '}')
}

func (c *cli) append(ctx context.Context, cl *client, typ, id string, body []byte) error {
	answer, _, err := cl.call(ctx, http.MethodPost, path("streams", typ, id), nil, body)
	if err != nil {
		return fmt.Errorf("append to %s/%s: %w", typ, id, err)
	}
	if c.json {
		return c.printLine(answer)
	}
	var version, first, last int64
	replayed := false
	err = rawjson.Members(answer, func(name, value []byte, _ int) (err error) {
		switch string(name) {
		case "version":
			version, err = rawjson.Int(value, 64)
		case "first_position":
			first, err = rawjson.Int(value, 64)
		case "last_position":
			last, err = rawjson.Int(value, 64)
		case "replayed":
			replayed = true
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	positions := fmt.Sprintf("position %d", first)
	if last > first {
		positions = fmt.Sprintf("positions %d to %d", first, last)
	}
	done := "stored"
	if replayed {
		done = "was stored before"
	}
	_, err = fmt.Fprintf(c.stdout, "%s/%s %s at %s, version %d\n", typ, id, done, positions, version)
	return err
}
