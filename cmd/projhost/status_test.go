package main

import (
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/host/api"
)

// 256 partitions that are equally far are one line.
func TestConsumerIsShownInFewLines(t *testing.T) {
	var out bytes.Buffer
	topic := api.ConsumerTopic{Topic: "events", End: 9, Applied: 9}
	for i := range 6 {
		p := api.PartitionCheckpoint{Partition: i, Position: 3, ReadThrough: 9, Generation: 1}
		if i == 3 {
			p.Position = 9
		}
		topic.Checkpoints = append(topic.Checkpoints, p)
	}
	(&cli{stdout: &out}).printConsumer(&api.Consumer{Type: "projection", Name: "x", Topics: []api.ConsumerTopic{topic}})
	require.Contains(t, out.String(), `topic events: end 9, applied 9
PARTITION  CHECKPOINT  APPLIED  GENERATION
      0-2           3        9           1
        3           9        9           1
      4-5           3        9           1
`)
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
