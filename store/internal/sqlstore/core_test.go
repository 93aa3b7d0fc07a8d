package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var testDialect = &Dialect{Name: "postgres", Rows: readmodel.Postgres, Now: "clock()", Words: map[string]string{"text": "COLLATE x"}}

func TestSQLIsSpelledForTheEngine(t *testing.T) {
	const text = `SELECT "partition", x FROM {{events}} WHERE id = {{?}} AND n > ? AND t < {{now}} AND s = 'a{b'`
	spell := func(d *Dialect) string {
		n, err := newNaming(d, "ph_")
		require.NoError(t, err)
		return n.sql(text)
	}
	require.Equal(t, `SELECT "partition", x FROM "ph_events" WHERE id = $1 AND n > $2 AND t < clock() AND s = 'a{b'`, spell(testDialect))
	require.Equal(t, "SELECT `partition`, x FROM `ph_events` WHERE id = ? AND n > ? AND t < now() AND s = 'a{b'",
		spell(&Dialect{Rows: readmodel.MySQL, Now: "now()"}))
	require.Equal(t, "SELECT [partition], x FROM [ph_events] WHERE id = CAST(@p1 COLLATE Latin1_General_100_BIN2_UTF8 AS VARCHAR(1020)) AND n > @p2 AND t < now() AND s = 'a{b'",
		spell(&Dialect{Rows: readmodel.SQLServer, Now: "now()"}))
	n, err := newNaming(testDialect, "ph_")
	require.NoError(t, err)
	require.Equal(t, `a ? "b" COLLATE x "ph_topics"; {`, n.script(`a ? "b" {{text}} {{topics}}; {`))
	_, err = newNaming(testDialect, `a"b`)
	require.Error(t, err)
}

// coded is an error of a database whose class is its code.
type coded Class

func (c coded) Error() string { return fmt.Sprint("code ", int(c)) }

// classes is an Engine that knows the class of coded errors, and nothing else.
type classes struct{ Engine }

func (classes) Class(err error) (Class, string) {
	var c coded
	if errors.As(err, &c) {
		return Class(c), "do this"
	}
	return Unknown, ""
}

func TestFailGivesErrorsTheirForm(t *testing.T) {
	own := errors.New("ours")
	for _, err := range []error{nil, own, store.ErrFenced, &store.ConflictError{}, context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded),
		&store.DataError{Err: coded(Data)}, &store.TransientError{Err: coded(Lost)}} {
		require.Equal(t, err, Fail(classes{}, "op", false, err))
	}
	for _, class := range []Class{Lost, Retry, Unavailable} {
		err := Fail(classes{}, "op", false, fmt.Errorf("x: %w", coded(class)))
		var transient *store.TransientError
		require.ErrorAs(t, err, &transient)
		require.Equal(t, "op", transient.Op)
		require.Equal(t, "do this", transient.Hint)
		require.False(t, transient.OutcomeUnknown)
		require.ErrorIs(t, err, coded(class))
	}
	for _, class := range []Class{Data, Duplicate} {
		err := Fail(classes{}, "op", false, coded(class))
		var transient *store.TransientError
		require.False(t, errors.As(err, &transient))
		require.EqualError(t, err, "op: "+coded(class).Error())
	}
	var transient *store.TransientError
	require.ErrorAs(t, Fail(classes{}, "op", false, fmt.Errorf("x: %w", ErrRace)), &transient)
	// Only an answer of the database tells what became of a COMMIT.
	for _, err := range []error{coded(Lost), own, context.Canceled} {
		require.ErrorAs(t, Fail(classes{}, "op", true, err), &transient)
		require.True(t, transient.OutcomeUnknown)
		require.ErrorIs(t, transient, err)
	}
	require.ErrorAs(t, Fail(classes{}, "op", true, coded(Unavailable)), &transient)
	require.False(t, transient.OutcomeUnknown)
}

func TestAgainIsPatientButNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(err error, failures int) (int, error) {
			n := 0
			return n, Again(t.Context(), classes{}, func() error {
				if n++; n <= failures {
					return err
				}
				return nil
			})
		}
		_, err := run(coded(Retry), attemptsMax-1)
		require.NoError(t, err)
		_, err = run(ErrRace, 1)
		require.NoError(t, err)
		_, err = run(coded(Retry), attemptsMax)
		require.Error(t, err)
		_, err = run(coded(Lost), 1)
		require.Error(t, err)
		n := 0
		require.Error(t, Again(t.Context(), classes{}, func() error { n++; time.Sleep(againMax + 1); return coded(Retry) }))
		require.Equal(t, 1, n, "what took long is not repeated")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		require.Error(t, Again(ctx, classes{}, func() error { return coded(Retry) }))
		require.Equal(t, time.Millisecond, time.Since(began))
	})
}

func TestAnEndThatGoesBackRaisesTheIncarnation(t *testing.T) {
	c := &Core{}
	require.EqualValues(t, 0, c.Look("a").Saw(5))
	late, early := c.Look("a"), c.Look("a")
	require.EqualValues(t, 0, late.Saw(9))
	require.EqualValues(t, 0, early.Saw(7), "it read before the other did")
	require.EqualValues(t, 0, c.Look("b").Saw(1), "another topic")
	one, two := c.Look("a"), c.Look("a")
	require.EqualValues(t, 1, one.Saw(8))
	require.EqualValues(t, 1, two.Saw(8), "both have seen the same thing")
	require.EqualValues(t, 1, c.Look("a").Saw(8))
	require.EqualValues(t, 1, c.Look("a").Saw(10))
	stale := c.Look("a")
	require.EqualValues(t, 2, c.Look("a").Saw(3))
	require.EqualValues(t, 1, stale.Saw(11), "read from what was there before")
	require.EqualValues(t, 2, c.Look("a").Saw(3))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				c.Look("a").Saw(4)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 2, c.Incarnation())
}
