package mark

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

func TestAppendsAndReadsThroughAPooler(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	pooled := dbtest.PgBouncer(t, b.dsn)
	d := b.byHand() // directly
	through := &bench{t: t, dsn: pooled + "&default_query_exec_mode=exec"}
	f := b.follow(real{t, d})
	f.conn = through.conn()
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { chase(f, stop) })
	c := through.crowd(nil)
	acknowledged := c.run(16, length(), nil)
	close(stop)
	reader.Wait()
	last := b.appender().append()
	require.Equal(t, last, f.step())
	require.Empty(t, f.lost())
	t.Logf("%d events appended and read through the pooler", len(acknowledged))
}

func TestPoolerCannotServeTheDetector(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := b.config()
	cfg.Conn = parse(t, dbtest.PgBouncer(t, b.dsn))
	_, err := Open(t.Context(), cfg)
	require.ErrorContains(t, err, "direct_dsn")
}
