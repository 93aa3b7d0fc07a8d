package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host/api"
	"github.com/projhost/projhost/store"
)

// 256 partitions that are equally far are one line.
func TestConsumerIsShownInFewLines(t *testing.T) {
	var out bytes.Buffer
	topic := api.ConsumerTopic{Topic: "events", End: 9, Applied: 9}
	for i := range 6 {
		p := api.PartitionCheckpoint{Partition: i, Position: 3, ReadThrough: 9, Generation: 1, Owner: "a", Why: "first"}
		if i == 3 {
			p.Owner = ""
		}
		topic.Checkpoints = append(topic.Checkpoints, p)
	}
	(&cli{stdout: &out}).printConsumer(&api.Consumer{Type: "projection", Name: "x", Topics: []api.ConsumerTopic{topic}})
	require.Contains(t, out.String(), `topic events: end 9, applied 9
PARTITION  CHECKPOINT  APPLIED  LAG  GENERATION  OWNER   WHY
      0-2           3        9    0           1  a       first
        3           3        9    0           1  nobody  first
      4-5           3        9    0           1  a       first
`)
}

// What holds the high-water mark back is named, with its age.
func TestHolderOfTheMarkIsShown(t *testing.T) {
	topic := api.TopicOf(store.Topic{Name: "events", Kind: "events", End: 1207, HighWaterMark: 7, Messages: -1, Holder: &store.MarkHolder{
		PID: 4711, Application: "psql", State: "idle in transaction", SinceUS: time.Now().Add(-90 * time.Second).UnixMicro()}})
	var out bytes.Buffer
	(&cli{stdout: &out}).printTopics([]api.Topic{topic})
	require.Regexp(t, `^TOPIC   KIND    START   END  HIGH-WATER MARK    LAG  MESSAGES
events  events      0  1207                7  1,200         -

events: what follows position 7 waits for the open transaction of the session with process id 4711 \(psql\), idle in transaction, since \S+Z \(1m3\ds\)
$`, out.String())
	topic = api.TopicOf(store.Topic{Name: "events", End: 9, HighWaterMark: 8, Holder: &store.MarkHolder{Prepared: "tx-1", SinceUS: 1}})
	out.Reset()
	printMark(&out, &topic)
	require.Contains(t, out.String(), `the prepared transaction "tx-1" since 1970-01-01T00:00:00.000001Z`)

	topic = api.TopicOf(store.Topic{Name: "events", End: 9, HighWaterMark: 8, Reason: "connect: refused (is it running?)"})
	out.Reset()
	printMark(&out, &topic)
	require.Equal(t, "\nevents: what follows position 8 cannot be read yet: connect: refused (is it running?)\n", out.String())
}

// Our own server, asked in this process, answers an interrupt as a failure.
func TestInterruptOfOwnServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	cl := &client{base: "http://localhost", local: true, http: &http.Client{Transport: inProcess{handler}}, close: noClose}
	_, _, err := cl.call(ctx, http.MethodPost, "/v1/import", nil, []byte("{}"))
	require.ErrorIs(t, err, errInterrupted)
}

// Nor is an answer that an interrupt cuts short a lost connection, which an import
// would try again.
func TestInterruptWithinAnAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	cl := &client{base: srv.URL, http: &http.Client{Transport: afterHeader(cancel)}, close: noClose}
	_, _, err := cl.call(ctx, http.MethodPost, "/v1/import", nil, []byte("{}"))
	require.Equal(t, errInterrupted, err)
}

// afterHeader calls itself when an answer has begun.
type afterHeader func()

func (f afterHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	f()
	return resp, err
}
