// Package metrics gives Prometheus what the host counts. What happens per batch
// is counted as it happens; what can be looked up is looked up when somebody
// asks.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Consumer is what a consumer holds and has done, at one moment.
type Consumer struct {
	Name                   string // "projection/accounts"
	State                  string
	Lag                    int64
	CacheRows              int
	CacheBytes             int64
	CacheHits, CacheMisses uint64
	QueueBytes             int64
	Owned                  int // partitions
	Orphans, Unowned       int
	Stuck                  int
	Fenced                 uint64
	Undelivered            map[string]int64 // by status, on all hosts; nil: not known
	Held, HeldMax          int64            // of them on this host
	ReplayLag              int64
}

// Plugin is what a plugin's instances hold and have done.
type Plugin struct {
	Name                       string
	Instances                  int
	MemoryBytes                uint64
	Calls, Failures            uint64
	Restores, Reinstantiations uint64
	DroppedLogLines            uint64
}

// Topic is how far a topic goes.
type Topic struct {
	Name      string
	End, Mark int64
	Held      time.Duration // how long the oldest holder of the mark has been there; 0: nobody
}

// Sample is everything that is looked up.
type Sample struct {
	Consumers []Consumer
	Plugins   []Plugin
	Topics    []Topic
	Abandoned map[string]int // partitions by consumer that no host runs, this one not either

	Instances                      int // live
	Claims, ClaimFailures, Refused int64
	SurveyAge, HeartbeatAge        time.Duration // since the latest that succeeded
}

// Metrics counts what happens. Its methods are safe for concurrent use.
type Metrics struct {
	messages      *prometheus.CounterVec
	batchMessages *prometheus.HistogramVec
	guestSeconds  *prometheus.HistogramVec
	commitSeconds *prometheus.HistogramVec
	retries       *prometheus.CounterVec
	halts         *prometheus.CounterVec
}

const namespace = "projhost"

// New registers the host's metrics. Look is called when they are collected.
func New(r prometheus.Registerer, look func() Sample) (*Metrics, error) {
	by := []string{"consumer"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, append(by[:1:1], labels...))
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, by)
	}
	seconds := prometheus.ExponentialBuckets(0.0001, 4, 9)
	m := &Metrics{
		messages:      counter("messages_applied_total", "Messages applied and committed."),
		batchMessages: histogram("batch_messages", "Messages of a committed batch.", prometheus.ExponentialBuckets(1, 4, 8)),
		guestSeconds:  histogram("guest_call_seconds", "Duration of a call of the guest.", seconds),
		commitSeconds: histogram("commit_seconds", "Duration of a batch's commit, repeats included.", seconds),
		retries:       counter("retries_total", "Failures that were tried again."),
		halts:         counter("halts_total", "Times a message halted its consumer.", "reason"),
	}
	for _, c := range []prometheus.Collector{m.messages, m.batchMessages, m.guestSeconds, m.commitSeconds, m.retries, m.halts, &looker{look}} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Called counts a call of a guest.
func (m *Metrics) Called(consumer string, took time.Duration) {
	m.guestSeconds.WithLabelValues(consumer).Observe(took.Seconds())
}

// Committed counts a committed batch.
func (m *Metrics) Committed(consumer string, messages int, took time.Duration) {
	m.messages.WithLabelValues(consumer).Add(float64(messages))
	m.batchMessages.WithLabelValues(consumer).Observe(float64(messages))
	m.commitSeconds.WithLabelValues(consumer).Observe(took.Seconds())
}

// Retried counts a failure that is tried again.
func (m *Metrics) Retried(consumer string) { m.retries.WithLabelValues(consumer).Inc() }

// Halted counts a halt.
func (m *Metrics) Halted(consumer, reason string) { m.halts.WithLabelValues(consumer, reason).Inc() }

// looker collects what is looked up.
type looker struct{ look func() Sample }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	lag         = desc("consumer_lag", "Positions between the ends of its topics and what is applied in all partitions this host has.", "consumer")
	state       = desc("consumer_state", "1 for the state a consumer is in.", "consumer", "state")
	cacheRows   = desc("cache_rows", "Rows kept in memory.", "consumer")
	cacheBytes  = desc("cache_bytes", "Memory of the rows kept, about.", "consumer")
	cacheHits   = desc("cache_hits_total", "Rows wanted by a batch that were in memory.", "consumer")
	cacheMisses = desc("cache_misses_total", "Rows that were read from the database.", "consumer")
	queueBytes  = desc("queue_bytes", "Memory of the messages in front of the lanes, about.", "consumer")
	instances   = desc("guest_instances", "Live instances.", "plugin")
	memory      = desc("guest_memory_bytes", "Linear memory of the live instances.", "plugin")
	calls       = desc("guest_calls_total", "Calls.", "plugin")
	failures    = desc("guest_failures_total", "Calls that ended with a failed entry.", "plugin")
	restores    = desc("guest_restores_total", "Times a guest's state was put back in place.", "plugin")
	remade      = desc("guest_reinstantiations_total", "Times a guest was made anew because its state could not be put back.", "plugin")
	dropped     = desc("guest_log_lines_dropped_total", "Log lines over a guest's rate.", "plugin")
	owned       = desc("partitions", "Partitions this host has.", "consumer")
	orphans     = desc("partitions_orphaned", "Partitions that no host may have: all are at their limit, or none runs the consumer.", "consumer")
	unowned     = desc("partitions_unowned", "Partitions that no live host has at the moment.", "consumer")
	stuck       = desc("partitions_stuck", "Own partitions that do not move though messages wait.", "consumer")
	fenced      = desc("fence_rejections_total", "Times a batch was refused since its lease was lost.", "consumer")
	undelivered = desc("undelivered", "Messages that could not be applied, on all hosts.", "consumer", "status")
	held        = desc("undelivered_held", "Undelivered messages that this host keeps.", "consumer")
	heldMax     = desc("undelivered_held_max", "How many it keeps at most: then the consumer halts.", "consumer")
	replayLag   = desc("rebuild_remaining", "Positions that the partition furthest behind of this host has left in a rebuild, 0 if none is under way.", "consumer")
	hosts       = desc("instances", "Live hosts of the database.")
	surveyAge   = desc("survey_age_seconds", "Time since the host last saw the others.")
	beatAge     = desc("heartbeat_age_seconds", "Time since the host's latest heartbeat that succeeded.")
	claims      = desc("claims_total", "Claims of partitions.")
	claimErrors = desc("claim_failures_total", "Claims that ended in an error.")
	refused     = desc("claims_refused_total", "Partitions that claims did not get, since others were faster or hold them.")
	topicEnd    = desc("topic_end", "Highest position handed out.", "topic")
	topicMark   = desc("topic_high_water_mark", "Highest position that may be read.", "topic")
	topicLag    = desc("topic_lag", "Positions handed out that may not be read yet: they wait for open transactions.", "topic")
	topicHeld   = desc("topic_mark_held_seconds", "Age of the open transaction that has held the high-water mark back longest, 0 if none does.", "topic")
)

// Describe implements prometheus.Collector.
func (l *looker) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lag, state, cacheRows, cacheBytes, cacheHits, cacheMisses, queueBytes,
		instances, memory, calls, failures, restores, remade, dropped, topicEnd, topicMark, topicLag, topicHeld,
		owned, orphans, unowned, stuck, fenced, undelivered, held, heldMax, replayLag, hosts, surveyAge, beatAge, claims, claimErrors, refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *looker) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := l.look()
	for _, c := range s.Consumers {
		gauge(lag, float64(c.Lag), c.Name)
		gauge(state, 1, c.Name, c.State)
		gauge(cacheRows, float64(c.CacheRows), c.Name)
		gauge(cacheBytes, float64(c.CacheBytes), c.Name)
		count(cacheHits, c.CacheHits, c.Name)
		count(cacheMisses, c.CacheMisses, c.Name)
		gauge(queueBytes, float64(c.QueueBytes), c.Name)
		gauge(owned, float64(c.Owned), c.Name)
		gauge(orphans, float64(c.Orphans), c.Name)
		gauge(unowned, float64(c.Unowned), c.Name)
		gauge(stuck, float64(c.Stuck), c.Name)
		count(fenced, c.Fenced, c.Name)
		for status, n := range c.Undelivered {
			gauge(undelivered, float64(n), c.Name, status)
		}
		gauge(held, float64(c.Held), c.Name)
		gauge(heldMax, float64(c.HeldMax), c.Name)
		gauge(replayLag, float64(c.ReplayLag), c.Name)
	}
	for name, n := range s.Abandoned {
		gauge(orphans, float64(n), name)
	}
	gauge(hosts, float64(s.Instances))
	gauge(surveyAge, s.SurveyAge.Seconds())
	gauge(beatAge, s.HeartbeatAge.Seconds())
	count(claims, uint64(s.Claims))
	count(claimErrors, uint64(s.ClaimFailures))
	count(refused, uint64(s.Refused))
	for _, p := range s.Plugins {
		gauge(instances, float64(p.Instances), p.Name)
		gauge(memory, float64(p.MemoryBytes), p.Name)
		count(calls, p.Calls, p.Name)
		count(failures, p.Failures, p.Name)
		count(restores, p.Restores, p.Name)
		count(remade, p.Reinstantiations, p.Name)
		count(dropped, p.DroppedLogLines, p.Name)
	}
	for _, t := range s.Topics {
		gauge(topicEnd, float64(t.End), t.Name)
		gauge(topicMark, float64(t.Mark), t.Name)
		gauge(topicLag, float64(max(0, t.End-t.Mark)), t.Name)
		gauge(topicHeld, t.Held.Seconds(), t.Name)
	}
}
