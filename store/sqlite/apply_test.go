package sqlite

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
)

// A guard that does not hold fails as a statement: a transaction that is sent
// as one text, COMMIT and all, commits nothing (P1, P2).
func TestGuardsFailInOneFlight(t *testing.T) {
	s := openTest(t, Options{})
	x := newTester(t, s, projection(t, "accounts"))
	x.apply(x.put("a", 1))
	held := fmt.Sprintf(`SELECT CASE WHEN count(*) = 1 THEN 1 ELSE %s END FROM ph_ownership WHERE build = 1 AND partition = 0 AND generation = `, fails)
	moved := `UPDATE ph_checkpoints SET position = CASE WHEN position = %d AND epoch = %d THEN 9 END WHERE build = 1 AND topic = 'events' AND partition = %d`
	for name, c := range map[string]struct {
		guard string
		code  int
	}{
		"lease":              {held + "7", lib.SQLITE_ERROR},
		"checkpoint":         {fmt.Sprintf(moved, 5, 0, 0), lib.SQLITE_CONSTRAINT_NOTNULL},
		"epoch":              {fmt.Sprintf(moved, 1, 3, 0), lib.SQLITE_CONSTRAINT_NOTNULL},
		"missing checkpoint": {fmt.Sprintf(moved, 1, 0, 5000) + `; SELECT CASE WHEN changes() = 1 THEN 1 ELSE ` + fails + ` END`, lib.SQLITE_ERROR},
	} {
		t.Run(name, func(t *testing.T) {
			c1, err := openConn(s.opt.DSN, true)
			require.NoError(t, err)
			err = c1.script(`BEGIN IMMEDIATE; UPDATE accounts__b1 SET n = 99; ` + c.guard + `; COMMIT`)
			require.Equal(t, c.code, code(err), "%v", err)
			require.NoError(t, c1.close())
			require.Equal(t, map[string]int64{"a": 1}, x.rows())
		})
	}
	// With guards that hold the same text does commit.
	c1, err := openConn(s.opt.DSN, true)
	require.NoError(t, err)
	require.NoError(t, c1.script(`BEGIN IMMEDIATE; `+held+`1; `+fmt.Sprintf(moved, 1, 0, 0)+`; UPDATE accounts__b1 SET n = 99; COMMIT`))
	require.NoError(t, c1.close())
	require.Equal(t, map[string]int64{"a": 99}, x.rows())
}

// A full disk is nobody's data: nothing is written, and the same batch goes
// through once there is room.
func TestApplyOnAFullDisk(t *testing.T) {
	s := openTest(t, Options{})
	x := newTester(t, s, projection(t, "accounts"))
	x.apply(x.put("a", 1))
	limit := func(pages int64) {
		t.Helper()
		_, err := s.writer.conn.queryInt(t.Context(), fmt.Sprintf(`PRAGMA max_page_count = %d`, pages))
		require.NoError(t, err)
	}
	size, err := s.writer.conn.queryInt(t.Context(), `PRAGMA page_count`)
	require.NoError(t, err)
	limit(size)
	b := x.batch(x.put("a", 2))
	for i := range 2000 {
		b.Tables[0].Writes = append(b.Tables[0].Writes, x.put(fmt.Sprintf("k%05d", i), int64(i)))
	}
	for range 2 {
		err = s.Apply(t.Context(), b)
		var transient *store.TransientError
		require.ErrorAs(t, err, &transient)
		require.False(t, transient.OutcomeUnknown, "the statement failed, not the commit")
		require.Contains(t, transient.Hint, "free some space")
		require.Equal(t, map[string]int64{"a": 1}, x.rows())
		outcome, err := s.Settle(t.Context(), b)
		require.NoError(t, err)
		require.Equal(t, store.OutcomeNotCommitted, outcome)
	}
	limit(1 << 30)
	require.NoError(t, s.Apply(t.Context(), b))
	require.Equal(t, s.texts(t, `SELECT '2001'`), s.texts(t, `SELECT count(*) || '' FROM accounts`))
}

// What the database refuses of a row, a user's trigger for one, is that row's
// fault and named with its table.
func TestRefusalsNameTheTable(t *testing.T) {
	s := openTest(t, Options{})
	x := newTester(t, s, projection(t, "accounts"))
	s.sql(t, `CREATE TRIGGER mine BEFORE INSERT ON accounts__b1 WHEN new.n < 0 BEGIN SELECT RAISE(ABORT, 'no'); END`)
	err := s.Apply(t.Context(), x.batch(x.put("a", 1), x.put("b", -1)))
	var data *store.DataError
	require.ErrorAs(t, err, &data)
	require.Equal(t, "accounts", data.Table)
	require.Empty(t, x.rows())
	x.apply(x.put("a", 1))

	// A table that went missing is no message's fault.
	s.sql(t, `DROP VIEW accounts`, `DROP TABLE accounts__b1`)
	err = s.Apply(t.Context(), x.batch(x.put("a", 2)))
	var transient *store.TransientError
	require.ErrorAs(t, err, &transient)
	require.False(t, errors.As(err, &data))
}

// Small batches of several lanes share a transaction. One that is refused takes
// nothing of the others with it.
func TestAppliesShareATransaction(t *testing.T) {
	s := openTest(t, Options{})
	x := newTester(t, s, projection(t, "accounts"))
	for round := range 20 {
		good, bad := x.batch(x.put("good", int64(round))), x.batch(x.put("bad", int64(round)))
		bad.Checkpoints[0].Partition = 1
		bad.Checkpoints[0].From = 77
		bad.Checkpoints[0].To = 78
		errs := make(chan error, 2)
		go func() { errs <- s.Apply(t.Context(), good) }()
		go func() { errs <- s.Apply(t.Context(), bad) }()
		var failed []error
		for range 2 {
			if err := <-errs; err != nil {
				failed = append(failed, err)
			}
		}
		require.Len(t, failed, 1)
		require.ErrorIs(t, failed[0], store.ErrCheckpointMoved)
		x.position++
		require.Equal(t, map[string]int64{"good": int64(round)}, x.rows())
	}
}
