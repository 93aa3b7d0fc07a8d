// Command accounts is the plugin of `projhost demo`: a read model of bank
// accounts, kept from their events. It is meant to be copied.
//
// Build: GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o accounts.wasm ./testplugins/accounts
package main

import (
	projhost "github.com/projhost/projhost/sdk/go"
)

// Account is one row of the read model. Its fields are the columns.
type Account struct {
	Owner     string           `ph:"owner,index,max=100"`
	Status    string           `ph:"status,index,max=10"`
	Balance   projhost.Decimal `ph:"balance,precision=19,scale=2"`
	Events    int64
	UpdatedAt projhost.Timestamp
}

// main is never run: the host calls the module's exports. What there is to call
// is put together here.
func main() {}

func init() { projhost.Serve(plugin()) }

func plugin() *projhost.Plugin {
	p := projhost.New("accounts", "1.0.0")
	p.Heap(256 << 10) // its handlers leave no garbage

	accounts := projhost.NewProjection[Account](p, "accounts",
		projhost.Input{AggregateTypes: []string{"account"}})
	accounts.On("opened", opened)
	accounts.On("deposited", deposited)
	accounts.On("withdrawn", withdrawn)
	accounts.On("closed", closed)
	return p
}

func opened(c *projhost.Ctx, m *projhost.Message, a *Account) error {
	owner, err := m.JSON().Get("owner").Text()
	if err != nil {
		return projhost.Reject("owner: " + err.Error())
	}
	a.Owner, a.Status = owner, "open"
	a.touch(m)
	return nil
}

func deposited(c *projhost.Ctx, m *projhost.Message, a *Account) error {
	amount, err := projhost.DecimalOf(m.JSON().Get("amount"))
	if err != nil {
		return projhost.Reject("amount: " + err.Error())
	}
	a.Balance = a.Balance.Add(amount)
	a.touch(m)
	return nil
}

func withdrawn(c *projhost.Ctx, m *projhost.Message, a *Account) error {
	amount, err := projhost.DecimalOf(m.JSON().Get("amount"))
	if err != nil {
		return projhost.Reject("amount: " + err.Error())
	}
	a.Balance = a.Balance.Sub(amount)
	a.touch(m)
	return nil
}

func closed(c *projhost.Ctx, m *projhost.Message, a *Account) error {
	a.Status = "closed"
	a.touch(m)
	return nil
}

func (a *Account) touch(m *projhost.Message) {
	a.Events++
	a.UpdatedAt = m.Time
}
