package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// Status answers GET /v1/status: everything the status command shows.
type Status struct {
	InstanceID string     `json:"instance_id"`
	Version    string     `json:"version"`
	StartedAt  string     `json:"started_at"`
	Ready      bool       `json:"ready"`
	Reasons    []string   `json:"reasons,omitempty"` // why it is not ready
	Store      StoreInfo  `json:"store"`
	Topics     []Topic    `json:"topics"`
	Consumers  []Consumer `json:"consumers"`
	Plugins    []Plugin   `json:"plugins"`
	Instances  []Instance `json:"instances"`
	Moves      []Move     `json:"moves"` // the latest partitions that changed hands, in order
	Claims     Claims     `json:"claims"`
}

// Move is partitions that changed hands in the same way, as this host saw it.
type Move struct {
	At         string `json:"at"`
	Consumer   string `json:"consumer"`
	Partitions []int  `json:"partitions"`
	From       string `json:"from,omitempty"` // instance; absent: nobody
	To         string `json:"to"`
	Why        string `json:"why"`
}

// Claims is what this host's claims came to since it began. Refused are partitions.
type Claims struct {
	Made    int64 `json:"made"`
	Failed  int64 `json:"failed"`
	Refused int64 `json:"refused"`
}

// StoreInfo describes the database.
type StoreInfo struct {
	Driver        string `json:"driver"`
	ServerVersion string `json:"server_version"`
	SchemaVersion int    `json:"schema_version"`
	Partitions    int    `json:"partitions"`
}

// Instance is a host that the database knows.
type Instance struct {
	ID          string `json:"id"`
	HostName    string `json:"host_name"`
	StartedAt   string `json:"started_at"`
	HeartbeatAt string `json:"heartbeat_at"`
	Live        bool   `json:"live"` // false: its time is over, others may take its partitions
	// MaxPartitions is how many partitions it takes at most; absent: as many as come.
	MaxPartitions int `json:"max_partitions,omitempty"`
}

// Consumer is a consumer item. Lanes and the partitions of its topics are in
// the answer for one consumer only.
type Consumer struct {
	Type         string  `json:"type"`
	Name         string  `json:"name"`
	State        string  `json:"state"`
	StateSince   string  `json:"state_since,omitempty"`
	Reason       string  `json:"reason,omitempty"` // of a state that is no halt
	HaltReason   *string `json:"halt_reason"`
	Halt         *Halt   `json:"halt,omitempty"`
	Epoch        int64   `json:"epoch"`
	Build        int64   `json:"build"`
	Lag          int64   `json:"lag"`
	Plugin       string  `json:"plugin"`
	Digest       string  `json:"digest"`
	Distribution string  `json:"distribution,omitempty"`
	Partitions   int     `json:"partitions"`        // owned by this host
	Orphans      []int   `json:"orphans,omitempty"` // partitions that no host may have
	Unowned      []int   `json:"unowned,omitempty"` // partitions that no live host has, though one may
	Stuck        []int   `json:"stuck,omitempty"`   // own partitions that do not move though messages wait
	Fenced       uint64  `json:"fence_rejections"`  // times a lease was found lost
	// Undelivered counts the messages that could not be applied, by their status.
	Undelivered map[string]int64 `json:"undelivered"`
	Topics      []ConsumerTopic  `json:"topics"`
	Lanes       []Lane           `json:"lanes,omitempty"`
	Rebuild     *Rebuild         `json:"rebuild,omitempty"` // under way
	// Held are those of them that this host keeps, NextRetryAt is when it tries the
	// next one again, Alarms what halts the consumer if nobody minds it.
	Held        int64    `json:"held,omitempty"`
	NextRetryAt string   `json:"next_retry_at,omitempty"`
	Alarms      []string `json:"alarms,omitempty"`
}

// Rebuild is how far a rebuild in place is, on all hosts. Total and remaining are
// positions of all topics, at most as many messages; rate is how many of them a
// second are applied, 0 where that is not known yet.
type Rebuild struct {
	Mode           string  `json:"mode"`
	Total          int64   `json:"total"`
	Done           int64   `json:"done"`
	Remaining      int64   `json:"remaining"`
	Rate           float64 `json:"rate"`
	Pruned         int     `json:"pruned"` // partitions that have nothing left of before
	Partitions     int     `json:"partitions"`
	HistoryMissing bool    `json:"history_missing,omitempty"` // so nothing is pruned
}

// Halt is why and where a consumer stopped, its time as the API writes times.
type Halt struct {
	store.Halt
	AtUS *int64 `json:"at_us,omitempty"` // never set: it hides the embedded one
	At   string `json:"at,omitempty"`
}

// HaltOf gives a halt the form of the API; nil stays nil.
func HaltOf(h *store.Halt) *Halt {
	if h == nil {
		return nil
	}
	out := &Halt{Halt: *h}
	if h.AtUS != 0 {
		out.At = jsonl.FormatTime(h.AtUS)
	}
	return out
}

// ID is type/name.
func (c *Consumer) ID() string { return c.Type + "/" + c.Name }

// ConsumerTopic is how far a consumer is in one topic.
type ConsumerTopic struct {
	Topic       string                `json:"topic"`
	End         int64                 `json:"end"`
	Applied     int64                 `json:"applied"` // by every partition
	Checkpoints []PartitionCheckpoint `json:"checkpoints,omitempty"`
}

// PartitionCheckpoint is how far one partition is: what is saved, and what is
// applied. The stretch between the two had no messages for it.
type PartitionCheckpoint struct {
	Partition   int    `json:"partition"`
	Position    int64  `json:"position"`
	ReadThrough int64  `json:"read_through"`
	Lag         int64  `json:"lag"`
	Generation  int64  `json:"generation,omitempty"`
	Owner       string `json:"owner,omitempty"` // instance; absent: nobody
	// How it came to its owner, as this host saw it.
	MovedAt string `json:"moved_at,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Lane is what one lane holds and has done.
type Lane struct {
	Partitions    int    `json:"partitions"`
	QueueMessages int    `json:"queue_messages"`
	QueueBytes    int64  `json:"queue_bytes"`
	CacheRows     int    `json:"cache_rows"`
	CacheBytes    int64  `json:"cache_bytes"`
	Batches       uint64 `json:"batches"`
	Messages      uint64 `json:"messages"`
	LastBatch     int    `json:"last_batch"`
}

// Plugin is a plugin item.
type Plugin struct {
	Name             string   `json:"name"`
	Digest           string   `json:"digest"`
	Version          string   `json:"version"`
	ABI              int      `json:"abi"`
	Consumers        []string `json:"consumers"`
	Capabilities     []string `json:"capabilities"`
	Instances        int      `json:"instances"`
	MemoryBytes      uint64   `json:"memory_bytes"`
	Restores         uint64   `json:"restores"`
	Reinstantiations uint64   `json:"reinstantiations"`
}

// summary leaves out what only the answer for one consumer has.
func (c Consumer) summary() Consumer {
	c.Lanes = nil
	topics := make([]ConsumerTopic, len(c.Topics))
	for i, t := range c.Topics {
		t.Checkpoints = nil
		topics[i] = t
	}
	c.Topics = topics
	return c
}

// checkTimeout bounds how long the store may take to say that it is sound.
const checkTimeout = 5 * time.Second

// ready tells whether the store is sound and every consumer runs, or is halted
// and says so; if not, why. It is never asked of the host alone: what the status
// says and what a prober is told is the same.
func (s *Server) ready(ctx context.Context) (bool, []string) {
	ok, reasons := s.deps.Runtime.Ready()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := s.deps.Store.Check(ctx); err != nil {
		return false, append(reasons, "store: "+err.Error())
	}
	topics, err := s.deps.Store.ListTopics(ctx)
	if err != nil {
		return false, append(reasons, "store: "+err.Error())
	}
	for i := range topics {
		if why := stands(&topics[i]); why != "" {
			reasons = append(reasons, why)
		}
	}
	return ok && len(reasons) == 0, reasons
}

// standsMax is how long an open transaction may hold a mark back before the host
// is not ready: it has nothing to apply, and nobody can read what is appended.
const standsMax = 30 * time.Second

// stands tells why the mark of a topic stands still though there is more.
func stands(t *store.Topic) string {
	if t.End <= t.HighWaterMark {
		return ""
	}
	why := t.Reason
	if h := t.Holder; h != nil {
		if time.Since(time.UnixMicro(h.SinceUS)) < standsMax {
			return ""
		}
		why = "an open transaction has held it since " + jsonl.FormatTime(h.SinceUS)
	}
	if why == "" {
		return ""
	}
	return fmt.Sprintf("topic %s: the high-water mark stands still at %d though events wait up to %d: %s", t.Name, t.HighWaterMark, t.End, why)
}

func (s *Server) hostStatus(ctx context.Context) (Status, error) {
	st, err := s.deps.Runtime.Status(ctx)
	if err != nil {
		return st, err
	}
	info, err := s.deps.Store.Info(ctx)
	if err != nil {
		return st, err
	}
	st.Ready, st.Reasons = s.ready(ctx)
	st.Version = s.deps.Version
	st.Store = StoreInfo{info.Driver, info.ServerVersion, info.SchemaVersion, info.Partitions}
	return st, nil
}

// status is GET /v1/status.
func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	st, err := s.hostStatus(r.Context())
	if err != nil {
		return err
	}
	if err := s.countUndelivered(r.Context(), st.Consumers); err != nil {
		return err
	}
	for i := range st.Consumers {
		st.Consumers[i] = st.Consumers[i].summary()
	}
	return marshal(w, http.StatusOK, st)
}

// listConsumers is GET /v1/consumers.
func (s *Server) listConsumers(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	st, err := s.deps.Runtime.Status(r.Context())
	if err != nil {
		return err
	}
	if err := s.countUndelivered(r.Context(), st.Consumers); err != nil {
		return err
	}
	page := Page[Consumer]{Items: []Consumer{}}
	for _, c := range st.Consumers {
		page.Items = append(page.Items, c.summary())
	}
	return marshal(w, http.StatusOK, page)
}

// getConsumer is GET /v1/consumers/{type}/{name}.
func (s *Server) getConsumer(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	st, err := s.deps.Runtime.Status(r.Context())
	if err != nil {
		return err
	}
	for _, c := range st.Consumers {
		if c.Type == r.PathValue("type") && c.Name == r.PathValue("name") {
			one := []Consumer{c}
			if err := s.countUndelivered(r.Context(), one); err != nil {
				return err
			}
			return marshal(w, http.StatusOK, one[0])
		}
	}
	return fail(http.StatusNotFound, CodeNotFound, "there is no consumer %s/%s", r.PathValue("type"), r.PathValue("name"))
}

// listPlugins is GET /v1/plugins.
func (s *Server) listPlugins(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	st, err := s.deps.Runtime.Status(r.Context())
	if err != nil {
		return err
	}
	page := Page[Plugin]{Items: []Plugin{}}
	page.Items = append(page.Items, st.Plugins...)
	return marshal(w, http.StatusOK, page)
}

// getPlugin is GET /v1/plugins/{name}.
func (s *Server) getPlugin(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	st, err := s.deps.Runtime.Status(r.Context())
	if err != nil {
		return err
	}
	for _, p := range st.Plugins {
		if p.Name == r.PathValue("name") {
			return marshal(w, http.StatusOK, p)
		}
	}
	return fail(http.StatusNotFound, CodeNotFound, "there is no plugin %q", r.PathValue("name"))
}

// healthz is GET /healthz: the process answers. It says whose it is, so that a
// client does not take another service for a host.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) error {
	return marshal(w, http.StatusOK, map[string]string{"status": "ok", "service": "projhost"})
}

// readyz is GET /readyz.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	if ready, reasons := s.ready(r.Context()); !ready {
		return fail(http.StatusServiceUnavailable, CodeNotReady, "the host is not ready").with("reasons", reasons)
	}
	return marshal(w, http.StatusOK, map[string]string{"status": "ready"})
}

// index is GET /: where to go from here.
func (s *Server) index(w http.ResponseWriter, r *http.Request) error {
	return marshal(w, http.StatusOK, struct {
		Service string   `json:"service"`
		Version string   `json:"version"`
		See     []string `json:"see"`
	}{"projhost", s.deps.Version, []string{"/v1/status", "/v1/topics", "/v1/consumers", "/v1/plugins", "/healthz", "/readyz", "/metrics"}})
}
