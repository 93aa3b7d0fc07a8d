// Command poison is a guest for tests of failures: it counts the messages of
// each key, and fails those whose data says how, as in {"fail":"reject"}.
package main

import (
	"errors"

	projhost "github.com/projhost/projhost/sdk/go"
)

// Count is the row of a key. Its digits come from the messages that were
// applied, so that a test sees which ones were.
type Count struct {
	Events   int64
	LastData string           `ph:"last_data,max=200"`
	Amount   projhost.Decimal `ph:"amount,precision=10,scale=2"`
}

// dirty is what a restored instance does not remember.
var dirty int64

func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("poison", "1.0.0")
	poison := projhost.NewProjection[Count](p, "poison")
	poison.OnAny(func(c *projhost.Ctx, m *projhost.Message, row *Count) error {
		row.Events++
		row.LastData = string(m.Data)
		switch how := m.JSON().Get("fail"); how.Str() {
		case "":
			return nil
		case "ignore":
			return projhost.Ignore
		case "reject":
			return projhost.Reject("the message says so")
		case "error":
			return errors.New("a handler's error")
		case "fatal":
			return projhost.Fatal("the message says so")
		case "retry":
			return projhost.Retry("not now")
		case "panic":
			panic("the message says so")
		case "nil":
			var nothing *Count
			nothing.Events++
		case "index":
			_ = m.Data[len(m.Data)+int(row.Events)]
		case "scale":
			row.Amount = projhost.MustDecimal("0.001")
		case "precision":
			row.Amount = projhost.MustDecimal("123456789.00")
		case "nul":
			row.LastData = "\x00"
		case "stack":
			row.Events = recurse(row.Events)
		case "loop":
			for row.Events > 0 {
				row.Events++
			}
		case "memory":
			row.LastData = string(make([]byte, 3<<30)[:1])
		case "dirty":
			dirty++
			row.Events += dirty
		default:
			return projhost.Reject("unknown way to fail: " + how.Str())
		}
		return nil
	})
	return p
}

// recurse comes to its end too late for any stack.
func recurse(n int64) int64 {
	if n < 0 {
		return 0
	}
	return recurse(n+1) + 1
}
