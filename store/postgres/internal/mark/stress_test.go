package mark

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	killAfter  = 800 * time.Millisecond
	stressTime = 3 * time.Second
	shortTime  = time.Second
)

// crowd is many writers at once: pauses before and after the draw, roll-backs,
// several draws in one transaction.
type crowd struct {
	b      *bench
	wake   func()
	insert func(a *appender, r *rand.Rand, body string) error // one draw
	begin  string
}

func (b *bench) crowd(d *Detector) *crowd {
	c := &crowd{b: b, begin: "BEGIN", wake: func() {}}
	if d != nil {
		c.wake = d.Wake
	}
	c.insert = func(a *appender, _ *rand.Rand, body string) error {
		_, err := a.conn.Exec(context.Background(), `INSERT INTO "My events" (body) VALUES ($1)`, body)
		return err
	}
	return c
}

// run lets n writers append until the time is over, calls end while they still
// do, and gives the bodies of the events that were acknowledged.
func (c *crowd) run(n int, d time.Duration, end func()) map[string]bool {
	stop := make(chan struct{})
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	var writers sync.WaitGroup
	crew := make([]*appender, n)
	for i := range crew {
		a := c.b.appender()
		crew[i] = a
		r := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				bodies, err := c.write(a, r)
				if err != nil {
					if !a.conn.IsClosed() {
						c.b.t.Errorf("append: %v", err)
					}
					return
				}
				c.wake()
				mu.Lock()
				for _, body := range bodies {
					acknowledged[body] = true
				}
				mu.Unlock()
			}
		})
	}
	time.Sleep(d) // the time is what makes it a stress
	if end != nil {
		end()
	}
	close(stop)
	writers.Wait()
	for _, a := range crew {
		_ = a.conn.Close(context.Background())
	}
	return acknowledged
}

func (c *crowd) write(a *appender, r *rand.Rand) (bodies []string, err error) {
	ctx := context.Background()
	pause := func() {
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(15000)) * time.Microsecond)
		}
	}
	if _, err = a.conn.Exec(ctx, c.begin); err != nil {
		return nil, err
	}
	for range 1 + r.IntN(2) {
		pause()
		body := fmt.Sprintf("%x", r.Uint64())
		if err := c.insert(a, r, body); err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	pause()
	if r.IntN(10) == 0 {
		_, err = a.conn.Exec(ctx, "ROLLBACK")
		return nil, err
	}
	_, err = a.conn.Exec(ctx, "COMMIT")
	return bodies, err
}

// separately draws in a statement of its own, with a pause before the row is
// stored.
func separately(a *appender, r *rand.Rand, body string) error {
	ctx := context.Background()
	var p int64
	if err := a.conn.QueryRow(ctx, `SELECT nextval('"My events_position_seq"')`).Scan(&p); err != nil {
		return err
	}
	if r.IntN(4) == 0 {
		time.Sleep(time.Duration(r.IntN(5000)) * time.Microsecond)
	}
	_, err := a.conn.Exec(ctx, `INSERT INTO "My events" (position, body) OVERRIDING SYSTEM VALUE VALUES ($1, $2)`, p, body)
	return err
}

func length() time.Duration {
	if testing.Short() {
		return shortTime
	}
	return stressTime
}

// chase has a reader follow an algorithm as long as stop is open, a look every
// few milliseconds with 2 ms between its reads.
func chase(f *follower, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
			f.step(func() { time.Sleep(2 * time.Millisecond) })
		}
	}
}

func TestStressOfManyWritersAndSeveralDetectors(t *testing.T) {
	b := newBench(t)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	var followers []*follower
	for range 3 {
		f := b.follow(b.detector())
		followers = append(followers, f)
		readers.Go(func() { chase(f, stop) })
	}
	var seen sync.Map // position → when a reader may first read it
	d := b.open(func(c *Config) { c.OnMark = func(m int64) { seen.Store(m, time.Now()) } })
	c := b.crowd(d)
	plain := c.insert
	c.insert = func(a *appender, r *rand.Rand, body string) error {
		switch r.IntN(4) {
		case 0:
			return separately(a, r, body)
		case 1: // a draw that is thrown away, its position used later
			_, err := a.conn.Exec(context.Background(), `SAVEPOINT s; SELECT nextval('"My events_position_seq"'); ROLLBACK TO s`)
			return errors.Join(err, plain(a, r, body))
		}
		return plain(a, r, body)
	}
	acknowledged := c.run(16, length(), nil)
	close(stop)
	readers.Wait()
	last := b.appender().append()
	for i, f := range followers {
		require.GreaterOrEqual(t, f.step(), last)
		require.Emptyf(t, f.lost(), "reader %d of %d events", i, len(acknowledged))
	}
	b.until("the loop gets there too", func() bool { return d.State().Mark >= last })
	t.Logf("%d events acknowledged, 3 readers, 4 detectors, nothing lost; a look took %v", len(acknowledged), d.State().Cost)
}

func TestStressShowsTheMutantsToLose(t *testing.T) {
	for name, c := range map[string]struct {
		variant func(*bench) *variant
		insert  func(*appender, *rand.Rand, string) error
		setup   string
	}{
		"holders read before the end": {variant: func(b *bench) *variant { return b.variant(sequenceHolders, setFirst) }},
		"advisory lock nobody takes":  {variant: func(b *bench) *variant { return b.variant(advisoryHolders) }},
		"advisory lock after the draw": {
			variant: func(b *bench) *variant { return b.variant(advisoryHolders) },
			insert: func(a *appender, r *rand.Rand, body string) error {
				ctx := context.Background()
				var p int64
				if err := a.conn.QueryRow(ctx, `SELECT nextval('"My events_position_seq"')`).Scan(&p); err != nil {
					return err
				}
				// A writer may be held up anywhere, also here.
				if r.IntN(4) == 0 {
					time.Sleep(time.Duration(r.IntN(5000)) * time.Microsecond)
				}
				_, err := a.conn.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(4711)")
				if err == nil {
					_, err = a.conn.Exec(ctx, `INSERT INTO "My events" (position, body) OVERRIDING SYSTEM VALUE VALUES ($1, $2)`, p, body)
				}
				return err
			},
		},
		"table lock, separate draw": {variant: func(b *bench) *variant { return b.variant(tableHolders) }, insert: separately},
		"cached draws": {
			variant: func(b *bench) *variant { return b.variant(sequenceHolders) },
			setup:   `ALTER SEQUENCE "My events_position_seq" CACHE 20`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.setup != "" {
				b.exec(c.setup)
			}
			w := b.crowd(nil)
			if c.insert != nil {
				w.insert = c.insert
			}
			f := b.follow(c.variant(b))
			lost := 0
			// It is a matter of luck and time, the more so on a busy machine.
			for end := time.Now().Add(patience); time.Now().Before(end); {
				stop := make(chan struct{})
				var reader sync.WaitGroup
				reader.Go(func() { chase(f, stop) })
				w.run(16, shortTime, nil)
				close(stop)
				reader.Wait()
				if lost = len(f.lost()); lost > 0 {
					break
				}
			}
			require.NotZero(t, lost)
			t.Logf("%d events lost", lost)
		})
	}
}

// BenchmarkLook is one round trip: the end of the sequence, who holds its lock,
// its settings.
func BenchmarkLook(b *testing.B) {
	for _, holders := range []int{0, 16, 100} {
		b.Run(fmt.Sprintf("%d open appenders", holders), func(b *testing.B) {
			bench := newBench(b)
			d := bench.byHand()
			for range holders {
				bench.appender().do(`BEGIN; INSERT INTO "My events" (body) VALUES ('x')`)
			}
			b.ResetTimer()
			for b.Loop() {
				if _, err := d.session.observe(b.Context(), true, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
