// Command ledger keeps books on how it was applied, by each way in which messages
// find their keys: for every key how many messages there were and a chain over
// their positions, which a message that is missing, doubled or out of order
// breaks for good; and for every message and key a row of its own that counts the
// times, so that the commits which wrote it can be counted as well, by a trigger.
//
// Its config {"spin": N} has each message take N turns of an empty loop.
package main

import (
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/json"
)

// Account is the row of a key.
type Account struct {
	Messages int64
	Chain    int64
}

// Entry is the row of a message and key.
type Entry struct {
	Times int64
}

// spin is how many turns there are to take for a message.
var spin int64

func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("ledger", "1.0.0")
	p.Heap(256 << 10)
	p.OnInit(func(config json.Value) (err error) {
		if n := config.Get("spin"); n.Exists() {
			spin, err = n.Int()
		}
		return err
	})
	account(p, "ledger_streams", projhost.Input{})
	account(p, "ledger_resources", projhost.Input{Key: projhost.Pointers("/org:resource")})

	// In the total order of all messages, on one host.
	total := projhost.NewProjection[struct{}](p, "ledger_total")
	total.SingleOwner()
	accounts := projhost.NewFreeTable[Account](total, "ledger_total")
	entries := projhost.NewFreeTable[Entry](total, "ledger_total_entries")
	times := entries.Column("times")
	total.OnAnyMessage(func(c *projhost.Ctx, m *projhost.Message) error {
		a, _ := accounts.Get(c, "total")
		a.add(m)
		accounts.Put(c, "total", a)
		entries.Add(c, m.ID.String(), times, 1)
		return nil
	})
	return p
}

// account adds a projection that may be spread over hosts.
func account(p *projhost.Plugin, name string, input projhost.Input) {
	accounts := projhost.NewProjection[Account](p, name, input)
	entries := projhost.NewChildren[Entry](accounts, name+"_entries", projhost.ChildKey{})
	times := entries.Column("times")
	accounts.OnAny(func(c *projhost.Ctx, m *projhost.Message, a *Account) error {
		a.add(m)
		entries.Add(c, m.ID.String(), times, 1)
		return nil
	})
}

// add takes a message into the account.
func (a *Account) add(m *projhost.Message) {
	for n := spin; n > 0; n-- { // no compiler of Go takes it out
	}
	a.Messages++
	a.Chain = (a.Chain ^ int64(m.Position)) * 1099511628211
}
