package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/store"
)

// Append tells how many events a second were appended, by the store's driver
// itself and through HTTP.
type Append struct {
	Clients int    `json:"clients"`
	Batch   int    `json:"events_per_append"`
	Driver  Spread `json:"driver_events_per_second"`
	HTTP    Spread `json:"http_events_per_second"`
	// Ratio is HTTP's speed beside the driver's, the median of the rounds.
	Ratio float64 `json:"ratio_to_driver"`
}

// appendCells are the combinations that are measured.
var appendCells = []Append{{Clients: 1, Batch: 1}, {Clients: 16, Batch: 1}, {Clients: 1, Batch: 100}, {Clients: 16, Batch: 100}}

// appendTurns is in how many parts a side appends in a round.
const appendTurns = 5

// appendTo appends events to a stream, whatever its version is.
type appendTo func(ctx context.Context, stream string, events []store.NewEvent) error

// appends measures both sides in turns on one database.
func (b *run) appends(ctx context.Context) error {
	return b.data.with(ctx, func(dsn string) (err error) {
		st, err := b.data.open(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, st.Close()) }()
		overHTTP, stop, err := serveAppends(st)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		for _, cell := range appendCells {
			var direct, through []float64
			sides := [...]struct {
				to    appendTo
				speed *[]float64
			}{{driverAppend(st), &direct}, {overHTTP, &through}}
			for round := range b.Rounds {
				b.progress(int64(round), int64(b.Rounds), fmt.Sprintf("append, %d clients, %d events", cell.Clients, cell.Batch))
				// In short turns, so that a disk that is busy for a second is so for
				// both, and neither is always first.
				var speeds [len(sides)]float64
				for turn := range appendTurns * len(sides) {
					side := (turn + turn/len(sides)) % len(sides)
					speed, err := b.appendFor(ctx, cell, b.AppendFor/appendTurns, sides[side].to)
					if err != nil {
						return fmt.Errorf("append: %w", err)
					}
					speeds[side] += speed / appendTurns
				}
				for i := range sides {
					*sides[i].speed = append(*sides[i].speed, speeds[i])
				}
			}
			cell.Driver, cell.HTTP, cell.Ratio = spread(direct), spread(through), beside(through, direct)
			b.report.Append = append(b.report.Append, cell)
		}
		return nil
	})
}

// appendFor has the clients append for a while, each to streams of its own and one
// after the other, and returns the events a second.
func (b *run) appendFor(ctx context.Context, cell Append, long time.Duration, to appendTo) (float64, error) {
	clients, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	counts := make([]int, cell.Clients)
	for client := range cell.Clients {
		clients.Go(func() error {
			events := make([]store.NewEvent, 0, cell.Batch)
			for n := 0; time.Since(start) < long; n++ {
				events = events[:0]
				for i := range cell.Batch {
					e := newEvent(&b.payloads[(n*cell.Batch+i+client*7)%len(b.payloads)])
					e.ID = store.ID(uuid.New())
					events = append(events, e)
				}
				if err := to(ctx, fmt.Sprintf("bench-%d-%d", client, n%1000), events); err != nil {
					return err
				}
				counts[client] += len(events)
			}
			return nil
		})
	}
	err := clients.Wait()
	took, events := time.Since(start), 0
	for _, n := range counts {
		events += n
	}
	return float64(events) / took.Seconds(), err
}

// samplePayloads are events to append, whose ids are replaced.
func samplePayloads(accounts int) []samples.Event {
	var list []samples.Event
	for e := range samples.Accounts(1000, accounts) {
		list = append(list, e)
	}
	return list
}

func driverAppend(st store.EventLog) appendTo {
	return func(ctx context.Context, stream string, events []store.NewEvent) error {
		_, err := st.Commit(ctx, store.Commit{Streams: []store.StreamAppend{{
			AggregateType: "account", AggregateID: stream, ExpectedVersion: store.AnyVersion, Events: events,
		}}})
		return err
	}
}

// serveAppends serves the API on a port of its own, as a host does, and
// returns a client of it.
func serveAppends(st store.Store) (appendTo, func() error, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	handler := api.New(api.Deps{Store: st, Runtime: noRuntime{}, Log: hclog.NewNullLogger(), Version: "bench"}, api.Config{}).Handler()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	stop := func() error {
		transport.CloseIdleConnections()
		err := server.Close()
		if e := <-done; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}
	client := &http.Client{Transport: transport}
	base := "http://" + listener.Addr().String() + "/v1/streams/account/"
	return func(ctx context.Context, stream string, events []store.NewEvent) error {
		return post(ctx, client, base+stream, appendBody(events))
	}, stop, nil
}

// noRuntime stands in for the running host, which appends do not ask.
type noRuntime struct{ api.Runtime }

func appendBody(events []store.NewEvent) []byte {
	b := append(make([]byte, 0, 512*len(events)), `{"expected_version":"any","events":[`...)
	for i := range events {
		e := &events[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"id":"`...), e.ID.String()...)
		b = append(append(b, `","type":"`...), e.Type...)
		b = append(append(b, `","occurred_at":"`...), time.UnixMicro(e.OccurredUS).UTC().Format(time.RFC3339Nano)...)
		b = append(append(b, `","metadata":`...), e.Metadata...)
		b = append(append(append(b, `,"data":`...), e.Data...), '}')
	}
	return append(b, `]}`...)
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusCreated {
		err = fmt.Errorf("POST %s: %s: %s", url, res.Status, answer)
	}
	return err
}
