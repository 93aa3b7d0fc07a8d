package dbtest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// Direction is a side of a connection.
type Direction int

const (
	ToServer Direction = iota
	ToClient
)

// Proxy stands between clients and a database server and cuts their
// connections: on command, or at a given message or byte. It knows where
// messages begin, so that a test can cut at every one of them in turn: what was
// passed on before is whole, and nothing follows.
type Proxy struct {
	// DSN is the database of the DSN it was made for, through the proxy.
	DSN string

	t        testing.TB
	target   string
	listener net.Listener
	framing  framing
	wg       sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool
	closed bool
	refuse bool
	cuts   int
	// Armed: what is left until the cut. Bytes and messages count together
	// for all connections from the time they are armed.
	messages, bytes [2]int64 // 0: not armed
	holds           [2]int64
	held            chan struct{}
}

type link struct{ client, server net.Conn }

// NewProxy starts a proxy before the server of a DSN that Postgres, MySQL,
// NewPostgres or NewMariaDB gave. It ends with the test.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, listener: l, links: map[*link]bool{}}
	if err := p.point(dsn, l.Addr().(*net.TCPAddr).Port); err != nil {
		l.Close()
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// point reads where the server of dsn is and makes the proxy's own DSN.
func (p *Proxy) point(dsn string, port int) error {
	here := fmt.Sprint("127.0.0.1:", port)
	if strings.HasPrefix(dsn, "postgres") {
		c, err := pgx.ParseConfig(dsn)
		if err != nil {
			return err
		}
		u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: here,
			Path: "/" + c.Database, RawQuery: "sslmode=disable"} // messages must be legible
		p.DSN, p.target, p.framing = u.String(), net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), postgresFraming
		return nil
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	if c.Net != "tcp" {
		return fmt.Errorf("the proxy needs a DSN with tcp(host:port)")
	}
	p.target, p.framing = c.Addr, mysqlFraming
	c.Addr = here
	p.DSN = c.FormatDSN()
	return nil
}

// Cut ends all connections now. New ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

// Refuse ends all connections and, until it is told otherwise, each new one at
// once, as a server does that is down.
func (p *Proxy) Refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse = yes; yes {
		p.cut()
	}
}

// CutAt ends all connections instead of passing on the n-th message, from 1,
// that any of them sends in a direction from now on. A message is one of the
// protocol: Parse, Bind, Execute, Sync on PostgreSQL, a packet on MySQL. It
// happens once; Cuts tells whether it has.
func (p *Proxy) CutAt(d Direction, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages[d] = int64(n)
}

// CutAfter ends all connections when n more bytes have been passed on in a
// direction, in the middle of a message or not.
func (p *Proxy) CutAfter(d Direction, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes[d] = int64(n)
}

// Disarm forgets a CutAt, CutAfter or HoldAt that has not happened yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages, p.bytes, p.holds = [2]int64{}, [2]int64{}, [2]int64{}
}

// Cuts is how often connections were cut at a message or byte.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Hold keeps back everything in both directions, without ending a connection,
// as a network does that loses packets. Release passes it on.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold()
}

func (p *Proxy) hold() {
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// HoldAt is a Hold that begins with the n-th message, from 1, that any connection
// sends in a direction from now on. Held tells whether it has begun.
func (p *Proxy) HoldAt(d Direction, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds[d] = int64(n)
}

// Held tells whether everything is kept back.
func (p *Proxy) Held() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held != nil
}

// Release ends a Hold.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

func (p *Proxy) release() {
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

func (p *Proxy) cut() {
	for l := range p.links {
		l.client.Close()
		l.server.Close()
	}
	clear(p.links)
}

func (p *Proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.cut()
	p.release()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client, server}
	p.mu.Lock()
	if p.closed || p.refuse {
		p.mu.Unlock()
		client.Close()
		server.Close()
		return
	}
	p.links[l] = true
	p.wg.Go(func() { p.pass(l, ToServer, client, server) })
	p.wg.Go(func() { p.pass(l, ToClient, server, client) })
	p.mu.Unlock()
}

// pass copies one direction message by message. A message that does not fit
// the buffer is passed on in pieces.
func (p *Proxy) pass(l *link, d Direction, from, to net.Conn) {
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
		l.client.Close()
		l.server.Close()
	}()
	f := frames{framing: p.framing, untyped: d == ToServer}
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		for rest := buf[:n]; len(rest) > 0; {
			piece, begins := f.next(rest)
			if !p.forward(d, to, piece, begins) {
				return
			}
			rest = rest[len(piece):]
		}
		if err != nil {
			return
		}
	}
}

// forward passes a piece of a message on, or cuts.
func (p *Proxy) forward(d Direction, to io.Writer, piece []byte, begins bool) bool {
	p.mu.Lock()
	if begins && p.holds[d] > 0 {
		if p.holds[d]--; p.holds[d] == 0 {
			p.hold()
		}
	}
	for held := p.held; held != nil; held = p.held {
		p.mu.Unlock()
		<-held
		p.mu.Lock()
	}
	cut := false
	if begins && p.messages[d] > 0 {
		p.messages[d]--
		if cut = p.messages[d] == 0; cut {
			piece = nil
		}
	}
	if p.bytes[d] > 0 && !cut {
		if cut = int64(len(piece)) >= p.bytes[d]; cut {
			piece = piece[:p.bytes[d]]
		}
		p.bytes[d] -= int64(len(piece))
	}
	if !cut {
		p.mu.Unlock()
		_, err := to.Write(piece)
		return err == nil
	}
	defer p.mu.Unlock()
	p.cuts++
	to.Write(piece)
	p.cut()
	return false
}

// framing says how long a message is of which header is the beginning, and how
// long a header is.
type framing struct {
	header int
	length func(header []byte) int
	// untyped is the header of the first message of a client, where it differs.
	untyped       int
	untypedLength func(header []byte) int
}

var postgresFraming = framing{
	header: 5, length: func(h []byte) int { return 1 + int(binary.BigEndian.Uint32(h[1:])) },
	untyped: 4, untypedLength: func(h []byte) int { return int(binary.BigEndian.Uint32(h)) },
}

var mysqlFraming = framing{
	header: 4, length: func(h []byte) int { return 4 + int(h[0]) + int(h[1])<<8 + int(h[2])<<16 },
	untyped: 4, untypedLength: func(h []byte) int { return 4 + int(h[0]) + int(h[1])<<8 + int(h[2])<<16 },
}

// frames finds the messages in a stream that comes in pieces of any size.
type frames struct {
	framing
	untyped bool // the next message is the client's first
	head    []byte
	left    int // bytes of the message that are still to come, its header known
}

// next splits off the first piece of b that belongs to one message.
func (f *frames) next(b []byte) (piece []byte, begins bool) {
	if f.left > 0 {
		n := min(f.left, len(b))
		f.left -= n
		return b[:n], false
	}
	size, length := f.header, f.length
	if f.untyped {
		size, length = f.framing.untyped, f.untypedLength
	}
	begins = len(f.head) == 0
	n := min(size-len(f.head), len(b))
	f.head = append(f.head, b[:n]...)
	if len(f.head) < size {
		return b[:n], begins
	}
	f.left = max(length(f.head)-size, 0)
	f.head, f.untyped = f.head[:0], false
	more := min(f.left, len(b)-n)
	f.left -= more
	return b[:n+more], begins
}
