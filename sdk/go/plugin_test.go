package projhost_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/json"
	"github.com/projhost/projhost/sdk/go/projhosttest"
)

type total struct {
	N      int64
	Amount projhost.Null[projhost.Decimal] `ph:",precision=10,scale=2"`
	Note   projhost.Null[string]
	Level  string `ph:"level,max=10,default=low"`
}

type line struct {
	N     int64
	Price projhost.Decimal `ph:"price,precision=10,scale=2"`
	Note  projhost.Null[string]
}

// do runs one handler on one message and returns the harness.
func do(t *testing.T, handle func(c *projhost.Ctx, m *projhost.Message, row *total) error) *projhosttest.Harness {
	t.Helper()
	p := projhost.New("test", "1.0.0")
	projhost.NewProjection[total](p, "totals").OnAny(handle)
	h := projhosttest.New(t, p)
	h.Apply(event("k", "x", "{}"))
	return h
}

func event(id, typ, data string) projhosttest.Event {
	return projhosttest.Event{AggregateType: "thing", AggregateID: id, Type: typ, Data: data}
}

func TestANewRowStartsWithItsDefaults(t *testing.T) {
	h := do(t, func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		require.False(t, c.Exists())
		require.Equal(t, total{Level: "low"}, *row)
		return nil
	})
	require.Equal(t, `{"n":0,"amount":null,"note":null,"level":"low"}`, h.Row("totals", "k"))
}

// Bytes that a handler changes in place are changed all the same.
func TestBytesChangedInPlaceAreWritten(t *testing.T) {
	type blob struct {
		B []byte
		E []byte
		N []byte
	}
	p := projhost.New("blobs", "1.0.0")
	blobs := projhost.NewProjection[blob](p, "blobs")
	blobs.On("new", func(_ *projhost.Ctx, _ *projhost.Message, row *blob) error {
		row.B, row.E = []byte{1, 2}, []byte{}
		return nil
	})
	blobs.On("change", func(_ *projhost.Ctx, _ *projhost.Message, row *blob) error {
		row.B[0]++
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("1", "new", "{}"),
		event("1", "change", "{}"),
		event("1", "change", "{}"))
	require.Equal(t, `{"b":"AwI=","e":"","n":null}`, h.Row("blobs", "1"))
}

func TestAnIgnoredMessageWritesNothing(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	side := projhost.NewTable[line](totals, "side")
	totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.N = 7
		side.Put(c, line{})
		return projhost.Ignore
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "x", ""))
	require.Empty(t, h.Rows("totals"))
	require.Empty(t, h.Rows("side"))
}

func TestDeleteWinsOverTheRow(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	totals.On("put", func(c *projhost.Ctx, m *projhost.Message, row *total) error { row.N++; return nil })
	totals.On("delete", func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.N = 9
		c.Delete()
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("a", "put", ""), event("b", "put", ""), event("a", "delete", ""))
	require.Equal(t, []string{`{"key":"b","row":{"n":1,"amount":null,"note":null,"level":"low"}}`}, h.Rows("totals"))
	h.Apply(event("a", "put", ""))
	require.Contains(t, h.Row("totals", "a"), `"n":1`)
}

// A handler reads what it has itself written, although the host does not know it
// before the entry is done.
func TestHandlersReadTheirOwnWrites(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	lines := projhost.NewChildren[line](totals, "lines", projhost.ChildKey{})
	side := projhost.NewTable[line](totals, "side")
	n, price, note := lines.Column("n"), lines.Column("price"), lines.Column("note")
	sideN := side.Column("n")
	totals.OnMessage("write", func(c *projhost.Ctx, m *projhost.Message) error {
		get := func(child string) (line, bool) { return lines.Get(c, child) }
		_, ok := get("1")
		require.False(t, ok)
		lines.Put(c, "1", line{N: 1, Price: projhost.MustDecimal("2.50")})
		row, ok := get("1")
		require.True(t, ok)
		require.Equal(t, line{N: 1, Price: projhost.MustDecimal("2.50")}, row)
		_, ok = get("2")
		require.False(t, ok, "another child")
		_, ok = side.Get(c)
		require.False(t, ok, "another table")

		lines.Add(c, "1", n, 41)
		lines.AddDecimal(c, "1", price, projhost.MustDecimal("-0.5"))
		lines.Patch(c, "1", line{N: -1, Note: projhost.Some("hello")}, note)
		row, _ = get("1")
		require.Equal(t, line{N: 42, Price: projhost.MustDecimal("2.00"), Note: projhost.Some("hello")}, row)

		lines.Add(c, "3", n, 5)
		row, ok = get("3")
		require.True(t, ok, "add creates a row")
		require.Equal(t, int64(5), row.N)
		lines.Delete(c, "3")
		_, ok = get("3")
		require.False(t, ok)

		side.Add(c, sideN, 1)
		side.Add(c, sideN, 1)
		other, ok := side.Get(c)
		require.True(t, ok)
		require.Equal(t, int64(2), other.N)
		return nil
	})
	totals.OnMessage("check", func(c *projhost.Ctx, m *projhost.Message) error {
		row, ok := lines.Get(c, "1")
		require.True(t, ok)
		require.Equal(t, line{N: 42, Price: projhost.MustDecimal("2.00"), Note: projhost.Some("hello")}, row)
		lines.Put(c, "9", line{})
		totals.Table().Delete(c)
		_, ok = lines.Get(c, "1")
		require.False(t, ok, "deleting a parent deletes its children")
		_, ok = lines.Get(c, "9")
		require.False(t, ok)
		lines.Put(c, "10", line{N: 10})
		row, ok = lines.Get(c, "10")
		require.True(t, ok)
		require.Equal(t, int64(10), row.N)
		return nil
	})
	totals.OnMessage("clear", func(c *projhost.Ctx, m *projhost.Message) error {
		lines.Put(c, "11", line{})
		lines.DeleteAll(c)
		_, ok := lines.Get(c, "11")
		require.False(t, ok)
		_, ok = lines.Get(c, "10")
		require.False(t, ok)
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "write", ""), event("other", "write", ""))
	require.Equal(t, `{"n":42,"price":"2.00","note":"hello"}`, h.Child("lines", "k", "1"))
	require.Equal(t, `{"n":2,"price":"0.00","note":null}`, h.Row("side", "k"))
	h.Apply(event("k", "check", ""))
	require.Len(t, h.Rows("lines"), 2)
	require.Equal(t, `{"n":10,"price":"0.00","note":null}`, h.Child("lines", "k", "10"))
	require.NotEmpty(t, h.Child("lines", "other", "1"), "children of another key")
	h.Apply(event("k", "clear", ""))
	require.Len(t, h.Rows("lines"), 1)
}

func TestRowsReadInOneHandlerLiveSideBySide(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	lines := projhost.NewChildren[line](totals, "lines", projhost.ChildKey{})
	long := strings.Repeat("x", 3000) // so that the buffer of rows grows on the way
	totals.On("write", func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.Note = projhost.Some("own")
		for _, child := range []string{"1", "2", "3"} {
			lines.Put(c, child, line{Note: projhost.Some(child + long)})
		}
		return nil
	})
	totals.On("read", func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		one, _ := lines.Get(c, "1")
		two, _ := lines.Get(c, "2")
		three, _ := lines.Get(c, "3")
		require.Equal(t, "own", row.Note.V)
		require.Equal(t, []string{"1" + long, "2" + long, "3" + long}, []string{one.Note.V, two.Note.V, three.Note.V})
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "write", ""), event("k", "read", ""), event("k", "read", ""))
}

func TestListWalksChildrenInPages(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	lines := projhost.NewChildren[line](totals, "lines", projhost.ChildKey{})
	totals.OnMessage("fill", func(c *projhost.Ctx, m *projhost.Message) error {
		for i := range 250 {
			lines.Put(c, string(rune('a'+i/26))+string(rune('a'+i%26)), line{N: int64(i), Note: projhost.Some("note of a line")})
		}
		return nil
	})
	var sum, count int64
	var children []string
	totals.OnMessage("sum", func(c *projhost.Ctx, m *projhost.Message) error {
		for child, row := range lines.List(c, "", 0) {
			sum, count = sum+row.N, count+1
			if count == 120 {
				// Reading in the middle of a walk must not move what is walked over.
				again, ok := lines.Get(c, child)
				require.True(t, ok)
				require.Equal(t, row, again)
			}
		}
		for child := range lines.List(c, "bz", 3) {
			children = append(children, strings.Clone(child))
		}
		for child := range lines.List(c, "", 0) {
			children = append(children, strings.Clone(child))
			break
		}
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "fill", ""), event("other", "fill", ""), event("k", "sum", ""))
	require.Equal(t, int64(250), count)
	require.Equal(t, int64(249*250/2), sum)
	require.Equal(t, []string{"ca", "cb", "cc", "aa"}, children)
}

func TestFreeTables(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[struct{}](p, "totals")
	totals.SingleOwner()
	words := projhost.NewFreeTable[line](totals, "words")
	n := words.Column("n")
	totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, _ *struct{}) error {
		for word := range m.JSON().Values() {
			words.Add(c, word.Str(), n, 1)
		}
		if row, ok := words.Get(c, "tea"); ok && row.N > 2 {
			words.Delete(c, "tea")
		}
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("1", "said", `["tea","milk","tea"]`), event("2", "said", `["milk"]`))
	require.Equal(t, `{"n":2,"price":"0.00","note":null}`, h.Row("words", "milk"))
	require.Equal(t, `{"n":2,"price":"0.00","note":null}`, h.Row("words", "tea"))
	h.Apply(event("3", "said", `["tea"]`))
	require.Empty(t, h.Row("words", "tea"))
}

func TestKeysByFunction(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals", projhost.Input{
		KeysVersion: 2,
		Key: projhost.Function(func(m *projhost.Message, keys *projhost.Keys) error {
			for word := range m.JSON().Get("words").Values() {
				text, err := word.Text()
				if err != nil {
					return err
				}
				keys.Add(text)
			}
			return nil
		}),
	})
	totals.On("said", func(c *projhost.Ctx, m *projhost.Message, row *total) error { row.N++; return nil })
	h := projhosttest.New(t, p)
	h.Apply(event("1", "said", `{"words":["a","b","a"]}`), event("2", "said", `{"words":["a"]}`), event("3", "said", `{}`))
	require.Contains(t, h.Row("totals", "a"), `"n":2`)
	require.Contains(t, h.Row("totals", "b"), `"n":1`)
	require.ErrorContains(t, h.Try(event("4", "said", `{"words":[1]}`)), "want a string, have a number: 1")
}

func TestMessagesOfTypesNobodyRegisteredAreNotAskedFor(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals", projhost.Input{AggregateTypes: []string{"thing"}},
		projhost.Input{Topic: "read-model:orders", Types: []string{"b", "unhandled"}})
	totals.On("a", func(c *projhost.Ctx, m *projhost.Message, row *total) error { row.N++; return nil })
	totals.On("b", func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.N += int64(10 * (1 + m.Input))
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "a", ""), event("k", "b", ""), event("k", "unhandled", ""))
	upstream := event("k", "b", "")
	upstream.Topic = "read-model:orders"
	ignored := upstream
	ignored.Type = "unhandled" // asked for, but without a handler: answered as ignored
	h.Apply(upstream, ignored)
	require.Contains(t, h.Row("totals", "k"), `"n":31`)
}

func TestFailuresAreToldWithTheirReason(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	side := projhost.NewTable[line](totals, "side")
	price := projhost.MustDecimal("123456789.00")
	cause := errors.New("the cause")
	totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.N++
		side.Put(c, line{N: row.N})
		switch m.Type {
		case "reject":
			return projhost.Reject("no")
		case "fatal":
			return projhost.Fatal("stop")
		case "retry":
			return projhost.Retry("later")
		case "error":
			return cause
		case "wrapped":
			return errors.Join(errors.New("wrapped"), projhost.Retry("later"))
		case "panic":
			panic("of a handler")
		case "precision":
			side.Put(c, line{Price: price})
		case "long":
			row.Level = "much too long"
		case "utf8":
			row.Level = "\xff"
		}
		return nil
	})
	h := projhosttest.New(t, p)
	for typ, want := range map[string]struct {
		status abi.Status
		reason string
	}{
		"reject": {abi.StatusReject, "no"}, "fatal": {abi.StatusFatal, "stop"}, "retry": {abi.StatusRetry, "later"},
		"error": {abi.StatusReject, "the cause"}, "wrapped": {abi.StatusRetry, "wrapped\nlater"},
		"panic":     {abi.CodeTrap, "panic: of a handler at go/plugin_test.go:"},
		"precision": {abi.CodeMalformed, "table side: column price: 123456789.00 does not fit 10 digits, 2 of them behind the point"},
		"long":      {abi.CodeMalformed, "table totals: column level: a text of 13 UTF-16 units, at most 10 are allowed"},
		"utf8":      {abi.CodeMalformed, "UTF-8"},
	} {
		err := h.Try(event("k", typ, ""))
		var failure *projhosttest.Failure
		require.ErrorAs(t, err, &failure, typ)
		require.Equal(t, want.status, failure.Status, typ)
		require.Contains(t, failure.Reason, want.reason, typ)
		require.Empty(t, h.Rows("totals"), typ)
		require.Empty(t, h.Rows("side"), typ)
	}
	h.Apply(event("k", "fine", ""))
	require.Contains(t, h.Row("side", "k"), `"n":1`)
}

func TestATableBelongsToItsProjection(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	one := projhost.NewProjection[total](p, "one")
	other := projhost.NewProjection[total](p, "other", projhost.Input{Topic: "capture", Types: []string{"*"}})
	one.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		other.Table().Put(c, total{})
		return nil
	})
	h := projhosttest.New(t, p)
	require.ErrorContains(t, h.Try(event("k", "a", "")), "table other belongs to projection other, the handler to one")
}

func TestConfigLogAndRandomness(t *testing.T) {
	build := func() *projhost.Plugin {
		p := projhost.New("test", "1.0.0")
		var currency string
		p.OnInit(func(config json.Value) error {
			currency = config.Get("currency").Str()
			if currency == "" {
				return errors.New("currency is missing")
			}
			return nil
		})
		totals := projhost.NewProjection[total](p, "totals")
		totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
			c.Log(projhost.Warn, "paid in "+currency)
			require.Equal(t, currency, c.Config().Get("currency").Str())
			row.Note = projhost.Some(c.NewUUID().String())
			return nil
		})
		return p
	}
	h := projhosttest.NewWithConfig(t, build(), `{"currency":"EUR"}`)
	h.Apply(event("k", "a", ""))
	require.Equal(t, []string{"warn: paid in EUR"}, h.Log())
	again := projhosttest.NewWithConfig(t, build(), `{"currency":"EUR"}`)
	again.Apply(event("k", "a", ""))
	require.Equal(t, h.Row("totals", "k"), again.Row("totals", "k"), "random bytes are those of the message")
	require.Regexp(t, `"note":"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab]`, h.Row("totals", "k"))

	refused := recordFatal(func(t testing.TB) { projhosttest.NewWithConfig(t, build(), `{}`) })
	require.Contains(t, refused, "config: currency is missing")
}

// What the host would refuse at admission fails a plugin's first test.
func TestTheHarnessAdmitsAsAHostDoes(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	projhost.NewProjection[struct {
		Key  int64
		Name string `ph:",unique"`
	}](p, "select").OnAny(nil)
	refused := recordFatal(func(t testing.TB) { projhosttest.New(t, p) })
	require.Contains(t, refused, "unique")
	require.Contains(t, refused, "key")
}

// A string of a message that is kept beyond its handler is memory that the next
// entry uses again. Here it is spoilt at once.
func TestKeptViewsAreSpoilt(t *testing.T) {
	var kept, keptRow string
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		if c.Exists() {
			keptRow = row.Note.V
		}
		kept = m.JSON().Get("word").Str()
		row.Note = projhost.Some(kept)
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "a", `{"word":"tea"}`))
	require.NotEqual(t, "tea", kept)
	require.Contains(t, h.Row("totals", "k"), "tea")
	h.Apply(event("k", "a", `{"word":"mug"}`))
	require.NotEqual(t, "tea", keptRow)
}

func TestSameInAnySplitFindsMemory(t *testing.T) {
	build := func() *projhost.Plugin {
		seen := int64(0)
		p := projhost.New("test", "1.0.0")
		projhost.NewProjection[total](p, "totals").OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
			seen++ // restored before each batch by a host, not by the harness
			row.N = seen
			return nil
		})
		return p
	}
	projhosttest.SameInAnySplit(t, build, []projhosttest.Event{event("a", "x", ""), event("b", "x", "")})
}

func TestCopiesOutOfAJSONColumnAreTheHosts(t *testing.T) {
	type doc struct {
		Doc  projhost.JSON
		City projhost.Null[string] `ph:"city,max=50,index,from=/address/city,of=doc"`
	}
	p := projhost.New("test", "1.0.0")
	docs := projhost.NewProjection[doc](p, "docs")
	docs.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *doc) error {
		if c.Exists() {
			require.Equal(t, "Delft", row.City.V)
		}
		row.City = projhost.Some("not written")
		row.Doc = m.Data
		return nil
	})
	h := projhosttest.New(t, p)
	h.Apply(event("k", "a", `{"address":{"city":"Delft"}}`), event("k", "a", `{"address":{}}`))
	require.Equal(t, `{"doc":{"address":{}},"city":null}`, h.Row("docs", "k"))
}

func TestHandlersWithoutGarbage(t *testing.T) {
	p := projhost.New("test", "1.0.0")
	totals := projhost.NewProjection[total](p, "totals")
	lines := projhost.NewChildren[line](totals, "lines", projhost.ChildByAggregateID())
	totals.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *total) error {
		row.N++
		row.Note = projhost.Some(m.JSON().Get("word").Str())
		l, _ := lines.Get(c, m.AggregateID)
		l.N++
		lines.Put(c, m.AggregateID, l)
		w := c.JSON()
		w.BeginObject()
		w.Name("n").Int(row.N)
		w.EndObject()
		return nil
	})
	require.Zero(t, projhosttest.Garbage(t, p, event("k", "a", `{"word":"tea"}`)))
}

// recordFatal runs what must fail a test and returns with what words it does.
func recordFatal(run func(t testing.TB)) (message string) {
	r := &recorder{}
	defer func() {
		if recover() != nil {
			message = r.message
		}
	}()
	run(r)
	return ""
}

type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Helper() {}

func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic("test is over")
}
