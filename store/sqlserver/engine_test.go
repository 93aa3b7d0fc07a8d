package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/store/internal/sqlstore"
)

func TestClasses(t *testing.T) {
	t.Parallel()
	several := mssql.Error{Number: 3621, All: []mssql.Error{{Number: 2627}, {Number: 3621}}}
	for _, c := range []struct {
		err  error
		want sqlstore.Class
	}{
		{nil, sqlstore.Unknown}, {errors.New("ours"), sqlstore.Unknown},
		{context.Canceled, sqlstore.Unknown}, {fmt.Errorf("x: %w", context.DeadlineExceeded), sqlstore.Unknown},
		{failure(1205), sqlstore.Retry}, {failure(1222), sqlstore.Retry}, {failure(3960), sqlstore.Retry}, {failure(33557097), sqlstore.Retry},
		{failure(2627), sqlstore.Duplicate}, {failure(2601), sqlstore.Duplicate}, {several, sqlstore.Duplicate},
		{failure(515), sqlstore.Data}, {failure(547), sqlstore.Data}, {failure(8115), sqlstore.Data}, {failure(8152), sqlstore.Data},
		{failure(2628), sqlstore.Data}, {failure(8114), sqlstore.Data}, {failure(245), sqlstore.Data}, {failure(1946), sqlstore.Data},
		{failure(4060), sqlstore.Unavailable}, {failure(18456), sqlstore.Unavailable}, {failure(229), sqlstore.Unavailable},
		{failure(1105), sqlstore.Unavailable}, {failure(9002), sqlstore.Unavailable}, {failure(3906), sqlstore.Unavailable},
		{failure(40501), sqlstore.Unavailable}, {failure(207), sqlstore.Unavailable}, {failure(208), sqlstore.Unavailable}, {failure(31999), sqlstore.Unlisted},
		{failure(596), sqlstore.Lost}, {mssql.Error{Number: 31998, Class: 20}, sqlstore.Lost},
		{driver.ErrBadConn, sqlstore.Lost}, {io.ErrUnexpectedEOF, sqlstore.Lost}, {sql.ErrConnDone, sqlstore.Lost},
		{mssql.StreamError{InnerError: io.EOF}, sqlstore.Lost}, {mssql.ServerError{}, sqlstore.Lost},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, sqlstore.Lost},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, sqlstore.Unavailable},
		{&net.DNSError{Err: "no such host", Name: "db", IsNotFound: true}, sqlstore.Unavailable},
	} {
		got, hint := classOf(c.err)
		require.Equal(t, c.want, got, "%v", c.err)
		wrapped, _ := classOf(fmt.Errorf("append: %w", c.err))
		require.Equal(t, c.want, wrapped, "%v", c.err)
		if got == sqlstore.Unavailable {
			require.NotEmpty(t, hint, "%v: what can an operator do?", c.err)
		}
	}
	// What our own batches throw is in no class that is repeated or lost.
	for n := int32(errVersion); n <= errJoined; n++ {
		got, _ := classOf(failure(n))
		require.Equal(t, sqlstore.Unlisted, got)
		require.Equal(t, n, number(fmt.Errorf("x: %w", failure(n))))
	}
}

func TestArgumentsHaveTypes(t *testing.T) {
	t.Parallel()
	const cast = "CAST(@p%d COLLATE " + collation + " AS varchar(8000))"
	text, args, err := bind(`INSERT INTO x VALUES (@p1, @p2, @p3, @p4, @p5, @p6, @p7, @p8, @p9, @p10, @p1)`,
		[]any{"ä", nil, int64(1), sql.NullString{}, []byte(nil), []byte{}, sql.NullInt64{Int64: 7, Valid: true}, true, 1.5, 5})
	require.NoError(t, err)
	p1, p10 := fmt.Sprintf(cast, 1), "@p10"
	require.Equal(t, "INSERT INTO x VALUES ("+p1+", NULL, @p3, NULL, NULL, @p6, @p7, @p8, @p9, "+p10+", "+p1+")", text)
	require.Equal(t, []any{sql.Named("p1", mssql.NVarCharMax("ä")), sql.Named("p3", int64(1)), sql.Named("p6", []byte{}), sql.Named("p7", int64(7)),
		sql.Named("p8", true), sql.Named("p9", 1.5), sql.Named("p10", int64(5))}, args)

	text, args, err = bind("SELECT 1 WHERE k = CAST(@p1 COLLATE X AS VARCHAR(1020)) OR k = CAST(@p2 COLLATE X AS VARCHAR(1020))", []any{"k", nil})
	require.NoError(t, err)
	require.Equal(t, "SELECT 1 WHERE k = CAST(@p1 COLLATE X AS VARCHAR(1020)) OR k = CAST(CAST(NULL AS varchar(1)) COLLATE X AS VARCHAR(1020))", text)
	require.Len(t, args, 1)

	text, _, err = bind("SELECT @p1", []any{strings.Repeat("x", 8001)})
	require.NoError(t, err)
	require.Contains(t, text, "AS varchar(max))")

	for _, bad := range []any{time.Time{}, struct{}{}, sql.NullTime{}} {
		_, _, err = bind("SELECT @p1", []any{bad})
		require.Error(t, err)
	}
	_, _, err = bind("SELECT @p2", []any{"x"})
	require.Error(t, err)
}

// A float is taken apart into whole numbers whose product it is, with powers of
// two that are numbers themselves.
func TestFloatsTravelWhole(t *testing.T) {
	t.Parallel()
	check := func(f float64) bool {
		m, e := whole(f)
		half := e / 2
		for _, power := range []float64{math.Ldexp(1, half), math.Ldexp(1, e-half)} {
			if power == 0 || math.IsInf(power, 0) || power < 2.2250738585072014e-308 {
				return false
			}
		}
		exact := new(big.Float).SetMantExp(new(big.Float).SetInt64(m), e)
		got, _ := exact.Float64()
		// As the server computes it.
		product := float64(m) * math.Pow(2, float64(half)) * math.Pow(2, float64(e-half))
		return got == f && product == f
	}
	for _, f := range []float64{0, 1, -1, 0.1, math.MaxFloat64, -math.MaxFloat64, 2.2250738585072014e-308, math.SmallestNonzeroFloat64, math.Pi, 1e23} {
		require.True(t, check(f), f)
	}
	rapid.Check(t, func(t *rapid.T) {
		if f := rapid.Float64().Draw(t, "f"); !check(f) {
			t.Fatalf("%g", f)
		}
	})
}

// The JSON that a batch opens says what was meant, whatever the text.
func TestStagedTextComesThrough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOf(rapid.String()).Draw(t, "texts")
		var j rowsJSON
		for i, s := range texts {
			j.row()
			j.int("n", int64(i))
			j.string("s", s)
		}
		var got []struct {
			N int
			S string
		}
		if err := json.Unmarshal([]byte(j.text()), &got); err != nil {
			t.Fatal(err)
		}
		var list []string
		if err := json.Unmarshal([]byte(stringsJSON(texts)), &list); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(texts) || len(list) != len(texts) {
			t.Fatalf("%d texts, %d rows", len(texts), len(got))
		}
		for i := range texts {
			if got[i].S != texts[i] || got[i].N != i || list[i] != texts[i] {
				t.Fatalf("%q became %q", texts[i], got[i].S)
			}
		}
	})
}

// Every transaction names its level: a connection keeps that of its last user.
func TestEveryTransactionNamesItsLevel(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	require.NoError(t, s.engine.Write(t.Context(), "write", func(c sqlstore.Conn) error {
		_, err := c.Exec(t.Context(), "UPDATE x SET y = @p1", nil)
		return err
	}))
	c, end, err := s.engine.Snapshot(t.Context(), "look")
	require.NoError(t, err)
	_, err = c.Query(t.Context(), "SELECT 1")
	require.NoError(t, err)
	end()
	end()
	require.Equal(t, []sent{
		{level: sql.LevelReadCommitted}, {text: "UPDATE x SET y = NULL", args: map[string]any{}, level: -1}, {text: "COMMIT", level: -1},
		{level: sql.LevelSnapshot}, {text: "SELECT 1", args: map[string]any{}, level: -1}, {text: "ROLLBACK", level: -1},
	}, srv.log)
	for _, batch := range []string{appendSQL, standingSQL, batchHead} {
		require.Contains(t, batch, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;")
	}
	require.NotRegexp(t, regexp.MustCompile(`(?i)UPDLOCK|READPAST|NOLOCK|MERGE `), appendSQL+standingSQL+moveCheckpointsSQL+holdLeasesSQL,
		"locks are taken by UPDATE")
}

func TestWriteThatMayHaveCommitted(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	srv.commit = func() error { return io.EOF }
	n := 0
	err := s.engine.Write(t.Context(), "write", func(sqlstore.Conn) error { n++; return nil })
	isTransient(true)(t, err)
	require.Equal(t, 1, n, "it is not run again")

	srv.commit = nil
	n = 0
	require.NoError(t, s.engine.Write(t.Context(), "write", func(c sqlstore.Conn) error {
		if n++; n < 3 {
			return failure(1205)
		}
		return nil
	}))
	require.Equal(t, 3, n, "a deadlock's victim begins anew")

	own := errors.New("ours")
	require.Equal(t, own, s.engine.Write(t.Context(), "write", func(sqlstore.Conn) error { return own }))
	require.Equal(t, "ROLLBACK", srv.texts()[len(srv.texts())-1])
}

// The lock is asked for again and again rather than waited for on the server,
// where the end of a context would have to break the wait off.
func TestLockEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	srv.answer = func(e sent) (*reply, error) {
		if e.text == lockSQL {
			if asked++; asked == 3 {
				cancel()
			}
			return rows([]driver.Value{int64(-1)}), nil
		}
		return nil, nil
	}
	_, err := s.engine.Lock(ctx, "x")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 3, asked)

	srv.answer = func(e sent) (*reply, error) {
		if e.text == lockSQL {
			return rows([]driver.Value{int64(1)}), nil
		}
		return nil, nil
	}
	release, err := s.engine.Lock(t.Context(), strings.Repeat("x", 300))
	require.NoError(t, err)
	require.NoError(t, release())
	got := srv.log[len(srv.log)-1]
	require.Equal(t, unlockSQL, got.text)
	require.LessOrEqual(t, len(got.args["name"].(string)), lockNameMax)
}

func TestClosedStoreRefuses(t *testing.T) {
	t.Parallel()
	srv := &server{t: t, answer: boot(t, nil)}
	s, err := open(t.Context(), sql.OpenDB(srv), Options{TablePrefix: "ph_"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Commit(t.Context(), appendTo("A-1", 0, newEvent(1)))
	require.ErrorIs(t, err, errClosed)
	require.Error(t, s.Check(t.Context()))
	_, _, err = s.engine.Snapshot(t.Context(), "look")
	require.ErrorIs(t, err, errClosed)
}
