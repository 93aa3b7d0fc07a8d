package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
)

// A pacer asks for few large items and for many small ones, and never for more
// than is left.
func TestPacer(t *testing.T) {
	for _, size := range []int{0, 1, 300, 60_000, 5 << 20} {
		for _, limit := range []int{1, 15, 16, 17, 100, 1000} {
			p, steps, most := pacer{left: limit}, 0, 0
			for n := p.step(); n > 0; n = p.step() {
				require.LessOrEqual(t, n, p.left)
				most = max(most, n*size)
				p.took(n, n*size)
				steps++
			}
			require.LessOrEqual(t, steps, 5, "size %d, limit %d", size, limit)
			require.True(t, p.count == limit || p.bytes >= pageBytes, "size %d, limit %d: %d", size, limit, p.count)
			require.LessOrEqual(t, most, max(firstStep*size, pageBytes+size), "size %d, limit %d", size, limit)
		}
	}
}

// Pages of large items end early, and following them gives every item once.
func TestPagesEndByTheirBytes(t *testing.T) {
	p := newThings(t)
	doc := func(n int) []byte { return fmt.Appendf(nil, `"%d%s"`, n, strings.Repeat("x", 100_000)) }
	var rows, parts []readmodel.Write
	var events []string
	for n := range 100 {
		key := fmt.Sprintf("big-%03d", n)
		rows = append(rows, p.row(0, key, "", 9, map[string]abi.Value{"doc": {Tag: abi.TagJSON, B: doc(n)}}))
		parts = append(parts, p.row(1, "big-000", key, 10, map[string]abi.Value{"count": number(int64(n))}))
		events = append(events, fmt.Sprintf(`{"type":"T","data":"%d%s"}`, n, strings.Repeat("x", 60_000)))
	}
	p.apply(0, 8, 9, rows...)
	p.apply(1, 9, 10, parts...)
	require.Equal(t, 201, p.do("POST", "/v1/streams/a/1", `{"expected_version":0,"events":[`+strings.Join(events, ",")+`]}`).status)

	follow := func(path, after string) (pages, items int) {
		t.Helper()
		for next := ""; ; pages++ {
			a := p.do("GET", path+next, "")
			require.Equal(t, 200, a.status, a.body)
			require.Less(t, len(a.body), pageBytes+(1<<20))
			var page struct {
				Items []json.RawMessage
				Next  json.RawMessage
			}
			require.NoError(t, json.Unmarshal([]byte(a.body), &page))
			items += len(page.Items)
			if string(page.Next) == "null" {
				return pages + 1, items
			}
			next = after + strings.Trim(string(page.Next), `"`)
		}
	}
	pages, items := follow("/v1/read-models/things?limit=1000", "&after=")
	require.Equal(t, 103, items)
	require.Equal(t, 3, pages)
	pages, items = follow("/v1/streams/a/1?limit=1000", "&from=")
	require.Equal(t, 100, items)
	require.Equal(t, 2, pages)
	pages, items = follow("/v1/read-models/things/big-000?table=parts&limit=33", "&after=")
	require.Equal(t, 100, items)
	require.Equal(t, 4, pages)
}

// serving is a server on a real listener.
func serving(t *testing.T, p *projection, cfg Config) (s *Server, address string) {
	t.Helper()
	s = New(Deps{Store: p.store, Runtime: p.runtime, Log: testLog(t)}, cfg)
	s.budgetWait = 50 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s, l.Addr().String()
}

// send opens a connection and sends the beginning of a request.
func send(t *testing.T, address, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte(text))
	require.NoError(t, err)
	return c
}

// Clients that announce large bodies and do not send them hold nobody up; those
// that do send them share the room there is.
func TestSlowBodiesHoldNobodyUp(t *testing.T) {
	p := newThings(t)
	s, address := serving(t, p, Config{MaxBody: 1 << 20, BodyBudget: 1 << 20, ShutdownTimeout: time.Millisecond})
	head := "POST /v1/streams/a/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
	for i := range 20 {
		send(t, address, fmt.Sprintf(head, fmt.Sprint(i)))
		send(t, address, fmt.Sprintf(head, fmt.Sprint(i))+strings.Repeat(" ", smallBytes/2))
	}
	r := &rig{t: t, url: "http://" + address}
	large := `{"expected_version":0,"events":[{"type":"T","data":1}]` + strings.Repeat(" ", 900_000) + `}`
	require.Equal(t, 201, r.do("POST", "/v1/streams/b/1", large).status)

	// One that has sent enough to be given the room, and then no more.
	send(t, address, fmt.Sprintf(head, "slow")+strings.Repeat(" ", 2*smallBytes))
	require.Eventually(t, func() bool {
		if s.bodies.TryAcquire(1 << 20) {
			s.bodies.Release(1 << 20)
			return false
		}
		return true
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, 201, r.do("POST", "/v1/streams/b/2", `{"expected_version":0,"events":[{"type":"T","data":1}]}`).status)
	a := r.do("POST", "/v1/streams/b/3", large)
	a.want(t, 503, CodeOverloaded, "too many large bodies at one time")
	require.Equal(t, "1", a.header.Get("Retry-After"))
}

// Clients that do not read their large answers hold a bounded amount of memory;
// small answers are given all the same, and large ones when there is room again.
func TestSlowReadersAreBounded(t *testing.T) {
	p := newThings(t)
	var rows []readmodel.Write
	for n := range 50 {
		rows = append(rows, p.row(0, fmt.Sprintf("big-%02d", n), "", 9, map[string]abi.Value{"doc": {Tag: abi.TagJSON, B: fmt.Appendf(nil, `"%s"`, strings.Repeat("x", 100_000))}}))
	}
	p.apply(0, 8, 9, rows...)
	_, address := serving(t, p, Config{ShutdownTimeout: time.Millisecond})
	answered, refused := 0, 0
	var slow []net.Conn
	for range 40 {
		c := send(t, address, "GET /v1/read-models/things?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
		slow = append(slow, c)
	}
	for _, c := range slow {
		line := make([]byte, 12)
		_, err := c.Read(line)
		require.NoError(t, err)
		switch string(line[9:]) {
		case "200":
			answered++
		case "503":
			refused++
		}
	}
	require.Equal(t, 40, answered+refused)
	require.Positive(t, refused)
	require.LessOrEqual(t, answered, answerBudget/pageBytes)
	r := &rig{t: t, url: "http://" + address}
	require.Equal(t, 200, r.do("GET", "/v1/read-models/things/a", "").status)
	r.do("GET", "/v1/read-models/things?limit=1000", "").want(t, 503, CodeOverloaded, "too many large answers")
	for _, c := range slow {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { return r.do("GET", "/v1/read-models/things?limit=1000", "").status == http.StatusOK }, 10*time.Second, 5*time.Millisecond)
}
