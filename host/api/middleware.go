package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// Roles of tokens.
const (
	roleNone    = ""
	roleRead    = "read"
	roleAppend  = "append"
	roleOperate = "operate"
	roleAdmin   = "admin"
)

// Roles are all there are.
var Roles = []string{roleRead, roleAppend, roleOperate, roleAdmin}

const (
	// A client may take bodyTimeout to send a body, and a second more for each
	// bodyPerSecond bytes that a body may have.
	bodyTimeout   = 30 * time.Second
	bodyPerSecond = 128 << 10
	// answerTimeout bounds how long a client may take to read an answer.
	answerTimeout = time.Minute
	// Bodies and answers up to smallBytes are not counted against the budgets
	// of large ones: InFlight bounds them well enough, and nobody who sends or
	// reads a large one slowly holds them up.
	smallBytes = 64 << 10
	// answerBudget bounds the large answers that wait for slow readers.
	answerBudget = 64 << 20
	// budgetWait is how long a large body waits for its share of the budget.
	budgetWait = 10 * time.Second
)

type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) handle(pattern, role string, h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		name, err := s.authorize(w, r, role)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if name != "" {
			r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, name))
		}
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// fail answers with an error and logs what the client is not told.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := asAPI(err)
	if e.cause != nil && r.Context().Err() == nil {
		log := s.requestLog(r)
		if e.code == CodeInternal {
			log.Error("request failed", "error", e.cause)
		} else {
			log.Warn("request failed", "error", e.cause)
		}
	}
	writeError(w, e)
}

func (s *Server) requestLog(r *http.Request) hclog.Logger {
	return s.deps.Log.With("request_id", requestID(r.Context()), "method", r.Method, "route", r.Pattern)
}

// authorize checks the bearer token's role and gives the token's name, "" where
// none is needed. All tokens are compared, each in
// constant time, so the time says nothing of how near a guess was.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request, role string) (string, error) {
	if role == roleNone || len(s.cfg.Tokens) == 0 {
		return "", nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	var found *Token
	for i := range s.cfg.Tokens {
		if subtle.ConstantTimeCompare(sum[:], s.cfg.Tokens[i].SHA256[:]) == 1 {
			found = &s.cfg.Tokens[i]
		}
	}
	if !strings.EqualFold(scheme, "Bearer") || found == nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return "", fail(http.StatusUnauthorized, CodeUnauthorized, "a valid token is needed: Authorization: Bearer …")
	}
	if !slices.Contains(found.Roles, role) {
		return "", fail(http.StatusForbidden, CodeForbidden, "token %q lacks the role %q", found.Name, role).with("role", role)
	}
	return found.Name, nil
}

type (
	contextKey struct{} // of the request's id
	tokenKey   struct{} // of the token's name
)

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

// Handler is the whole API with everything around it.
func (s *Server) Handler() http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !plainID(id) {
			id = rand.Text()
		}
		r = r.WithContext(context.WithValue(r.Context(), contextKey{}, id))
		rec := &recorder{ResponseWriter: w, controller: http.NewResponseController(w), budget: s.answers}
		defer rec.release()
		h := rec.Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Server", "projhost")
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.requestLog(r).Error("panic in a request", "panic", p, "stack", string(debug.Stack()))
				if rec.status == 0 {
					writeError(rec, fail(http.StatusInternalServerError, CodeInternal, "internal error; the host's log has it under the request's id"))
				}
			}
			s.finish(r, rec, time.Since(start))
		}()
		if !probed(r) {
			if !s.inFlight.TryAcquire(1) {
				writeError(rec, fail(http.StatusServiceUnavailable, CodeOverloaded, "too many requests at one time: try again"))
				return
			}
			defer s.inFlight.Release(1)
		}
		if err := s.sameSite(crossOrigin, r); err != nil {
			writeError(rec, asAPI(err))
			return
		}
		s.serve(rec, r)
	})
}

// probed tells the calls by which others judge whether the host lives. They are
// not counted: many readers that wait for their writes must not make it look
// dead, or it is restarted under them.
func probed(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"
}

// sameSite refuses what only a web page in somebody's browser would send. On a
// loopback listener without tokens the browser's user is whoever is trusted.
func (s *Server) sameSite(crossOrigin *http.CrossOriginProtection, r *http.Request) error {
	if err := crossOrigin.Check(r); err != nil {
		return fail(http.StatusForbidden, CodeForbidden, "a web page of another site may not make this call")
	}
	if len(s.cfg.Tokens) > 0 {
		return nil
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	return fail(http.StatusForbidden, CodeForbidden, "without tokens the host is reached by localhost or an IP address, not as %q: configure [[http.tokens]]", host)
}

// serve finds the route; what the mux answers by itself gets our envelope.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r) // again, for the values of the path
		return
	}
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", probe.header.Get("Allow"))
		writeError(w, fail(http.StatusMethodNotAllowed, CodeMethodNotAllowed, "%s is not possible here, only %s", r.Method, probe.header.Get("Allow")))
		return
	}
	writeError(w, fail(http.StatusNotFound, CodeNotFound, "there is nothing at %s", r.URL.Path))
}

func (s *Server) finish(r *http.Request, rec *recorder, took time.Duration) {
	route := r.Pattern
	if route == "" {
		route = "none"
	}
	s.metrics.requests.WithLabelValues(route, strconv.Itoa(rec.status)).Inc()
	s.metrics.seconds.WithLabelValues(route).Observe(took.Seconds())
	if s.deps.Log.IsDebug() {
		// The path holds keys of users: the route stands for it.
		s.requestLog(r).Debug("request", "status", rec.status, "bytes", rec.bytes, "took", took, "remote", r.RemoteAddr)
	}
}

// readBody reads a body within the limits of size and time. The returned
// function gives its share of the memory for bodies back.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, nil, fail(http.StatusUnsupportedMediaType, CodeUnsupportedMedia, "Content-Encoding %q is not understood: send the body as it is", e)
	}
	tooLarge := fail(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body is larger than max_body, %d bytes", s.cfg.MaxBody).with("max_body", s.cfg.MaxBody)
	if r.ContentLength > s.cfg.MaxBody {
		return nil, nil, tooLarge
	}
	size := r.ContentLength
	if size < 0 {
		size = s.cfg.MaxBody
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout + time.Duration(s.cfg.MaxBody/bodyPerSecond)*time.Second))
	src := http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
	buf := make([]byte, 0, min(size, smallBytes)+512)
	release = func() {}
	counted := false
	for {
		if len(buf) == cap(buf) {
			if !counted {
				// What a client says that it will send costs nothing; only one
				// that sends it gets the room.
				if err := s.room(r.Context(), size); err != nil {
					return nil, nil, err
				}
				counted, release = true, func() { s.bodies.Release(size) }
				buf = slices.Grow(buf, max(int(r.ContentLength)+512, 2*len(buf))-len(buf))
			} else {
				buf = slices.Grow(buf, len(buf))
			}
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
			return buf, release, nil
		case err != nil:
			release()
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				return nil, nil, tooLarge
			}
			return nil, nil, badRequest("the body could not be read: %v", err)
		}
	}
}

// room waits for a large body's share of the memory.
func (s *Server) room(ctx context.Context, size int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.budgetWait)
	defer cancel()
	if s.bodies.Acquire(ctx, size) != nil {
		return fail(http.StatusServiceUnavailable, CodeOverloaded, "too many large bodies at one time: try again")
	}
	return nil
}

// plainID reports whether a caller's request id can go into logs as it is.
func plainID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// recorder remembers what was answered, and gives the client a limited time to
// take it.
type recorder struct {
	http.ResponseWriter
	controller *http.ResponseController
	status     int
	bytes      int64

	budget *semaphore.Weighted
	held   int64 // of it, until the answer is written
}

// hold takes an answer's share of the budget; false if there is none left.
func (r *recorder) hold(n int64) bool {
	if n <= smallBytes || r.held > 0 {
		return true
	}
	// One larger than the whole budget takes all of it.
	if n = min(n, answerBudget); !r.budget.TryAcquire(n) {
		return false
	}
	r.held = n
	return true
}

func (r *recorder) release() {
	if r.held > 0 {
		r.budget.Release(r.held)
		r.held = 0
	}
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
		_ = r.controller.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// probe takes what the mux would answer for a path it has no route for.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) WriteHeader(status int)      { p.status = status }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "projhost_http_requests_total", Help: "Requests by route and status."}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "projhost_http_request_duration_seconds", Help: "Time to answer, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"route"}),
	}
	reg.MustRegister(m.requests, m.seconds)
	return m
}
