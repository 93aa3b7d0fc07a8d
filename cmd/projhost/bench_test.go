package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBench(t *testing.T) {
	p := newPlace(t)
	out := p.run("", "bench", "--events", "300", "--accounts", "20", "--rounds", "1", "--only", "native,loop").ok()
	require.Regexp(t, `^sqlite [\d.]+; 300 events, 20 accounts, 1 rounds; go1\.\d+`, out)
	require.Regexp(t, `(?m)^native/5000 +[\d,]+ +[\d,]+–[\d,]+ +[\d.]+ +[\d.]+ .*batches of 5000 folded in memory$`, out)
	require.Regexp(t, `(?m)^loop +[\d,]+ .* 1\.0 .*a transaction for each event$`, out)

	out = p.run("", "bench", "--events", "300", "--accounts", "20", "--rounds", "1", "--only", "loop", "--json").ok()
	var r struct {
		Results []struct {
			Name      string
			PerSecond struct{ Median float64 } `json:"events_per_second"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Results, 1)
	require.Equal(t, "loop", r.Results[0].Name)
	require.Positive(t, r.Results[0].PerSecond.Median)

	p.run("", "bench", "--only", "everything").fails(exitUsage, "projhost: --only everything: it is one of native, loop, c, c+limit, go, go+limit\n")
	p.run("", "bench", "--rounds", "0").fails(exitUsage, "projhost: --rounds must be at least 1, it is 0\n")
}
