package sqlserver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// build is a row of a consumer's builds.
func build(id int64, tables string, standing int64) []driver.Value {
	return []driver.Value{id, int64(7), "running", int64(5), nil, int64(0), "running", int64(5), nil, int64(0),
		int64(5), "p", "sha256:0", `["events"]`, int64(1), "i", "k", "t", "l", tables, standing, int64(0), int64(0), int64(0), int64(0)}
}

// transactions are those of the texts that are transactions.
func transactions(texts []string) string {
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return !strings.Contains(text, "BEGIN TRANSACTION") }), "\n")
}

// The portable roles send T-SQL: no other engine's quotes, limits or parameters,
// no list of more than 1,000 rows, and no argument without a type, which the
// scripted server looks at.
func TestRolesSpeakTransactSQL(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, nil)
	tables := someTables(t)
	text, err := readmodel.MarshalTables(tables)
	require.NoError(t, err)
	consumer := []driver.Value{"projection", "x", "running", int64(5), nil, int64(0), int64(7), "p", "sha256:0", `["events"]`,
		int64(1), "i", "k", "t", "l", string(text)}
	subscribed, standing := false, int64(0)
	srv.answer = boot(t, func(e sent) (*reply, error) {
		switch {
		case strings.HasPrefix(e.text, "SELECT c.type, c.name, c.live_build"):
			return rows([]driver.Value{"projection", "x", int64(7), "running", int64(5), nil, int64(0), int64(7), "running", int64(5), nil, int64(0), int64(0), int64(0)}), nil
		case strings.HasPrefix(e.text, "SELECT b.id, c.live_build"):
			return rows(build(7, string(text), 0), build(8, string(text), standing)), nil
		case strings.HasPrefix(e.text, "SELECT c.type, c.name"):
			if subscribed {
				return rows(consumer), nil
			}
			return &reply{columns: 16}, nil
		case strings.HasPrefix(e.text, "SELECT name, kind"):
			return rows([]driver.Value{"events", "events", int64(0), int64(9), int64(9)}), nil
		case strings.HasPrefix(e.text, "SELECT value FROM"):
			return rows([]driver.Value{int64(7)}), nil
		case strings.HasPrefix(e.text, "SELECT DATEDIFF_BIG"):
			return rows([]driver.Value{int64(1_700_000_000_000_000)}), nil
		case strings.HasPrefix(e.text, "SELECT adopting"):
			return rows([]driver.Value{nil}), nil
		case strings.Contains(e.text, "pruned_epoch < epoch"):
			return rows([]driver.Value{int64(0)}), nil
		case strings.HasPrefix(e.text, "SELECT count(*) FROM [ph_ownership]"), strings.HasPrefix(e.text, "SELECT count(*) FROM [ph_checkpoints]"):
			return rows([]driver.Value{int64(256)}), nil
		case strings.HasPrefix(e.text, "SELECT count(*)"):
			return rows([]driver.Value{int64(1)}), nil
		case e.text == s.q.claim:
			return rows([]driver.Value{int64(3), int64(5)}), nil
		case strings.HasPrefix(e.text, "SELECT u.id, u.topic, u.position"):
			return rows([]driver.Value{int64(4), "events", int64(2), int64(3), "k", "E", "DEAD_LETTER_KEY", int64(0), int64(1)}), nil
		case strings.HasPrefix(e.text, "SELECT high_water_mark"):
			return rows([]driver.Value{int64(9)}), nil
		case strings.HasPrefix(e.text, "SELECT id, tables"):
			return rows([]driver.Value{int64(7), string(text)}), nil
		case strings.HasPrefix(e.text, "SELECT topic, min"):
			return rows([]driver.Value{"events", int64(2)}), nil
		}
		return &reply{counted: 1}, nil
	})
	ctx := t.Context()
	d := store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "x"}, Topics: []string{"events"}, Tables: tables[2:3], Plugin: "p", Digest: "sha256:0",
		Fingerprint: store.Fingerprint{Version: 1, Inputs: "i", Keys: "k", Tables: "t", Logic: "l"}}
	// The fake has no tables of read models: the shape check ends a first start.
	_, err = s.Subscribe(ctx, d)
	var shape *readmodel.ShapeError
	require.ErrorAs(t, err, &shape)
	subscribed = true

	note := func(what string, err error) {
		t.Helper()
		var transient *store.TransientError
		require.False(t, errors.As(err, &transient), "%s: %v", what, err)
	}
	note("join", s.Join(ctx, store.Instance{ID: "i-1", HostName: "h", TTL: time.Second}))
	note("heartbeat", s.Heartbeat(ctx, "i-1"))
	leases, _, err := s.Claim(ctx, "i-1", 7, []int{3})
	require.NoError(t, err)
	require.Equal(t, []store.Lease{{Build: 7, Partition: 3, Generation: 5}}, leases)
	note("release", s.Release(ctx, "i-1", leases))
	note("enlist", s.Enlist(ctx, "i-1", []store.Enlistment{{Build: 7}, {Build: 8, SingleOwner: true}}))
	note("advance", s.Advance(ctx, "i-1", slices.Repeat([]store.Progress{{Incarnation: s.Incarnation()}}, 257)))
	_, err = s.Survey(ctx, []int64{7, 8})
	note("survey", err)
	_, err = s.Reap(ctx)
	note("reap", err)
	_, err = s.Owners(ctx, 7)
	note("owners", err)
	note("halt", s.Halt(ctx, d.ID, leases[0], store.Halt{Reason: store.HaltApplyError}))
	_, err = s.ClearHalt(ctx, d.ID)
	note("clear halt", err)
	_, err = s.Checkpoints(ctx, 7)
	note("checkpoints", err)
	_, err = s.ListConsumers(ctx)
	note("list", err)
	_, err = s.ListInstances(ctx)
	note("instances", err)
	_, err = s.ListTopics(ctx)
	note("topics", err)
	for i, table := range tables {
		ref := store.TableRef{Table: table, Physical: readmodel.PhysicalName("", table.Name, 7), Build: 7}
		keys := []store.RowKey{{Key: "a", Child: "1"}, {Key: "b", Child: "2"}, {Key: "c", Child: "3"}}
		_, err = s.LoadRows(ctx, ref, keys)
		note("load rows", err)
		_, err = s.Empty(ctx, ref)
		note("empty", err)
		if table.Parent != nil {
			_, err = s.ListChildren(ctx, ref, "a", "", 10)
			note("list children", err)
		}
		if i == 2 {
			_, err = s.FindUnique(ctx, ref, 0, row(t, table, "email", abi.Text("a@b")))
			require.ErrorIs(t, err, store.ErrNotFound)
		}
	}
	v, err := s.View(ctx, d.ID)
	require.NoError(t, err)
	_, err = v.Position("events", 3)
	note("position", err)
	_, err = v.Positions()
	note("positions", err)
	_, err = v.Standings()
	note("standings", err)
	_, err = v.Get(ctx, "users", store.RowKey{Key: "a"})
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = v.Children(ctx, "notes", "a", "", 10)
	note("children", err)
	_, _, err = v.Query(ctx, "every", store.Query{Order: "short", Limit: 10})
	note("query", err)
	require.NoError(t, v.Close())
	_, err = s.Heads(ctx, 7, []int{3, 4})
	note("heads", err)
	_, err = s.Line(ctx, 7, 3, "k", 0, 10)
	note("line", err)
	_, err = s.Skips(ctx, 7, "events", 0)
	note("skips", err)
	_, err = s.SweepSkips(ctx, 7)
	note("sweep", err)
	_, err = s.CountUndelivered(ctx)
	note("count", err)
	everything := store.Selection{ID: 4, Key: "k", EventType: "E", Status: store.StatusDeadLetterKey, Topic: "events"}
	_, err = s.ListUndelivered(ctx, store.UndeliveredQuery{Consumer: d.ID, Selection: everything})
	note("list undelivered", err)
	_, err = s.ListUndelivered(ctx, store.UndeliveredQuery{})
	note("list undelivered", err)
	_, err = s.UndeliveredMessage(ctx, d.ID, 4)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.History(ctx, d.ID, 0, 10)
	note("history", err)
	note("pause", s.Pause(ctx, d.ID, "ops"))
	note("reset", s.Reset(ctx, d.ID, "events", 5, "ops"))
	_, err = s.RetryUndelivered(ctx, d.ID, everything, store.Action{Actor: "ops"})
	note("retry", err)
	_, err = s.DeleteUndelivered(ctx, d.ID, everything, store.Action{Actor: "ops"})
	note("delete", err)
	_, err = s.ListBuilds(ctx, d.ID)
	require.NoError(t, err)
	before := len(srv.texts())
	_, err = s.StopAt(ctx, d.ID)
	note("stop", err)
	note("switch", s.Switch(ctx, store.Switch{Consumer: d.ID, Build: 8, Keep: store.Keep{For: time.Hour}, Actor: "ops"}))
	note("cancel", s.CancelShadow(ctx, d.ID, 8, "ops"))
	standing = 1
	note("keep", s.KeepBuild(ctx, d.ID, 8, store.Keep{Cold: true}, "ops"))
	golden(t, "builds.sql", transactions(srv.texts()[before:]))
	_, err = s.GoOn(ctx, d.ID, time.Second)
	note("go on", err)
	consumer[2] = "halted"
	note("resume", s.Resume(ctx, d.ID, 0, "ops"))
	var changed *store.ChangedError
	require.ErrorAs(t, s.Resume(ctx, d.ID, 4, "ops"), &changed)
	d.Digest = "sha256:1"
	_, err = s.Subscribe(ctx, d)
	note("revision", err)
	note("drop", s.Drop(ctx, d.ID, "ops"))
	note("leave", s.Leave(ctx, "i-1"))

	foreign := regexp.MustCompile("(?i)[`\"?]|\\bLIMIT\\b|\\$[0-9]|ON CONFLICT|ON DUPLICATE|RETURNING|FOR UPDATE|\\bMERGE\\b")
	for _, e := range srv.log {
		require.LessOrEqual(t, len(e.args), 2100)
	}
	for _, text := range srv.texts() {
		require.NotRegexp(t, foreign, text)
		require.LessOrEqual(t, strings.Count(text, "), ("), 999, "more rows than a list of VALUES may have")
	}
	if path := os.Getenv("PROJHOST_TEST_TEXTS"); path != "" { // for a parser of T-SQL
		for i, text := range srv.texts() {
			require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%03d.sql", path, i), []byte(text+";\n"), 0o644))
		}
	}
}
