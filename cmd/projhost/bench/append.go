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
// itself and through HTTP. The HTTP client is in this process: what it takes of the
// processors is in HTTP's figures.
type Append struct {
	Clients int    `json:"clients"`
	Batch   int    `json:"events_per_append"`
	Driver  Spread `json:"driver_events_per_second"`
	HTTP    Spread `json:"http_events_per_second"`
	// Ratio is HTTP's speed beside the driver's, the median of the rounds.
	Ratio float64 `json:"ratio_to_driver"`
	// Processors' time of this process for an event. ClientCPUMicros is the part of
	// HTTP's that its client takes with the connection: with a server that reads
	// and answers as much and does nothing else.
	DriverCPUMicros float64 `json:"driver_cpu_us_per_event,omitempty"`
	HTTPCPUMicros   float64 `json:"http_cpu_us_per_event,omitempty"`
	ClientCPUMicros float64 `json:"client_cpu_us_per_event,omitempty"`
}

// appendCells are the combinations that are measured.
var appendCells = []Append{{Clients: 1, Batch: 1}, {Clients: 16, Batch: 1}, {Clients: 1, Batch: 100}, {Clients: 16, Batch: 100}}

// appendTurns is in how many parts a side appends in a round. The client alone
// needs no disk, and a short part does.
const (
	appendTurns = 5
	clientPart  = 4
)

// appendTo appends events to a stream, whatever its version is.
type appendTo func(ctx context.Context, stream string, events []store.NewEvent) error

// appendSide is a way to append.
type appendSide struct {
	client func() appendTo // for the use of one goroutine
	long   time.Duration   // of a turn

	speeds, cpu []float64 // by round
}

// appends measures the sides in turns on one database.
func (b *run) appends(ctx context.Context) error {
	return b.data.with(ctx, func(dsn string) (err error) {
		st, err := b.data.open(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, st.Close()) }()
		overHTTP, stop, err := serveAppends(api.New(api.Deps{Store: st, Runtime: noRuntime{}, Log: hclog.NewNullLogger(), Version: "bench"}, api.Config{}).Handler())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		toNobody, stopNobody, err := serveAppends(http.HandlerFunc(readAndAnswer))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stopNobody()) }()
		turn := b.AppendFor / appendTurns
		for _, cell := range appendCells {
			sides := [...]appendSide{
				{client: driverAppend(st), long: turn},
				{client: overHTTP, long: turn},
				{client: toNobody, long: turn / clientPart},
			}
			for round := range b.Rounds {
				b.progress(int64(round), int64(b.Rounds), fmt.Sprintf("append, %d clients, %d events", cell.Clients, cell.Batch))
				if err := b.appendRound(ctx, cell, sides[:]); err != nil {
					return fmt.Errorf("append: %w", err)
				}
			}
			driver, through, client := &sides[0], &sides[1], &sides[2]
			cell.Driver, cell.HTTP, cell.Ratio = spread(driver.speeds), spread(through.speeds), beside(through.speeds, driver.speeds)
			cell.DriverCPUMicros, cell.HTTPCPUMicros, cell.ClientCPUMicros = median(driver.cpu), median(through.cpu), median(client.cpu)
			b.report.Append = append(b.report.Append, cell)
		}
		return nil
	})
}

// appendRound has the sides append in short turns, so that a disk that is busy for
// a second is so for all, and none is always first.
func (b *run) appendRound(ctx context.Context, cell Append, sides []appendSide) error {
	speeds, cpu, events := make([]float64, len(sides)), make([]time.Duration, len(sides)), make([]int, len(sides))
	for turn := range appendTurns {
		for i := range sides {
			i = (i + turn) % len(sides)
			start, used := time.Now(), cpuTime()
			n, err := b.appendFor(ctx, cell, sides[i].long, sides[i].client)
			if err != nil {
				return err
			}
			speeds[i] += float64(n) / time.Since(start).Seconds() / appendTurns
			cpu[i] += cpuTime() - used
			events[i] += n
		}
	}
	for i := range sides {
		sides[i].speeds = append(sides[i].speeds, speeds[i])
		sides[i].cpu = append(sides[i].cpu, float64(cpu[i].Nanoseconds())/1e3/float64(events[i]))
	}
	return nil
}

// appendFor has the clients append for a while, each to streams of its own and one
// after the other, and returns the number of events.
func (b *run) appendFor(ctx context.Context, cell Append, long time.Duration, newClient func() appendTo) (int, error) {
	clients, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	counts := make([]int, cell.Clients)
	for client := range cell.Clients {
		clients.Go(func() error {
			to := newClient()
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
	events := 0
	for _, n := range counts {
		events += n
	}
	return events, err
}

// samplePayloads are events to append, whose ids are replaced.
func samplePayloads(accounts int) []samples.Event {
	var list []samples.Event
	for e := range samples.Accounts(1000, accounts) {
		list = append(list, e)
	}
	return list
}

func driverAppend(st store.EventLog) func() appendTo {
	return func() appendTo {
		return func(ctx context.Context, stream string, events []store.NewEvent) error {
			_, err := st.Commit(ctx, store.Commit{Streams: []store.StreamAppend{{
				AggregateType: "account", AggregateID: stream, ExpectedVersion: store.AnyVersion, Events: events,
			}}})
			return err
		}
	}
}

// serveAppends serves a handler on a port of its own, as a host does, and
// returns how to make clients of it.
func serveAppends(handler http.Handler) (func() appendTo, func() error, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	// A request goes out in one piece: the client's system calls are not the
	// server's, but they are in the figures.
	transport := &http.Transport{MaxIdleConnsPerHost: 64, WriteBufferSize: 64 << 10}
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
	return func() appendTo {
		var body []byte // is read when the answer is there
		return func(ctx context.Context, stream string, events []store.NewEvent) error {
			body = appendBody(body[:0], events)
			return post(ctx, client, base+stream, body)
		}
	}, stop, nil
}

// readAndAnswer answers an append with about as much as a host does: the ids are a
// tenth of what was sent.
func readAndAnswer(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return // the client's to tell
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(bytes.Repeat([]byte{' '}, int(n/10)))
}

// noRuntime stands in for the running host, which appends do not ask.
type noRuntime struct{ api.Runtime }

func appendBody(b []byte, events []store.NewEvent) []byte {
	b = append(b, `{"expected_version":"any","events":[`...)
	for i := range events {
		e := &events[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = e.ID.Append(append(b, `{"id":"`...))
		b = append(append(b, `","type":"`...), e.Type...)
		b = append(b, `","occurred_at":"`...)
		b = time.UnixMicro(e.OccurredUS).UTC().AppendFormat(b, time.RFC3339Nano)
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
