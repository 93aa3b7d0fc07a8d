package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// asProgram in the environment makes this test binary the program: bench runs hosts
// as processes of their own.
const asProgram = "PROJHOST_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

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

// Several hosts share a consumer on a server, each a process of its own; all runs
// leave the rows of the events, or there would be no figures.
func TestBenchHosts(t *testing.T) {
	for driver, dsn := range map[string]func(testing.TB) string{"postgres": dbtest.Postgres, "mysql": dbtest.MySQL} {
		t.Run(driver, func(t *testing.T) {
			p := newPlace(t)
			t.Setenv(asProgram, "1")
			args := []string{"bench", "--driver", driver, "--dsn", dsn(t), "--hosts", "1,2", "--events", "600", "--accounts", "60", "--rounds", "1", "--json"}
			idle := driver == "postgres" && !testing.Short() // it takes a while, and is alike on both
			if idle {
				args = append(args, "--idle")
			}
			var r struct {
				Driver, Server string
				Results        json.RawMessage
				Hosts          struct {
					Messages int
					Results  []struct {
						Hosts     int
						Key       string
						PerSecond struct{ Median, Min, Max float64 } `json:"messages_per_second"`
						Ratio     float64                            `json:"ratio_to_first"`
					}
					Idle []struct {
						Hosts       int
						PerSecond   float64 `json:"statements_per_second_and_host"`
						Connections float64 `json:"connections_per_host"`
					}
				}
			}
			require.NoError(t, json.Unmarshal([]byte(p.run("", args...).ok()), &r))
			require.NotEmpty(t, r.Driver)
			require.NotEmpty(t, r.Server)
			require.Empty(t, r.Results, "there are no contenders")
			require.Equal(t, 600, r.Hosts.Messages)
			require.Len(t, r.Hosts.Results, 4)
			for i, x := range r.Hosts.Results {
				require.Equal(t, []string{"native", "native", "computed", "computed"}[i], x.Key)
				require.Equal(t, 1+i%2, x.Hosts)
				require.Positive(t, x.PerSecond.Min)
				require.Positive(t, x.Ratio)
				if x.Hosts == 1 {
					require.InDelta(t, 1, x.Ratio, 1e-9)
				}
			}
			if !idle {
				return
			}
			require.Len(t, r.Hosts.Idle, 2)
			for _, i := range r.Hosts.Idle {
				require.Positive(t, i.PerSecond)
				require.Less(t, i.PerSecond, 20.0, "the budget of an idle host")
				require.GreaterOrEqual(t, i.Connections, 1.0)
			}
			// What one host asks does not depend on how many there are.
			require.InDelta(t, r.Hosts.Idle[0].PerSecond, r.Hosts.Idle[1].PerSecond, 3)
		})
	}
}

func TestBenchHostsRefusals(t *testing.T) {
	p := newPlace(t)
	const server = "projhost: --hosts needs a database server (--driver postgres or mysql, and --dsn): an SQLite database has one host\n"
	p.run("", "bench", "--hosts", "1,2").fails(exitUsage, server)
	p.run("", "bench", "--hosts", "1,2", "--driver", "sqlite").fails(exitUsage, server)
	on := []string{"bench", "--driver", "postgres", "--dsn", "postgres://127.0.0.1:1/none", "--hosts"}
	for list, why := range map[string]string{
		"0":   "projhost: --hosts must be numbers from 1 to 64, one is 0\n",
		"65":  "projhost: --hosts must be numbers from 1 to 64, one is 65\n",
		"2,2": "projhost: --hosts has 2 twice\n",
	} {
		p.run("", append(on, list)...).fails(exitUsage, why)
	}
	const alone = "projhost: --hosts measures hosts beside each other, and nothing else but --idle: leave out --only, --cpuprofile, --append and --latency\n"
	for _, other := range [][]string{{"--only", "c"}, {"--cpuprofile", "x"}, {"--append"}, {"--latency"}} {
		p.run("", append(append(on, "1"), other...)...).fails(exitUsage, alone)
	}
}
