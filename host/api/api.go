// Package api is the HTTP side of a host: streams and commits, topics, read
// models with read-your-writes, consumers and the actions of operators on them,
// plugins, health and metrics.
//
// It promises that an error is always {"error":{"code","message",…}} with a
// stable code; that payloads go in and out byte for byte; that no transaction
// is open while a client is written to, so a slow client holds nobody up; and
// that every answer of a read model says how fresh it is at least.
//
// It knows the store by its roles and the running host by [Runtime]; it knows
// neither SQL nor WebAssembly.
package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/semaphore"

	"github.com/projhost/projhost/store"
)

// Store is what of the store the API uses.
type Store interface {
	store.EventLog
	store.Topics
	store.ReadModels
	store.Operations
	RebuildInPlace(ctx context.Context, id store.ConsumerID, r store.Rebuild) error
	Consumer(ctx context.Context, id store.ConsumerID) (store.Consumer, error)
	CountUndelivered(ctx context.Context) (map[store.ConsumerID]map[store.UndeliveredStatus]int64, error)
	ListUndelivered(ctx context.Context, q store.UndeliveredQuery) ([]store.UndeliveredMessage, error)
	UndeliveredMessage(ctx context.Context, id store.ConsumerID, row int64) (store.UndeliveredMessage, error)
	History(ctx context.Context, id store.ConsumerID, after int64, limit int) ([]store.HistoryEntry, error)
	Info(ctx context.Context) (store.Info, error)
	Check(ctx context.Context) error
}

// Runtime is what the API asks of the running host.
type Runtime interface {
	// Status tells what the host is doing. Partitions of consumers are filled
	// in.
	Status(ctx context.Context) (Status, error)
	// Ready reports whether every consumer runs, or the reasons why not.
	Ready() (bool, []string)
	// Applied is the position up to which everything of topic is applied and
	// committed in a partition of the consumer, or in all with AllPartitions;
	// false if this host does not know.
	Applied(id store.ConsumerID, topic string, partition int) (int64, bool)
	// Halted is why and where the consumer is halted on this host, or nil. The
	// store learns of it a moment later.
	Halted(id store.ConsumerID) *store.Halt
	// Look has the host look soon at what an operator has done to a consumer.
	Look()
	// WaitApplied blocks until everything of topic up to position is applied, on
	// whichever host. The errors are *NotCaughtUpError when ctx ends first,
	// *HaltedError and ErrNotRun.
	WaitApplied(ctx context.Context, id store.ConsumerID, topic string, position int64, partition int) error
}

// AllPartitions asks for the lowest of all partitions.
const AllPartitions = -1

// ErrNotRun is a wait of which only the store can tell anything.
var ErrNotRun = errors.New("no host is asked for the consumer")

// Lagging is a partition that is not where a reader waits for it to be, and how far
// it is.
type Lagging struct {
	Partition int   `json:"partition"`
	Position  int64 `json:"position"`
}

// NotCaughtUpError lists the partitions that are known not to be there yet,
// whichever host applies them.
type NotCaughtUpError struct{ Lagging []Lagging }

func (e *NotCaughtUpError) Error() string { return fmt.Sprintf("%d partitions lag", len(e.Lagging)) }

// HaltedError is a wait for a consumer that halted first. Lagging are the
// partitions it has left behind.
type HaltedError struct {
	Halt    store.Halt
	Lagging []Lagging
}

func (e *HaltedError) Error() string { return e.Halt.Message }

// Deps are what a server is made of.
type Deps struct {
	Store    Store
	Runtime  Runtime
	Log      hclog.Logger
	Registry *prometheus.Registry // of /metrics; the server adds its own to it
	Version  string
}

// Token is a bearer token, known by its SHA-256, and what it may do.
type Token struct {
	Name   string
	SHA256 [sha256.Size]byte
	Roles  []string
}

// ParseToken makes a Token of a hash in hex.
func ParseToken(name, hash string, roles []string) (Token, error) {
	t := Token{Name: name, Roles: roles}
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != sha256.Size {
		return t, fmt.Errorf("token %s: not the hex SHA-256 of a token", name)
	}
	copy(t.SHA256[:], b)
	return t, nil
}

// Config is the server's settings. Zero means the default.
type Config struct {
	// Tokens that may call. None: everybody may, so the listener must be a
	// loopback address; then calls under other host names are refused, since a
	// web page could make them (DNS rebinding).
	Tokens []Token
	// MaxBody bounds a request body, bytes.
	// 8 MiB
	MaxBody int64
	// BodyBudget bounds the large bodies in memory at one time, bytes.
	// 64 MiB, and at least MaxBody
	BodyBudget int64
	// InFlight bounds the requests served at one time.
	// 512
	InFlight int64
	// ShutdownTimeout bounds how long a stop waits for requests under way.
	// 10 s
	ShutdownTimeout time.Duration
	// TLS, if set, is served.
	TLS *tls.Config
}

// Server serves the API. Make one with [New].
type Server struct {
	deps     Deps
	cfg      Config
	mux      *http.ServeMux
	bodies   *semaphore.Weighted
	answers  *semaphore.Weighted
	inFlight *semaphore.Weighted
	metrics  *metrics

	budgetWait time.Duration

	consumers sync.Map // store.ConsumerID → *store.Consumer, as last seen
}

// New makes a server.
func New(deps Deps, cfg Config) *Server {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 8 << 20
	}
	if cfg.BodyBudget == 0 {
		cfg.BodyBudget = 64 << 20
	}
	cfg.BodyBudget = max(cfg.BodyBudget, cfg.MaxBody)
	if cfg.InFlight == 0 {
		cfg.InFlight = 512
	}
	if cfg.ShutdownTimeout == 0 {
		cfg.ShutdownTimeout = 10 * time.Second
	}
	if deps.Log == nil {
		deps.Log = hclog.NewNullLogger()
	}
	if deps.Registry == nil {
		deps.Registry = prometheus.NewRegistry()
	}
	s := &Server{
		deps: deps, cfg: cfg, mux: http.NewServeMux(),
		bodies: semaphore.NewWeighted(cfg.BodyBudget), answers: semaphore.NewWeighted(answerBudget), inFlight: semaphore.NewWeighted(cfg.InFlight),
		metrics:    newMetrics(deps.Registry),
		budgetWait: budgetWait,
	}
	s.routes()
	return s
}

func (s *Server) routes() {
	s.handle("POST /v1/streams/{type}/{id}", roleAppend, s.appendStream)
	s.handle("GET /v1/streams/{type}/{id}", roleRead, s.readStream)
	s.handle("GET /v1/streams/{type}/{id}/snapshot", roleRead, s.getSnapshot)
	s.handle("PUT /v1/streams/{type}/{id}/snapshot", roleAppend, s.putSnapshot)
	s.handle("POST /v1/commits", roleAppend, s.commit)
	s.handle("POST /v1/import", roleAppend, s.importLines)
	s.handle("GET /v1/topics", roleRead, s.listTopics)
	s.handle("GET /v1/topics/{topic}", roleRead, s.getTopic)
	s.handle("GET /v1/topics/{topic}/messages", roleRead, s.readMessages)
	s.handle("GET /v1/read-models/{projection}", roleRead, s.listRows)
	s.handle("GET /v1/read-models/{projection}/{key}", roleRead, s.getRow)
	s.handle("GET /v1/consumers", roleRead, s.listConsumers)
	s.handle("GET /v1/consumers/{type}/{name}", roleRead, s.getConsumer)
	s.handle("DELETE /v1/consumers/{type}/{name}", roleOperate, s.drop)
	s.handle("POST /v1/consumers/{type}/{name}/rebuild", roleOperate, s.rebuild)
	s.handle("POST /v1/consumers/{type}/{name}/pause", roleOperate, s.pause)
	s.handle("POST /v1/consumers/{type}/{name}/resume", roleOperate, s.resume)
	s.handle("POST /v1/consumers/{type}/{name}/reset", roleOperate, s.reset)
	s.handle("GET /v1/consumers/{type}/{name}/history", roleRead, s.history)
	s.handle("GET /v1/consumers/{type}/{name}/undelivered", roleRead, s.listUndelivered)
	s.handle("POST /v1/consumers/{type}/{name}/undelivered/retry", roleOperate, s.retryMany)
	s.handle("POST /v1/consumers/{type}/{name}/undelivered/delete", roleOperate, s.deleteMany)
	s.handle("GET /v1/consumers/{type}/{name}/undelivered/{id}", roleRead, s.getUndelivered)
	s.handle("DELETE /v1/consumers/{type}/{name}/undelivered/{id}", roleOperate, s.deleteUndelivered)
	s.handle("POST /v1/consumers/{type}/{name}/undelivered/{id}/retry", roleOperate, s.retryUndelivered)
	s.handle("GET /v1/plugins", roleRead, s.listPlugins)
	s.handle("GET /v1/plugins/{name}", roleRead, s.getPlugin)
	s.handle("GET /v1/status", roleRead, s.status)
	s.handle("GET /healthz", roleNone, s.healthz)
	s.handle("GET /readyz", roleNone, s.readyz)
	s.handle("GET /{$}", roleRead, s.index)
	metrics := promhttp.HandlerFor(s.deps.Registry, promhttp.HandlerOpts{})
	s.handle("GET /metrics", roleNone, func(w http.ResponseWriter, r *http.Request) error {
		metrics.ServeHTTP(w, r)
		return nil
	})
}

// Serve answers on l until ctx ends, lets requests under way finish within the
// shutdown timeout, and returns nil; or an error if the listener fails.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		// Bodies and answers have their own limits: see the middleware.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		TLSConfig:      s.cfg.TLS,
		ErrorLog:       log.New(s.deps.Log.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
		BaseContext:    func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	done := make(chan error, 1)
	go func() {
		if s.cfg.TLS != nil {
			done <- srv.ServeTLS(l, "", "")
			return
		}
		done <- srv.Serve(l)
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	// Its own limit: the work under way is to end although ctx has.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		s.deps.Log.Warn("requests still under way were cut off", "after", s.cfg.ShutdownTimeout)
		_ = srv.Close()
	}
	<-done
	return nil
}
