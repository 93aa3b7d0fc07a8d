package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Idle tells what a host asks of its database that has nothing to do.
type Idle struct {
	Partitions int     `json:"partitions"`
	Seconds    float64 `json:"seconds"`
	// PerSecond are the statements a second, all connections together.
	PerSecond float64 `json:"statements_per_second"`
}

// settleIdle is how long a host that has caught up still has things to finish.
const settleIdle = 2 * time.Second

// idle runs a host until it has caught up and counts its statements while
// nothing happens. They are counted on the wire, so that nobody else's are
// among them.
func (b *run) idle(ctx context.Context) error {
	counted, ok := b.data.engine.(counter)
	if !ok {
		b.report.NotRun = append(b.report.NotRun, "idle: an embedded database is asked nothing over a connection")
		return nil
	}
	p, err := b.loader.load(ctx, sources[0], 0)
	if err != nil {
		b.report.NotRun = append(b.report.NotRun, "idle: "+firstLine(err))
		return nil
	}
	b.progress(0, 1, "idle")
	return b.data.with(ctx, func(dsn string) (err error) {
		line, err := listenCounting(counted)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, line.close()) }()
		r, err := startHost(ctx, b.data, counted.through(dsn, line.listener.Addr().String()), p, func() {})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		if err := r.applied(ctx, b.data.last()); err != nil {
			return err
		}
		if err := pause(ctx, settleIdle); err != nil {
			return err
		}
		perSecond, err := line.count(ctx, b.IdleFor)
		if err != nil {
			return err
		}
		b.report.Idle = &Idle{Partitions: b.data.info.Partitions, Seconds: b.IdleFor.Seconds(), PerSecond: perSecond}
		return nil
	})
}

// count gives the statements a second of a while.
func (l *countingLine) count(ctx context.Context, while time.Duration) (perSecond float64, err error) {
	before, start := l.statements.Load(), time.Now()
	if err := pause(ctx, while); err != nil {
		return 0, err
	}
	return float64(l.statements.Load()-before) / time.Since(start).Seconds(), nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// counter is an engine whose statements can be seen on their way.
type counter interface {
	// address is where the server listens.
	address() (network, address string)
	// through is a connection string, by way of another address and unencrypted.
	through(dsn, address string) string
	// watch reads what a client sends and counts its statements until the
	// connection ends.
	watch(r io.Reader, statements *atomic.Int64) error
}

// countingLine passes connections on to a server.
type countingLine struct {
	counter
	listener    net.Listener
	statements  atomic.Int64
	connections atomic.Int64 // that there are now
	lines       sync.WaitGroup
}

func listenCounting(c counter) (*countingLine, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &countingLine{counter: c, listener: listener}
	l.lines.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			l.lines.Go(func() { l.pass(client) })
		}
	})
	return l, nil
}

// pass carries one connection until either side ends it.
func (l *countingLine) pass(client net.Conn) {
	defer client.Close()
	l.connections.Add(1)
	defer l.connections.Add(-1)
	network, address := l.address()
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	seen, copied := io.Pipe()
	l.lines.Go(func() {
		// What is not understood is passed on all the same.
		_ = l.watch(seen, &l.statements)
		_, _ = io.Copy(io.Discard, seen)
	})
	l.lines.Go(func() {
		_, _ = io.Copy(server, io.TeeReader(client, copied))
		_ = copied.Close()
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
}

// close waits for the connections, whose clients have ended.
func (l *countingLine) close() error {
	err := l.listener.Close()
	l.lines.Wait()
	return err
}

// watch counts the messages Execute and Query of PostgreSQL's protocol. The
// first message of a connection has no type.
func (d *postgresEngine) watch(r io.Reader, statements *atomic.Int64) error {
	var head [5]byte
	for first := true; ; first = false {
		h := head[:]
		if first {
			h = head[1:]
		}
		if _, err := io.ReadFull(r, h); err != nil {
			return err
		}
		if !first && (head[0] == 'E' || head[0] == 'Q') {
			statements.Add(1)
		}
		size := int64(binary.BigEndian.Uint32(head[1:])) - 4
		if size < 0 {
			return fmt.Errorf("message of %d bytes", size)
		}
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return err
		}
	}
}

// watch counts the commands of MySQL's protocol: packets that begin a sequence.
func (d *mysqlEngine) watch(r io.Reader, statements *atomic.Int64) error {
	var head [4]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		if head[3] == 0 {
			statements.Add(1)
		}
		size := int64(head[0]) | int64(head[1])<<8 | int64(head[2])<<16
		if _, err := io.CopyN(io.Discard, r, size); err != nil {
			return err
		}
	}
}
